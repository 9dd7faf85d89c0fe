/**
 * Writes what is generated from the schemas in `src/`: JSON Schemas for editors and other programs, and the table of
 * config options. CI runs it and fails when a committed file differs.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { z } from 'zod';

import { reportSchema } from '../src/domain/finding.ts';
import { taskSchema } from '../src/domain/task.ts';
import { runConfigSchema } from '../src/run/config.ts';

const root = fileURLToPath(new URL('..', import.meta.url));

/** The part of JSON Schema that our schemas use. */
interface Node {
  readonly type?: string;
  readonly properties?: Readonly<Record<string, Node>>;
  readonly required?: readonly string[];
  readonly items?: Node;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly Node[];
  readonly oneOf?: readonly Node[];
  readonly default?: unknown;
  readonly description?: string;
}

function write(path: string, text: string): void {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

function writeSchema(name: string, title: string, schema: z.ZodType): Node {
  // As written by a person or program: before defaults and transforms.
  const json = { title, ...z.toJSONSchema(schema, { io: 'input' }) };
  write(`schemas/${name}.schema.json`, `${JSON.stringify(json, undefined, 2)}\n`);
  // z.toJSONSchema's own type is wider; our schemas use the part above.
  return json as Node;
}

function describeType(node: Node): string {
  if (node.const !== undefined) return JSON.stringify(node.const);
  if (node.enum !== undefined) return node.enum.map((value) => JSON.stringify(value)).join(' or ');
  const choices = node.anyOf ?? node.oneOf;
  if (choices !== undefined) return [...new Set(choices.map(describeType))].join(' or ');
  if (node.type === 'array') return `list of ${node.items === undefined ? 'values' : describeType(node.items)}`;
  return node.type ?? 'any value';
}

function listOptions(node: Node, path: readonly string[]): string[] {
  return Object.entries(node.properties ?? {}).flatMap(([key, option]) => {
    const optionPath = [...path, key];
    if (option.properties !== undefined) return listOptions(option, optionPath);
    const absent = node.required?.includes(key) === true ? 'required' : '—';
    const fallback = option.default === undefined ? absent : `\`${JSON.stringify(option.default)}\``;
    const cells = [`\`${optionPath.join('.')}\``, describeType(option), fallback, option.description ?? ''];
    return [`| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`];
  });
}

writeSchema('task', 'A task of the check harness', taskSchema);
writeSchema('report', 'Findings that a Hone check harness submits', reportSchema);
const runConfig = writeSchema('run-config', 'The config of a Hone run', runConfigSchema);

write(
  'docs/config.md',
  `# Options of a run config

Generated from the schema in \`src/run/config.ts\` by \`npm run generate\`. Unknown keys and impossible mixes are errors at start, all
reported at once; \`hone train <config> --dry-run\` prints the config with every default filled in.

| option | type | default | what it is |
| --- | --- | --- | --- |
${listOptions(runConfig, []).join('\n')}
`,
);
