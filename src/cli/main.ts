/**
 * The command line: a verb a job. Each command lies in its own file and is loaded when it is used. Errors become one
 * sentence with the cure and a non-zero exit here, and nowhere else.
 */
import { Command, CommanderError } from 'commander';

import { HoneError } from '../domain/errors.ts';
import { PACKAGE_VERSION } from '../run/package-version.ts';

const program = new Command('hone')
  .description('Post-trains an open model into a specialist coding agent, inside the harness that ships it.')
  .version(PACKAGE_VERSION)
  .exitOverride()
  .configureHelp({ sortSubcommands: false })
  .showHelpAfterError('(hone --help lists the commands)');

program
  .command('train')
  .description('train a policy by reinforcement learning and compare it with where it started')
  .argument('<config>', 'a hone.config.ts or .json')
  .option('--name <name>', 'name of the run; its folder is runs/<name>')
  .option('--runs <directory>', 'where run folders lie', 'runs')
  .option('--seed <integer>', 'another seed than the config says')
  .option('--steps <integer>', 'another number of steps than the config says')
  .option('--resume', 'continue the run from its newest checkpoint')
  .option('--dry-run', 'resolve and print the config, train nothing')
  .option('--json', 'print the result as JSON on standard output')
  .action(async (config: string, options: Record<string, unknown>) =>
    (await import('./train.ts')).train(config, options),
  );

program
  .command('eval')
  .description('score a model on held-out tasks, sampled and greedy')
  .argument('<model>', 'a Hugging Face folder')
  .option('--tasks <integer>', 'number of tasks', '600')
  .option('--split <split>', 'pretrain, rl or heldout', 'heldout')
  .option('--seed <integer>', 'seed of tasks and draws', '7')
  .option('--config <config>', 'take harness, sampling, task size and engine from a hone.config.ts or .json')
  .option('--temperature <number>', 'of the sampled pass')
  .option('--max-characters <integer>', 'longest function that tasks are made from')
  .option('--no-lookups', 'take look-ups away')
  .option('--efforts', 'every level of effort that the config names, one line a rollout into --out')
  .option('--rollouts <integer>', 'with --efforts: rollouts of each task at each effort, 4 if left out')
  .option('--out <file>', 'with --efforts: file to write, JSON Lines')
  .option('--dry-run', 'print what would be done')
  .option('--json', 'print the scores as JSON')
  .action(async (model: string, options: Record<string, unknown>) =>
    (await import('./eval.ts')).evaluate(model, options),
  );

program
  .command('pretrain')
  .description('train a small base model from a recipe, bit for bit')
  .argument('<recipe>', 'a recipe.json')
  .requiredOption('--out <folder>', 'Hugging Face folder to write')
  .option('--threads <integer>', 'threads of the engine; the bits do not depend on it', '2')
  .option('--dry-run', 'check the recipe and print it')
  .option('--json', 'print the summary as JSON')
  .action(async (recipe: string, options: Record<string, unknown>) =>
    (await import('./pretrain.ts')).pretrainCommand(recipe, options),
  );

const tasks = program.command('tasks').description('make and look at tasks');
tasks
  .command('make')
  .description('draw tasks and write them as JSON Lines')
  .requiredOption('--out <file>', 'file to write')
  .option('--split <split>', 'pretrain, rl or heldout', 'rl')
  .option('--count <integer>', 'number of tasks', '600')
  .option('--seed <integer>', 'seed of the draw', '1')
  .option('--json', 'print the summary as JSON')
  .action(async (options: Record<string, unknown>) => (await import('./tasks.ts')).makeTasks(options));
tasks
  .command('inspect')
  .description('show tasks of a JSON Lines file as a reviewer would see them, with what is really wrong')
  .argument('<file>')
  .option('--count <integer>', 'tasks to show', '3')
  .option('--id <id>', 'one task')
  .option('--json', 'print counts by kind as JSON')
  .action(async (file: string, options: Record<string, unknown>) =>
    (await import('./tasks.ts')).inspectTasks(file, options),
  );

program
  .command('report')
  .description('write a run as one HTML page: curves and the before/after table')
  .argument('<run>', 'a run folder')
  .option('--out <file>', 'file to write; report.html in the run folder if left out')
  .option('--svg <file>', 'write the main curves alone, as one picture')
  .option('--json', 'print the table as JSON')
  .action(async (run: string, options: Record<string, unknown>) => (await import('./report.ts')).report(run, options));

program
  .command('config')
  .description('list every option of a run config with its unit and default')
  .option('--json', 'print the JSON Schema')
  .action(async (options: Record<string, unknown>) => (await import('./config.ts')).printConfig(options));

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode;
  else {
    report(error);
    process.exitCode = process.exitCode ?? 1;
    if (process.exitCode === 0) process.exitCode = 1;
  }
}

function report(error: unknown): void {
  if (error instanceof HoneError)
    process.stderr.write(`hone: ${error.message}${error.cure === undefined ? '' : ` ${error.cure}`}\n`);
  else process.stderr.write(`hone: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  if (error instanceof HoneError && error.cause instanceof Error && process.env['HONE_DEBUG'] !== undefined)
    process.stderr.write(`${error.cause.stack}\n`);
}
