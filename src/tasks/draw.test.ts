import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { applyPatch } from 'diff';
import { beforeAll, expect, test } from 'vitest';

import { findInstalledPackage } from '../code/installed-packages.ts';
import { namesOnLine, receiverOnLine } from '../code/line-names.ts';
import { lookupText } from '../code/lookup-text.ts';
import { containsError, parseSource } from '../code/syntax-tree.ts';
import {
  BUG_CATEGORIES,
  type ChangedLine,
  type Edit,
  ELSEWHERE_CATEGORIES,
  type Task,
  taskSchema,
} from '../domain/task.ts';
import { type Corpus, openCorpus } from './corpus.ts';
import { drawTask, drawTasks } from './draw.ts';

let corpus: Corpus;
let tasks: Task[];

beforeAll(async () => {
  corpus = await openCorpus({ split: 'heldout', maxCharacters: 1200, maxLines: 40 });
  tasks = drawTasks(corpus, { seed: 11, count: 2500 });
}, 300_000);

interface DrawnLine {
  readonly task: Task;
  readonly edit: Edit;
  readonly change: ChangedLine;
  readonly position: number;
}

const drawnLines = (from: readonly Task[] = tasks): DrawnLine[] =>
  from.flatMap((task) =>
    task.environment.changes.map((change, position) => {
      const edit = task.metadata.edits[position];
      if (edit === undefined) throw new Error('a change has no edit');
      return { task, edit, change, position };
    }),
  );

/** How well a rule that only sees `key` tells bugs from other lines, as balanced accuracy: 0.5 is chance. */
function balancedAccuracy(lines: readonly DrawnLine[], key: (line: DrawnLine) => string): number {
  const counts = new Map<string, { bug: number; other: number }>();
  const halves = [lines.filter((_, index) => index % 2 === 0), lines.filter((_, index) => index % 2 === 1)];
  const totals = { bug: 0, other: 0 };
  for (const line of halves[0] ?? []) {
    const cell = counts.get(key(line)) ?? { bug: 0, other: 0 };
    const side = line.edit.role === 'bug' ? 'bug' : 'other';
    cell[side]++;
    totals[side]++;
    counts.set(key(line), cell);
  }
  const right = { bug: 0, other: 0 };
  const seen = { bug: 0, other: 0 };
  for (const line of halves[1] ?? []) {
    const cell = counts.get(key(line)) ?? { bug: 0, other: 0 };
    const guess = cell.bug / totals.bug > cell.other / totals.other ? 'bug' : 'other';
    const truth = line.edit.role === 'bug' ? 'bug' : 'other';
    seen[truth]++;
    if (guess === truth) right[truth]++;
  }
  return (right.bug / seen.bug + right.other / seen.other) / 2;
}

test('the same seed gives the same task, another seed another', () => {
  expect(drawTask(corpus, 3)).toEqual(drawTask(corpus, 3));
  expect(drawTask(corpus, 3).id).not.toBe(drawTask(corpus, 4).id);
  expect(drawTasks(corpus, { seed: 11, count: 20 })).toEqual(tasks.slice(0, 20));
});

test('tasks are distinct, fit the schema, and no function repeats before all were used', () => {
  expect(new Set(tasks.map(({ id }) => id)).size).toBe(tasks.length);
  for (const task of tasks.slice(0, 300)) expect(taskSchema.parse(task)).toEqual(task);
  const functions = tasks
    .slice(0, Math.min(1000, corpus.functions.length))
    .map(({ environment }) => `${environment.package} ${environment.file} ${environment.startLine}`);
  expect(new Set(functions).size).toBe(functions.length);
});

test('changes, edits and bugs agree with the lines', () => {
  for (const { environment, gold, metadata } of tasks) {
    const { changes, lines, startLine } = environment;
    expect(changes.map(({ line }) => line)).toEqual(metadata.edits.map(({ line }) => line));
    expect(changes.map(({ line }) => line)).toEqual(changes.map(({ line }) => line).toSorted((a, b) => a - b));
    for (const change of changes) {
      expect(lines[change.line - startLine]).toBe(change.after);
      expect(change.before).not.toBe(change.after);
    }
    expect(gold.bugs.map(({ startLine: line }) => line)).toEqual(
      metadata.edits.filter(({ role }) => role === 'bug').map(({ line }) => line),
    );
    expect(gold.bugs.length).toBeLessThanOrEqual(3);
    expect(changes.length).toBeGreaterThanOrEqual(2);
    expect(changes.length).toBeLessThanOrEqual(6);
  }
});

test('a third of the tasks has no bug, every category occurs, elsewhere kinds are common', () => {
  const clean = tasks.filter(({ gold }) => gold.bugs.length === 0).length / tasks.length;
  expect(clean).toBeGreaterThan(0.29);
  expect(clean).toBeLessThan(0.38);
  const categories = new Set(tasks.flatMap(({ gold }) => gold.bugs.map(({ category }) => category)));
  expect([...categories].toSorted()).toEqual([...BUG_CATEGORIES].toSorted());
  // Distinct functions come first, and those that offer such kinds before the others.
  const edits = tasks.slice(0, 1000).flatMap(({ metadata }) => metadata.edits);
  const elsewhere =
    edits.filter(({ kind }) => (ELSEWHERE_CATEGORIES as readonly string[]).includes(kind)).length / edits.length;
  expect(elsewhere).toBeGreaterThan(0.35);
});

test('a fix applies to the file after the change and gives back the right line', () => {
  let applied = 0;
  for (const { environment, gold } of tasks.slice(0, 250)) {
    const path = join(findInstalledPackage(environment.package).directory, environment.file);
    const fileLines = readFileSync(path, 'utf8').split('\n');
    fileLines.splice(environment.startLine - 1, environment.lines.length, ...environment.lines);
    const changed = fileLines.join('\n');
    for (const bug of gold.bugs) {
      const fixed = applyPatch(changed, bug.fix, { fuzzFactor: 0 });
      expect(fixed).not.toBe(false);
      const expected = environment.changes.find(({ line }) => line === bug.startLine)?.before;
      const after = String(fixed).split('\n');
      expect(after[bug.startLine - 1]).toBe(expected);
      expect(after.filter((line, index) => line !== fileLines[index])).toHaveLength(1);
      applied++;
    }
  }
  expect(applied).toBeGreaterThan(150);
});

test('the changed file still parses', () => {
  let checked = 0;
  for (const { environment } of tasks.slice(0, 60)) {
    const path = join(findInstalledPackage(environment.package).directory, environment.file);
    const original = readFileSync(path, 'utf8');
    if (original.length > 40_000) continue;
    const fileLines = original.split('\n');
    fileLines.splice(environment.startLine - 1, environment.lines.length, ...environment.lines);
    const language = environment.file.endsWith('ts') ? 'typescript' : 'javascript';
    expect(
      containsError(parseSource(fileLines.join('\n'), language)),
      `${environment.package} ${environment.file}:${environment.startLine}`,
    ).toBe(containsError(parseSource(original, language)));
    checked++;
  }
  expect(checked).toBeGreaterThan(20);
});

test('where a line stands and how long it is say nothing', () => {
  const lines = drawnLines();
  expect(balancedAccuracy(lines, ({ position }) => String(position))).toBeLessThan(0.54);
  expect(balancedAccuracy(lines, ({ change }) => String(Math.round(change.after.length / 12)))).toBeLessThan(0.56);
  expect(
    balancedAccuracy(lines, ({ change, task }) =>
      String(Math.round((5 * (change.line - task.environment.startLine)) / task.environment.lines.length)),
    ),
  ).toBeLessThan(0.54);
});

test('the four elsewhere kinds cannot be told by their kind and the direction of the edit', () => {
  const many = drawnLines(Array.from({ length: 12_000 }, (_, seed) => drawTask(corpus, seed)));
  for (const kind of ['swapped-arguments', 'unknown-property', 'contradicted-constant'] as const) {
    const lines = many.filter(({ edit }) => edit.kind === kind);
    expect(lines.length, kind).toBeGreaterThan(1000);
    const longer = ({ change }: DrawnLine): string => String(Math.sign(change.after.length - change.before.length));
    expect(balancedAccuracy(lines, longer), kind).toBeLessThan(0.57);
  }
  const lost = many.filter(
    ({ edit, change }) => edit.kind === 'missing-await' && change.after.length < change.before.length,
  );
  const share = lost.filter(({ edit }) => edit.role === 'bug').length / lost.length;
  expect(lost.length).toBeGreaterThan(60);
  expect(share).toBeGreaterThan(0.35);
  expect(share).toBeLessThan(0.65);
});

test('the first look-up decides the elsewhere kinds', async () => {
  const decided = { right: 0, all: 0 };
  for (const { task, edit, change } of drawnLines()) {
    if (!(ELSEWHERE_CATEGORIES as readonly string[]).includes(edit.kind)) continue;
    const index = await corpus.index(task.environment.package);
    const [name] = namesOnLine(change);
    const receiver = name === undefined ? undefined : receiverOnLine(change.after, name);
    const declaration =
      name === undefined
        ? undefined
        : index.lookUp(name, {
            file: task.environment.file,
            line: change.line,
            ...(receiver === undefined ? {} : { receiver }),
          });
    decided.all++;
    if (
      saysBug(edit.kind, { change, text: lookupText(name ?? '', declaration, change.after) }) ===
      (edit.role === 'bug')
    )
      decided.right++;
  }
  expect(decided.all).toBeGreaterThan(1000);
  expect(decided.right / decided.all).toBeGreaterThan(0.95);
});

/** What a reader concludes from the look-up's text alone. */
function saysBug(kind: string, { change, text }: { change: ChangedLine; text: string }): boolean {
  if (kind === 'unknown-property') return text.endsWith('is not declared in this package');
  if (kind === 'missing-await') return change.after.length < change.before.length && text.startsWith('async function');
  if (kind === 'contradicted-constant') {
    const values = / (?:=|default) (.+) here (.+)$/u.exec(text);
    return values !== null && values[1]?.replaceAll('"', "'") !== values[2]?.replaceAll('"', "'");
  }
  const bound = [...text.matchAll(/([\w$.]+) = ([^,)]+)/gu)].map(([, parameter, argument]) => [
    parameter?.toLowerCase().replace(/^_/u, ''),
    argument?.toLowerCase(),
  ]);
  return bound.some(([parameter, argument], index) => {
    const [nextParameter, nextArgument] = bound[index + 1] ?? [];
    return (
      nextArgument !== undefined &&
      (parameter === nextArgument || nextParameter === argument) &&
      parameter !== argument &&
      nextParameter !== nextArgument
    );
  });
}
