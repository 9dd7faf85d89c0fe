import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import type { Effort } from '../../domain/effort.ts';
import { createCheckHarness } from './harness.ts';
import { numberedDiff } from './numbered-diff.ts';
import { ENVIRONMENT, INDEX, INSTALLED_FILE, startScriptedModel } from './scripted-model.fixture.ts';
import type { Scripted, ScriptedModel } from './scripted-model.fixture.ts';
import { Workspace, overlayChange } from './workspace.ts';

let directory = '';
const models: ScriptedModel[] = [];

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'hone-report-'));
  await mkdir(join(directory, 'package/lib'), { recursive: true });
  await mkdir(join(directory, 'package/node_modules/other'), { recursive: true });
  const root = join(directory, 'package');
  await writeFile(join(directory, 'secret.txt'), 'outside');
  await writeFile(join(root, 'lib/copy.js'), INSTALLED_FILE);
  await writeFile(
    join(root, 'lib/long.js'),
    Array.from({ length: 500 }, (_, index) => `const line${index + 1} = ${index + 1};`).join('\n'),
  );
  await writeFile(join(root, 'lib/binary.bin'), Buffer.from([1, 0, 2]));
  await writeFile(join(root, 'lib/huge.js'), 'x'.repeat(1024 * 1024 + 1));
  await writeFile(join(root, 'lib/backtrack.txt'), 'a'.repeat(40));
  await writeFile(join(root, 'node_modules/other/index.js'), 'copy(hidden)');
  await symlink(join(directory, 'secret.txt'), join(root, 'lib/link.txt'));
});
afterAll(() => rm(directory, { recursive: true, force: true }));
afterEach(async () => {
  for (const model of models.splice(0)) await model.close();
});

async function report(
  script: readonly Scripted[],
  options: { lookups?: 'on' | 'off'; maxTurns?: number; maxLookups?: number; effort?: Effort } = {},
) {
  const { lookups: _lookups, maxTurns = 20, maxLookups, effort } = options;
  const model = await startScriptedModel(script, {
    budget: { maxTurns, ...(maxLookups === undefined ? {} : { maxLookups }) },
    ...(effort === undefined ? {} : { effort }),
  });
  models.push(model);
  const harness = createCheckHarness({
    strategy: 'report',
    lookups: options.lookups ?? 'on',
    openPackage: () => Promise.resolve({ directory: join(directory, 'package'), index: INDEX }),
  });
  const submission = await harness.run(ENVIRONMENT, model.context);
  return { submission, model, last: model.requests.at(-1)?.body.messages ?? [] };
}

const FINDING = {
  file: 'lib/copy.js',
  startLine: 5,
  endLine: 5,
  severity: 'high',
  category: 'off-by-one',
  title: 'Reads past the end',
  description: 'i reaches list.length.',
};
const submit = (...findings: unknown[]): Scripted => ({ calls: [{ name: 'submit', arguments: { findings } }] });

describe('report', () => {
  test('reads around the change, then submits', async () => {
    const { submission, last, model } = await report([
      {
        calls: [
          { name: 'definition', arguments: { name: 'copy', line: 6 } },
          { name: 'read', arguments: { path: 'lib/copy.js', startLine: 3, endLine: 6 } },
        ],
      },
      { calls: [{ name: 'search', arguments: { pattern: 'write(' } }] },
      submit(FINDING),
    ]);
    expect(submission).toEqual({
      valid: true,
      findings: [FINDING],
      end: 'finished',
      turns: 3,
      lookups: [{ line: 6, name: 'copy', found: true }],
    });
    expect(model.requests[0]?.body.tools?.map((entry) => entry.function.name)).toEqual([
      'read',
      'search',
      'definition',
      'submit',
    ]);
    const answers = last.filter((message) => message.role === 'tool');
    expect(answers.map((message) => message.tool_call_id)).toEqual(['call_0_0', 'call_0_1', 'call_1_0']);
    expect(answers[0]?.content).toContain('function copy in lib/copy.js\n   10  function copy(source, target) {');
    // The workspace shows the file after the change.
    expect(answers[1]?.content).toContain('    5    for (let i = 0; i <= list.length; i++) {');
    expect(answers[2]?.content).toBe('lib/copy.js:11  return write(target, source);');
  });

  test('definitions end with the budget, and the level of effort stands before the change', async () => {
    const definition: Scripted = { calls: [{ name: 'definition', arguments: { name: 'copy', line: 6 } }] };
    const script = [definition, definition, submit()];
    const { submission, last } = await report(script, { maxLookups: 1, effort: 'low' });
    expect(submission.lookups).toHaveLength(1);
    expect(last.filter(({ role }) => role === 'tool').at(1)?.content).toBe(
      'No look-up is left; go on with what you have seen.',
    );
    expect(last[1]?.content).toMatch(/^effort: low\nPackage files@1\.0\.0/u);
    const { submission: free } = await report(script);
    expect(free.lookups).toHaveLength(2);
  });

  test('the final list may come as a fenced message, also an empty one', async () => {
    const { submission } = await report([`Nothing is wrong.\n\`\`\`json\n{"findings": []}\n\`\`\``]);
    expect(submission).toMatchObject({ valid: true, findings: [], end: 'finished' });
  });

  test('an unreadable report gets one repair turn that says what is wrong', async () => {
    const repaired = await report([submit({ ...FINDING, category: 'typo' }), submit(FINDING)]);
    expect(repaired.submission).toMatchObject({ valid: true, turns: 2 });
    expect(repaired.last.at(-1)?.content).toMatch(/findings\.0\.category/);
    const backwards = await report([submit({ ...FINDING, startLine: 6 }), submit()]);
    expect(backwards.last.at(-1)?.content).toMatch(/before it starts/);
    const voided = await report(['I found a bug.', '{"findings": [}']);
    expect(voided.submission).toMatchObject({ valid: false, findings: [], end: 'malformed', turns: 2 });
  });

  test('a mistaken tool call is told and costs no repair', async () => {
    const { submission, last } = await report([
      {
        calls: [
          { name: 'read', arguments: '{' },
          { name: 'read', arguments: { path: '../secret.txt' } },
          { name: 'delete', arguments: {} },
        ],
      },
      'not json',
      submit(),
    ]);
    expect(submission).toMatchObject({ valid: true, end: 'finished' });
    expect(last.filter((message) => message.role === 'tool').map((message) => message.content)).toEqual([
      'The arguments of read are not valid JSON.',
      '"../secret.txt" is not a path relative to the package root with forward slashes.',
      'There is no tool delete; use read, search, definition or submit.',
    ]);
  });

  test('without look-ups only submit is offered; the last turn is announced; no report is invalid', async () => {
    const { submission, model, last } = await report(
      [{ calls: [{ name: 'read', arguments: { path: 'lib/copy.js' } }] }, { calls: [{ name: 'read', arguments: {} }] }],
      { lookups: 'off', maxTurns: 2 },
    );
    expect(model.requests[0]?.body.tools?.map((entry) => entry.function.name)).toEqual(['submit']);
    expect(last.at(-1)?.content).toMatch(/only tool is submit\.\n\[last turn/);
    expect(submission).toMatchObject({ valid: false, findings: [], end: 'turn-budget' });
  });
});

describe('numbered diff', () => {
  test('new lines carry their numbers, old ones none, neighbours form one block', () => {
    expect(numberedDiff(ENVIRONMENT).split('\n').slice(3)).toEqual([
      '    3   async function copyAll(list, target) {',
      '    4     const limit = 10;',
      '      -   for (let i = 0; i < list.length; i++) {',
      '      -     copy(list[i], target);',
      '    5 +   for (let i = 0; i <= list.length; i++) {',
      '    6 +     copy(target, list[i]);',
      '    7     }',
      '    8   }',
    ]);
  });
});

describe('workspace', () => {
  const open = () => Workspace.open(join(directory, 'package'), ENVIRONMENT);

  test('the change lies over the installed file, which must agree elsewhere', () => {
    const changed = overlayChange(INSTALLED_FILE, ENVIRONMENT);
    expect(changed).toBe(
      INSTALLED_FILE.replace('i < list', 'i <= list').replace('copy(list[i], target)', 'copy(target, list[i])'),
    );
    expect(overlayChange(changed, ENVIRONMENT)).toBe(changed);
    expect(overlayChange(INSTALLED_FILE.replaceAll('\n', '\r\n'), ENVIRONMENT)).toBe(changed.replaceAll('\n', '\r\n'));
    expect(() => overlayChange(INSTALLED_FILE.replace('limit', 'max'), ENVIRONMENT)).toThrow(/Line 4/);
    expect(() => overlayChange('short', ENVIRONMENT)).toThrow(/Line 3/);
  });

  test.each([
    '../secret.txt',
    '/etc/passwd',
    'lib/../../secret.txt',
    'lib//copy.js',
    './lib/copy.js',
    'lib/./copy.js',
    'lib\\copy.js',
    '',
    'lib/link.txt',
    'lib',
    'lib/none.js',
    'lib/binary.bin',
    'lib/huge.js',
  ])('%j is refused', async (path) => {
    expect((await (await open()).read(path)).kind).toBe('refused');
  });

  test('long output is cut and says how to go on', async () => {
    const workspace = await open();
    const answer = await workspace.read('lib/long.js');
    expect(answer).toMatchObject({
      kind: 'text',
      text: expect.stringMatching(/\[cut: 300 more lines; read on with startLine 201\]$/),
    });
    expect(await workspace.read('lib/long.js', { startLine: 501 })).toMatchObject({ kind: 'refused' });
    expect(await workspace.search('const line')).toMatchObject({
      text: expect.stringContaining('[cut: there may be more matches'),
    });
  });

  test('another spelling of the changed file shows nothing of what was there before', async () => {
    const workspace = await open();
    for (const path of ['./', './lib', 'lib/.', '.'])
      expect(await workspace.search('copy(', { path }), path).not.toMatchObject({
        text: expect.stringContaining('copy(list[i], target)'),
      });
  });

  test('search sees the change, stays in the package, and survives a runaway pattern', async () => {
    const workspace = await open();
    expect(await workspace.search('copy(')).toEqual({
      kind: 'text',
      text: ['lib/copy.js:6  copy(target, list[i]);', 'lib/copy.js:10  function copy(source, target) {'].join('\n'),
    });
    expect(await workspace.search('^function \\w+', { isRegExp: true })).toMatchObject({
      text: 'lib/copy.js:10  function copy(source, target) {',
    });
    expect(await workspace.search('limit', { path: 'lib/copy.js' })).toMatchObject({
      text: 'lib/copy.js:4  const limit = 10;',
    });
    expect(await workspace.search('hidden')).toMatchObject({ text: 'No match.' });
    expect(await workspace.search('outside', { path: '../' })).toMatchObject({ kind: 'refused' });
    expect(await workspace.search('(', { isRegExp: true })).toMatchObject({ kind: 'refused' });
    expect(await workspace.search('(a+)+b$', { isRegExp: true, path: 'lib/backtrack.txt' })).toMatchObject({
      kind: 'refused',
      reason: expect.stringContaining('took longer'),
    });
  });
});
