/**
 * The commands and their options: a verb a job. Each command lies in its own file and is loaded when it is used. docs/commands.md is
 * generated from here.
 */
import { Command } from 'commander';

import { PACKAGE_VERSION } from '../run/package-version.ts';

export const program = new Command('hone')
  .description('Post-trains an open model into a specialist coding agent, inside the harness that ships it.')
  .version(PACKAGE_VERSION)
  .enablePositionalOptions() // So that a command may have a --version of its own.
  .exitOverride()
  .configureHelp({ sortSubcommands: false });

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

const serve = program
  .command('serve')
  .description('run one service of a fleet; a token of all of them in HONE_TOKEN guards it');
serve
  .command('replica')
  .description('serve a model behind HTTP and follow the versions of a run, fetched and committed while it samples')
  .requiredOption('--model <folder>', 'a Hugging Face folder: version 0, and what every run of it starts from')
  .requiredOption('--data <folder>', 'where this replica keeps its weights and downloads; no two share one')
  .option('--store <location>', 'weight store to follow: a folder, or s3://bucket/prefix; also takes side data')
  .option('--controller <url>', "control URL of the cluster's controller, to follow the store through it")
  .option('--router <url...>', 'control URL of a router to register at; several may be given')
  .option('--run <name>', 'run to follow; the first one that the store names if left out')
  .option('--id <name>', 'name of this replica, the same after a restart; one from host and folder if left out')
  .option('--cluster <name>', 'cluster that it belongs to', 'default')
  .option(
    '--cache-gib <number>',
    'bound of the copies that it keeps for other replicas; what is in use may pass it',
    '64',
  )
  .option('--slots <integer>', 'requests that are sampled at once', '16')
  .option('--threads <integer>', 'threads that compute; one a core, at most 8, if left out')
  .option('--build <build>', 'kernels: auto, plain or fma', 'auto')
  .option('--context <integer>', "tokens of prompt and reply together; the model's own if left out")
  .option('--max-waiting <integer>', 'requests that may wait for a slot; more get status 429', '256')
  .option(
    '--commit <mode>',
    'in-place: replies go on across a commit; quiesce: all that have begun end first',
    'in-place',
  )
  .option('--in-flight <mode>', 'cached rows of replies that go on: keep, or recompute by the new weights', 'keep')
  .option('--drain-seconds <number>', 'how long a commit, or the end, waits for replies that must end first', '30')
  .option('--verify-served', 'after each commit read the weights back out of the engine and compare their checksums')
  .option('--poll-seconds <number>', 'between looks at the pointer; wakes come besides', '5')
  .option('--host <address>', 'address to listen on; any but loopback needs HONE_TOKEN', '127.0.0.1')
  .option('--advertise-host <host>', 'name or address by which routers and peers reach it; --host if left out')
  .option('--port <integer>', 'of the data port; 0 = any free one', '0')
  .option('--control-port <integer>', 'of the control port; 0 = any free one', '0')
  .option('--events <file>', 'append what happens as JSON Lines')
  .option('--json', 'print one JSON line once requests are taken')
  .action(async (options: Record<string, unknown>) => (await import('./serve-replica.ts')).serveReplica(options));
serve
  .command('controller')
  .description(
    'bring each version of a weight store into one cluster, once, and hand it to the replicas over a tree of them',
  )
  .requiredOption('--store <location>', 'weight store to follow: a folder, or s3://bucket/prefix')
  .option('--cluster <name>', 'name of the cluster; no two controllers of a store share one', 'default')
  .option('--cache <folder>', 'where objects are kept; .hone/controller-<cluster> if left out')
  .option('--cache-gib <number>', 'bound of the cache; what is in use may pass it', '64')
  .option('--fan-out <integer>', 'replicas that the controller, and each replica, sends to', '2')
  .option('--poll-seconds <number>', 'between looks at the pointer; wakes come besides', '5')
  .option('--lease-seconds <number>', 'a replica that is not heard of for so long counts as dead', '6')
  .option('--run <name>', 'run to follow; the one followed before, else the first that the store names, if left out')
  .option('--host <address>', 'address to listen on; any but loopback needs HONE_TOKEN', '127.0.0.1')
  .option('--port <integer>', 'to listen on; 0 = any free one', '0')
  .option('--events <file>', 'append what happens as JSON Lines')
  .option('--json', 'print one JSON line once replicas can register')
  .action(async (options: Record<string, unknown>) => (await import('./serve-controller.ts')).serveController(options));
serve
  .command('router')
  .description(
    'where agents and recorders ask for tokens: chooses among the replicas that register, and replaces those that die',
  )
  .option(
    '--model <folder>',
    'also record sessions for agents, with tokenizer and chat template of this Hugging Face folder',
  )
  .option('--host <address>', 'to listen on; anything but a loopback needs HONE_TOKEN', '127.0.0.1')
  .option('--port <integer>', 'data port; 0 = any free one', '0')
  .option('--control-port <integer>', 'control port, for replicas and operators; 0 = any free one', '0')
  .option('--lease-seconds <number>', 'a replica that does not renew for so long is left out', '10')
  .option(
    '--replica <urls...>',
    'data and control URL, with a comma between them, of a replica that does not register; several may be given',
  )
  .option('--max-waiting <integer>', 'requests that may wait at one replica beyond those that it samples', '64')
  .option('--restart-budget <integer>', 'restarts of a replica within ten minutes before it is left out for good', '5')
  .option('--id <id>', 'name in logs and on the status page')
  .option('--events <file>', 'append what happens, as JSON Lines')
  .option('--json', 'print where it listens as one line of JSON')
  .action(async (options: Record<string, unknown>) => (await import('./serve-router.ts')).serveRouter(options));

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

const frontier = program
  .command('frontier')
  .description('choose where on the success-cost frontier a policy lands, and see that steering gets it there');
frontier
  .command('study')
  .description('run the toy study of steered prices and put its table beside the published one')
  .option(
    '--out <folder>',
    'folder to write; runs/frontier-study if left out, runs/frontier-mean-field with --mean-field',
  )
  .option('--seed <integer>', 'seed of every draw; 1 if left out')
  .option('--problems <integer>', 'problems, spread over the grid of 100; all if left out')
  .option('--seeds <integer>', 'seeds of each problem; 3 if left out')
  .option('--steps <integer>', 'training steps; 1000 if left out')
  .option('--batch <integer>', 'rollouts of a step; 1024 if left out')
  .option('--alphas <list>', 'steered arms, each from 0 to 1; 0,0.25,0.5,0.75,1 if left out')
  .option('--workers <integer>', 'threads; one a core if left out; the bits do not depend on it')
  .option('--no-wrong-slope', 'leave out the arms that start from 3 times and a third of the right price')
  .option('--resume', 'go on with a study that was stopped; a finished one gets its files anew')
  .option(
    '--mean-field',
    'follow expectations instead of sampling: no noise, done in a moment, in place of the last mean field',
  )
  .option('--verify', 'check the thirteen statements about the study instead of running it')
  .option('--svg <file>', 'also write gain against saving alone, as one picture')
  .option('--json', 'print the results as JSON')
  .action(async (options: Record<string, unknown>) => (await import('./frontier-study.ts')).study(options));
frontier
  .command('fit')
  .description('fit the frontier of a real policy to its own evaluations at several efforts')
  .argument('<evaluations>', 'JSON Lines, one rollout a line; hone eval --efforts writes them')
  .option(
    '--cost <weights>',
    'prices of counts, such as tokens=0.000002,turns=0.01; or the unit of costs that are numbers',
  )
  .option('--out <folder>', 'folder to write', 'runs/frontier-fit')
  .option('--seed <integer>', 'seed of the bootstrap', '1')
  .option('--resamples <integer>', 'of the bootstrap over tasks', '2000')
  .option('--svg <file>', 'also write the frontier alone, as one picture')
  .option('--json', 'print the result as JSON')
  .action(async (file: string, options: Record<string, unknown>) =>
    (await import('./frontier-fit.ts')).fit(file, options),
  );
frontier
  .command('simulate')
  .description('show where each alpha would land on a frontier of your own, before anything is trained')
  .argument('<curve>', 'frontier.json of hone frontier fit, or points with effort, cost and success')
  .option('--alphas <list>', 'targets, each from 0 to 1', '0,0.25,0.5,0.75,1')
  .option('--improve <list>', 'assumed improvements, in per cent', '10,25,50')
  .option('--law <law>', 'what improves: success, failures or cost', 'success')
  .option('--half-life <steps>', 'steps until half of the improvement is there', '75')
  .option('--start-price <list>', 'starting prices as effort=price,...; the slopes of the curve if left out')
  .option('--slope-error <factor>', 'how wrong the fixed price that is shown beside is', '3')
  .option('--steps <integer>', 'steps of the course', '1000')
  .option('--actor-rate <number>', 'how fast the policy moves, in log cost a step', '0.015')
  .option(
    '--config <file>',
    "hone.config.ts or .json whose frontier term's controller moves the price; defaults if left out",
  )
  .option('--out <folder>', 'folder to write', 'runs/frontier-simulate')
  .option('--svg <file>', 'also write the landings under the middle improvement alone, as one picture')
  .option('--json', 'print the result as JSON')
  .action(async (file: string, options: Record<string, unknown>) =>
    (await import('./frontier-simulate.ts')).simulate(file, options),
  );

const weights = program
  .command('weights')
  .description('look at, check, fetch and prune published weight versions')
  .addHelpText(
    'after',
    '\nA <store> is a folder, a run folder such as runs/nano-check, or s3://bucket/prefix. Versions are written 7, v7 or weight_v000007.',
  );
weights
  .command('ls')
  .description('list every version: kind, size, base, when it was published, which is the newest')
  .argument('<store>', 'a folder, a run folder, or s3://bucket/prefix')
  .option('--json', 'print the list as JSON')
  .action(async (store: string, options: Record<string, unknown>) =>
    (await import('./weights-ls.ts')).listWeights(store, options),
  );
weights
  .command('show')
  .description('show one version: its tensors, sizes and checksums, and the chain back to its anchor')
  .argument('<store>', 'a folder, a run folder, or s3://bucket/prefix')
  .argument('[version]', 'such as 7, v7 or weight_v000007; the newest if left out')
  .option('--json', 'print it as JSON')
  .action(async (store: string, version: string | undefined, options: Record<string, unknown>) =>
    (await import('./weights-show.ts')).showWeights(store, version, options),
  );
weights
  .command('verify')
  .description('rebuild a version and check every checksum; exits with 1 and names the object that is damaged')
  .argument('<store>', 'a folder, a run folder, or s3://bucket/prefix')
  .option('--version <version>', 'such as 7, v7 or weight_v000007; the newest if left out')
  .option('--all', 'every version that was visible')
  .option('--model <folder>', 'the model that the run booted from, for runs whose first version is no full anchor')
  .option('--json', 'print the results as JSON')
  .action(async (store: string, options: Record<string, unknown>) =>
    (await import('./weights-verify.ts')).verifyWeights(store, options),
  );
weights
  .command('pull')
  .description('bring a local folder up to a version; what it has is not fetched again')
  .argument('<store>', 'a folder, a run folder, or s3://bucket/prefix')
  .requiredOption('--out <folder>', 'folder to make or to bring up to date')
  .requiredOption('--model <folder>', 'the Hugging Face folder that the run booted from')
  .option('--version <version>', 'such as 7, v7 or weight_v000007; the newest if left out')
  .option('--json', 'print what was done as JSON')
  .action(async (store: string, options: Record<string, unknown>) =>
    (await import('./weights-pull.ts')).pullWeights(store, options),
  );
weights
  .command('export')
  .description('write a version as a plain Hugging Face folder')
  .argument('<store>', 'a folder, a run folder, or s3://bucket/prefix')
  .requiredOption('--out <folder>', 'folder to write')
  .requiredOption('--model <folder>', 'the Hugging Face folder that the run booted from, for config and tokenizer')
  .option('--version <version>', 'such as 7, v7 or weight_v000007; the newest if left out')
  .option('--json', 'print what was done as JSON')
  .action(async (store: string, options: Record<string, unknown>) =>
    (await import('./weights-pull.ts')).exportWeights(store, options),
  );
weights
  .command('prune')
  .description('remove versions and side data that neither the newest versions nor live clusters need')
  .argument('<store>', 'a folder, a run folder, or s3://bucket/prefix')
  .requiredOption('--keep <integer>', 'newest versions to keep, with all that they build on')
  .option('--dry-run', 'only print what would go')
  .option('--json', 'print what was done as JSON')
  .action(async (store: string, options: Record<string, unknown>) =>
    (await import('./weights-prune.ts')).pruneWeights(store, options),
  );

program
  .command('config')
  .description('list every option of a run config with its unit and default')
  .option('--json', 'print the JSON Schema')
  .action(async (options: Record<string, unknown>) => (await import('./config.ts')).printConfig(options));

pointAtHelp(program, 'hone');

/** After a mistake, each command names its own help. */
function pointAtHelp(command: Command, path: string): void {
  const what = command.commands.length > 0 ? 'commands' : 'options';
  command.showHelpAfterError(`(${path} --help lists the ${what})`);
  for (const child of command.commands) pointAtHelp(child, `${path} ${child.name()}`);
}
