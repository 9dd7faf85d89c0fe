/**
 * Writes what is generated from `src/`: JSON Schemas for editors and other programs, the table of config options, and the page of all
 * commands. CI runs it and fails when a committed file differs.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { z } from 'zod';

import type { Command } from 'commander';

import { program } from '../src/cli/program.ts';
import { reportSchema } from '../src/domain/finding.ts';
import { taskSchema } from '../src/domain/task.ts';
import { configOptions } from '../src/run/config-options.ts';
import type { ConfigOption } from '../src/run/config-options.ts';
import { runConfigSchema } from '../src/run/config.ts';

const root = fileURLToPath(new URL('..', import.meta.url));

function write(path: string, text: string): void {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

function writeSchema(name: string, title: string, schema: z.ZodType): void {
  // As written by a person or program: before defaults and transforms.
  const json = { title, ...z.toJSONSchema(schema, { io: 'input' }) };
  write(`schemas/${name}.schema.json`, `${JSON.stringify(json, undefined, 2)}\n`);
}

function optionRow({ path, type, default: fallback, isRequired, description }: ConfigOption): string {
  const absent = isRequired ? 'required' : '—';
  const cells = [`\`${path}\``, type, fallback === undefined ? absent : `\`${fallback}\``, description];
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
}

writeSchema('task', 'A task of the check harness', taskSchema);
writeSchema('report', 'Findings that a Hone check harness submits', reportSchema);
writeSchema('run-config', 'The config of a Hone run', runConfigSchema);

write(
  'docs/config.md',
  `# Options of a run config

Generated from the schema in \`src/run/config.ts\` by \`npm run generate\`. Unknown keys and impossible mixes are errors at start, all
reported at once; \`hone train <config> --dry-run\` prints the config with every default filled in.

In a path \`[]\` is an element of a list, \`<name>\` a name of your own, and \`{detection}\` the fields of the choice that is called so:
\`reward.base{detection}.beta\` is written \`reward: { base: { kind: 'detection', beta: 0.5 } }\`.

| option | type | default | what it is |
| --- | --- | --- | --- |
${configOptions(runConfigSchema).map(optionRow).join('\n')}
`,
);

/** A section a command that does something, in the order of the help. */
function commandSections(command: Command, path: string): string[] {
  if (command.commands.length > 0)
    return command.commands.flatMap((child) => commandSections(child, `${path} ${child.name()}`));
  const cell = (text: string): string => text.replaceAll('|', '\\|');
  const rows = [
    ...command.registeredArguments.map((argument) => [
      `\`${argument.required ? `<${argument.name()}>` : `[${argument.name()}]`}\``,
      argument.required ? 'required' : '—',
      argument.description === '' ? 'a file' : argument.description,
    ]),
    ...command.options.map(({ flags, mandatory, defaultValue, description }) => {
      const hasDefault = defaultValue !== undefined && defaultValue !== true;
      const absent = mandatory ? 'required' : '—';
      return [`\`${flags}\``, hasDefault ? `\`${String(defaultValue)}\`` : absent, description];
    }),
  ];
  return [
    [
      `## ${path}`,
      '',
      `${command.description().replace(/^./, (letter) => letter.toUpperCase())}.`,
      '',
      '| option | default | what it is |',
      '| --- | --- | --- |',
      ...rows.map((row) => `| ${row.map(cell).join(' | ')} |`),
    ].join('\n'),
  ];
}

write(
  'docs/commands.md',
  `# Commands

Generated from \`src/cli/program.ts\` by \`npm run generate\`; \`hone <command> --help\` prints the same. In a checkout, \`npm run hone --\` stands for \`hone\`.

${commandSections(program, 'hone').join('\n\n')}
`,
);
