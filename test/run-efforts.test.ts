/**
 * Levels of effort from end to end on a tiny model: a steered run at two levels over a pool of tasks, and `hone eval
 * --efforts`, whose lines are what a frontier is fitted from.
 */
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { readSteps, runHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import type { Rollout } from '../src/domain/rollout.ts';
import { describeLanding } from '../src/eval/landing.ts';
import type { Landing } from '../src/eval/landing.ts';
import { parseCostOption, parseEvaluations } from '../src/frontier/evaluation-records.ts';
import type { ScoredRollout } from '../src/reward/scored-rollout.ts';
import { RolloutBuffer } from '../src/rollout/buffer.ts';
import { resolveConfig } from '../src/run/config.ts';
import type { EvaluationLine } from '../src/run/effort-evaluation.ts';
import { effortAt } from '../src/run/efforts.ts';
import { readEvents } from '../src/run/run-folder.ts';

const EFFORTS = ['high', 'low'];
const POOL = 6;

let directory = '';
let config = '';
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-efforts-'));
  await writeTinyModel(join(directory, 'model'));
  config = writeConfig(directory, 'model', {
    name: 'efforts',
    tasks: { maxCharacters: 240, maxLines: 10, pool: POOL },
    efforts: { low: { maxLookups: 0 }, high: { maxLookups: 4 } },
    baseline: { tasks: POOL, rolloutsPerTask: 4 },
    reward: {
      base: { kind: 'detection', precisionWeight: 2 },
      terms: [
        {
          kind: 'frontier',
          alpha: 0.25,
          costs: [{ name: 'turns', weights: { turns: 1 } }],
          startingPrice: { from: 'given', prices: { low: 0.02, high: 0.01 } },
        },
        { kind: 'budget', form: 'ramp', rampWidth: 4, kappa: 0.1, scope: 'task', weights: { turns: 1 } },
      ],
    },
    algorithm: {
      steps: 4,
      groupSize: 4,
      groupsPerStep: 4,
      learningRate: 1e-3,
      warmupSteps: 1,
      advantage: 'effort',
      deviation: 'group',
    },
    eval: { tasks: 6, controls: false },
  });
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const readJson = (path: string): unknown => JSON.parse(readFileSync(path, 'utf8'));

describe('a steered run at two levels of effort', () => {
  let run = '';
  let stderr = '';
  let stdout = '';
  beforeAll(async () => {
    const result = await runHone(['train', config], { cwd: directory });
    expect(result.code, result.stderr).toBe(0);
    stderr = result.stderr;
    stdout = result.stdout;
    run = join(directory, 'runs', 'efforts');
  });

  it('measured the starting policy at each level on the same tasks, once, and told what it found', () => {
    const { rollouts } = readJson(join(run, 'baseline.json')) as { rollouts: ScoredRollout[] };
    expect(rollouts).toHaveLength(2 * POOL * 4);
    const tasksAt = (effort: string): string[] =>
      rollouts.filter((rollout) => rollout.effort === effort).map(({ taskId }) => taskId);
    expect(tasksAt('low')).toEqual(tasksAt('high'));
    expect(new Set(tasksAt('low')).size).toBe(POOL);
    expect(rollouts.every(({ latencySeconds }) => (latencySeconds ?? 0) > 0)).toBe(true);
    const [start] = readEvents(run).filter(({ event }) => event === 'reward-start');
    const report = start?.['report'] as string[];
    for (const effort of EFFORTS) expect(report.join('\n')).toContain(`Effort ${effort}: success`);
    for (const sentence of report) expect(stderr).toContain(sentence);
    // Dividing by each group's deviation works against steering, and the owner is told.
    const [warning = 'none'] = (start?.['warnings'] ?? []) as string[];
    expect(warning).toContain("divided by each group's own deviation while a price is steered");
    expect(stderr).toContain(`warning: ${warning}`);
  });

  it('drew a level for each group from its place, bound the harness by it, and trained on the pool alone', () => {
    const resolved = resolveConfig(readJson(config), 'test');
    const buffer = RolloutBuffer.open(join(run, 'buffer.sqlite'));
    const groups = [1, 2, 3, 4].flatMap((step) => buffer.stepGroups(step));
    buffer.close();
    const rollouts: Rollout[] = groups.flatMap((group) => group.rollouts);
    expect(new Set(rollouts.map(({ effort }) => effort)).size).toBe(2);
    for (const group of groups)
      for (const { effort } of group.rollouts) expect(effort).toBe(effortAt(resolved, group.ordinal));
    for (const { effort, lookups } of rollouts) expect(lookups).toBeLessThanOrEqual(effort === 'low' ? 0 : 4);
    expect(rollouts.some(({ lookups }) => lookups > 0)).toBe(true);
    expect(new Set(rollouts.map(({ taskId }) => taskId)).size).toBeLessThanOrEqual(POOL);
    // Raw outcomes are stored; what they were worth is decided for whole batches.
    expect(rollouts.every(({ outcome, reward }) => outcome !== undefined && reward === undefined)).toBe(true);
  });

  it('recorded success, gain, saving, gap and price by level, and what the reward was made of', () => {
    for (const { metrics } of readSteps(run)) {
      const efforts = Object.keys(metrics['rollout/success'] ?? {}).toSorted();
      expect(EFFORTS).toEqual(expect.arrayContaining(efforts));
      for (const key of ['cost_saving', 'log_price', 'gap'] as const)
        expect(Object.keys(metrics[`frontier/${key}`] ?? {}).toSorted()).toEqual(
          efforts.map((effort) => `${effort}/turns`),
        );
      expect(Object.keys(metrics['frontier/success_gain'] ?? {}).toSorted()).toEqual(efforts);
      for (const effort of efforts) {
        const gain = metrics['frontier/success_gain']?.[effort] ?? Number.NaN;
        const saving = metrics['frontier/cost_saving']?.[`${effort}/turns`] ?? Number.NaN;
        expect(metrics['frontier/gap']?.[`${effort}/turns`]).toBeCloseTo(0.75 * gain - 0.25 * saving, 12);
      }
      const components = metrics['reward/components'] ?? {};
      expect(Object.keys(components)).toEqual(['precision', 'recall', 'frontier', 'budget', 'cheating']);
      expect(components['frontier']).toBeLessThan(0);
      const sum = Object.values(components).reduce((total, part) => total + part, 0);
      expect(sum).toBeCloseTo(metrics['rollout/reward_mean'], 12);
    }
  });

  it('evaluated each level before and after, and draws where the run lands', () => {
    for (const effort of EFFORTS)
      for (const moment of ['before', 'after'])
        for (const mode of ['sampled', 'greedy'])
          expect(existsSync(join(run, 'eval', `${moment}-${mode}-${effort}.json`))).toBe(true);
    const { rows } = readJson(join(run, 'results.json')) as { rows: { label: string }[] };
    expect(rows.map(({ label }) => label)).toContain('after, sampled, low');
    const page = readFileSync(join(run, 'report.html'), 'utf8');
    expect(page).toContain('gain : saving = 0.25 : 0.75');
    expect(page).not.toMatch(/NaN|undefined|\[object/u);
  });

  it('says where each level landed, in results.json, in the terminal and on the page', () => {
    const { landings } = readJson(join(run, 'results.json')) as { landings: Landing[] };
    expect(landings.map(({ effort }) => effort)).toEqual(['low', 'high']);
    const page = readFileSync(join(run, 'report.html'), 'utf8');
    const last = readSteps(run).slice(-1);
    for (const landing of landings) {
      expect(landing.alpha).toBe(0.25);
      expect(landing.costs.map(({ name }) => name)).toEqual(['turns']);
      const line = describeLanding(landing);
      expect(line).toMatch(
        new RegExp(`^Landing, ${landing.effort} effort: success .*, turns saved .* where alpha 0.25 asks for 18`, 'u'),
      );
      expect(stdout.split('\n')).toContain(line);
      expect(page).toContain(line);
      const gain = last[0]?.metrics['frontier/success_gain']?.[landing.effort];
      expect(landing.training?.successGain).toBe(gain);
    }
    expect(landings.some(({ training }) => training !== null)).toBe(true);
  });
});

describe('hone eval --efforts', () => {
  it('writes one line a rollout, paired by task and attempt, that a frontier can be fitted from', async () => {
    const out = join(directory, 'evaluations.jsonl');
    const args = ['eval', 'model', '--config', config, '--efforts', '--tasks', '5', '--rollouts', '2', '--out', out];
    const result = await runHone([...args, '--json'], { cwd: directory });
    expect(result.code, result.stderr).toBe(0);
    const text = readFileSync(out, 'utf8');
    const lines = text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as EvaluationLine);
    expect(lines).toHaveLength(2 * 5 * 2);
    const places = (effort: string): string[] =>
      lines.filter((line) => line.effort === effort).map(({ task, attempt }) => `${task} ${attempt}`);
    expect(places('low')).toEqual(places('high'));
    expect(new Set(places('low')).size).toBe(10);
    for (const { effort, precision, recall, success, cost } of lines) {
      // The config weighs precision twice as much as recall.
      expect(success).toBeCloseTo((2 * precision + recall) / 3, 12);
      expect(cost.turns).toBeGreaterThan(0);
      if (effort === 'low') expect(cost.lookups).toBe(0);
    }
    const records = parseEvaluations(text, { origin: out, cost: parseCostOption('turns') });
    expect(records.map(({ success }) => success)).toEqual(lines.map(({ success }) => success));
    const summary = JSON.parse(result.stdout) as { rollouts: number; efforts: { effort: string; tasks: number }[] };
    expect(summary.rollouts).toBe(20);
    expect(summary.efforts.map(({ effort, tasks }) => [effort, tasks])).toEqual([
      ['low', 5],
      ['high', 5],
    ]);
  });

  it.each([
    {
      what: 'without a file',
      args: ['--efforts'],
      message: /--efforts writes one line a rollout, .* --out evaluations/u,
    },
    { what: 'with a file alone', args: ['--out', 'x'], message: /--out is given without --efforts, .* Add --efforts/u },
    {
      what: 'with half a rollout',
      args: ['--efforts', '--out', 'x', '--rollouts', '0'],
      message: /--rollouts is 0, not a whole number from 1/u,
    },
  ])('$what is refused in one sentence', async ({ args, message }) => {
    const { code, stderr } = await runHone(['eval', 'model', '--config', config, ...args], { cwd: directory });
    expect(code).toBe(1);
    expect(stderr.trim()).toMatch(message);
  });

  it.each([
    {
      what: 'a file that is there',
      out: 'taken.jsonl',
      message: /taken\.jsonl is there already, .* another .* or remove/u,
    },
    {
      what: 'a folder that is not there',
      out: join('nowhere', 'x.jsonl'),
      message: /x\.jsonl could not be written: ENOENT.* a folder that is there/u,
    },
    { what: 'a file in a file', out: join('taken.jsonl', 'x'), message: /x could not be written: ENOTDIR/u },
  ])('refuses to write to $what before any rollout, also in a dry run', async ({ out, message }) => {
    writeFileSync(join(directory, 'taken.jsonl'), 'kept\n');
    const before = readdirSync(directory);
    for (const dry of [[], ['--dry-run']]) {
      // There is no such model: a command that got as far as loading it would say so.
      const args = ['eval', 'no-such-model', '--config', config, '--efforts', '--out', out, ...dry];
      const { code, stdout, stderr } = await runHone(args, { cwd: directory });
      expect(code).toBe(1);
      expect(stdout).toBe('');
      expect(stderr.trim()).toMatch(message);
      expect(stderr).not.toContain('no-such-model');
    }
    expect(readFileSync(join(directory, 'taken.jsonl'), 'utf8')).toBe('kept\n');
    expect(readdirSync(directory)).toEqual(before);
  });

  it('of a config that names no effort is refused', async () => {
    const plain = writeConfig(directory, 'model', { name: 'plain' });
    const { code, stderr } = await runHone(['eval', 'model', '--config', plain, '--efforts', '--out', 'x'], {
      cwd: directory,
    });
    expect(code).toBe(1);
    expect(stderr.trim()).toMatch(
      /--efforts evaluates every level of effort, and the config names none\. Name a config/u,
    );
  });
});
