/**
 * For tests only: an invented run whose numbers look like a real one's, drawn from a seed. It exercises every chart and
 * table of the report; none of it is ever shown as a result.
 */
import { createRandom } from '../domain/ids.ts';
import type { Random } from '../domain/ids.ts';
import { BUG_CATEGORIES } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';
import { compareResults, intervalsOf } from './comparison.ts';
import { alwaysSilent, reportLines } from './controls.ts';
import type { StepEvent } from './events.ts';
import { labelLineScores, rankingIntervals, summariseRanking } from './line-scores.ts';
import type { LineScore } from './line-scores.ts';
import type { ReportInput } from './report.ts';
import type { ResultTable } from './result-table.ts';
import { isElsewhereKind, restrictToKinds, scoreResults } from './scores.ts';
import type { TaskResult } from './scores.ts';
import { makeTask } from './tasks.fixture.ts';

export function inventSteps(count: number, seed: number): StepEvent[] {
  const random = createRandom(seed);
  const noise = (scale: number): number => scale * (random.next() + random.next() + random.next() - 1.5);
  return Array.from({ length: count }, (_, index): StepEvent => {
    const progress = 1 - Math.exp((-3 * index) / count);
    const precision = clip(0.45 + 0.1 * progress + noise(0.06));
    const recall = clip(0.42 + 0.09 * progress + noise(0.06));
    const late = [
      Math.round(3000 - 800 * progress + noise(500)),
      Math.round(900 + 700 * progress + noise(300)),
      random.below(160),
    ];
    return {
      event: 'step-end',
      time: new Date(Date.UTC(2026, 0, 1, 12, 0, 4 * index)).toISOString(),
      step: index + 1,
      version: index + 1,
      metrics: {
        'rollout/reward_mean': (4 * precision + recall) / 5,
        'rollout/precision': precision,
        'rollout/recall': recall,
        'rollout/f_beta': (1.25 * precision * recall) / (0.25 * precision + recall),
        'rollout/turns_mean': 4.4 + progress + noise(0.4),
        'rollout/tokens_mean': 320 + 40 * progress + noise(20),
        'rollout/invalid_share': clip(0.02 * (1 - progress)),
        'rollout/lookup_rate_elsewhere': index % 17 === 3 ? null : clip(0.2 + 0.35 * progress + noise(0.08)),
        'rollout/lookup_rate_other': clip(0.18 - 0.08 * progress + noise(0.03)),
        'rollout/groups_with_variance': clip(0.84 - 0.2 * progress + noise(0.08)),
        'rollout/groups_dropped': { 'zero-variance': 2 + random.below(4), 'too-stale': random.below(2) },
        'rollout/staleness_histogram': late,
        'policy/entropy': Math.max(0.1, 0.62 - 0.2 * progress + noise(0.04)),
        'policy/singleton_share': clip(0.31 + 0.12 * progress + noise(0.03)),
        'policy/kept_size_mean': 3.4 - 0.7 * progress + noise(0.2),
        'reward/precision_weight': 3.5,
        'train/loss': noise(0.05),
        'train/gradient_norm': 0.4 + Math.abs(noise(0.3)),
        'train/learning_rate': 2e-4,
        'train/tokens': late.reduce((sum, tokens) => sum + tokens, 0),
        'train/mismatch_by_staleness': [
          { staleness: 0, tokens: late[0] ?? 0, k3: 0, max_abs_delta: 0 },
          {
            staleness: 1,
            tokens: late[1] ?? 0,
            k3: 2e-4 + Math.abs(noise(1e-4)),
            max_abs_delta: 0.11 + Math.abs(noise(0.05)),
          },
          {
            staleness: 2,
            tokens: late[2] ?? 0,
            k3: 6e-4 + Math.abs(noise(4e-4)),
            max_abs_delta: 0.2 + Math.abs(noise(0.1)),
          },
        ],
        'speed/sampled_tokens_per_second': 2600 + noise(300),
        'speed/trained_tokens_per_second': 5200 + noise(700),
        'speed/time_split_ms': {
          wait: 300 + random.below(400),
          train: 1900 + random.below(500),
          publish: 90 + random.below(40),
          checkpoint: 60,
        },
        'sync/delta_bytes': index % 20 === 0 ? null : Math.round(180_000 - 60_000 * progress + noise(9000)),
        'sync/changed_share': clip(0.05 - 0.02 * progress + noise(0.004)),
        'sync/pause_ms': 3 + Math.abs(noise(2)),
      },
    };
  });
}

export function inventTable(taskCount: number, seed: number): ResultTable {
  const random = createRandom(seed);
  const tasks = Array.from({ length: taskCount }, (_, index) => inventTask(`task-${index}`, random));
  const weak = inventLines(tasks, random, 0.25);
  const strong = inventLines(tasks, random, 0.45);
  const before = withLookups(reportLines({ tasks, lines: weak }, { threshold: 0.95 }), random, {
    elsewhere: 0.22,
    other: 0.2,
  });
  const after = withLookups(reportLines({ tasks, lines: strong }, { threshold: 0.9 }), random, {
    elsewhere: 0.6,
    other: 0.12,
  });
  const greedy = withLookups(reportLines({ tasks, lines: strong }, { threshold: 0.95 }), random, {
    elsewhere: 0.6,
    other: 0.12,
  });
  const options = { seed: 1, resamples: 400 };
  const row = (
    label: string,
    role: 'policy' | 'control',
    results: readonly TaskResult[],
  ): ResultTable['rows'][number] => ({
    label,
    role,
    scores: scoreResults(results),
    intervals: intervalsOf(results, options),
  });
  const elsewhere = (results: readonly TaskResult[]): TaskResult[] => restrictToKinds(results, isElsewhereKind);
  return {
    title: 'held-out packages',
    tasks: taskCount,
    packages: 12,
    beta: 0.5,
    resamples: options.resamples,
    rows: [
      row('before, sampled', 'policy', before),
      row('after, sampled', 'policy', after),
      row('after, greedy', 'policy', greedy),
      row('after, look-ups disabled', 'policy', reportLines({ tasks, lines: strong }, { threshold: 1 })),
      row('always silent', 'control', alwaysSilent(tasks)),
      row('n-gram classifier', 'control', reportLines({ tasks, lines: weak }, { threshold: 0.85 })),
      row('before, threshold tuned', 'control', reportLines({ tasks, lines: weak }, { threshold: 0.9 })),
    ],
    differences: [
      { label: 'after - before, sampled', scope: 'all', intervals: compareResults({ before, after }, options) },
      {
        label: 'after - before, sampled',
        scope: 'elsewhere',
        intervals: compareResults({ before: elsewhere(before), after: elsewhere(after) }, options),
      },
      { label: 'greedy - sampled', scope: 'all', intervals: compareResults({ before: after, after: greedy }, options) },
    ],
    rankings: [
      { label: 'before', summary: summariseRanking(weak), intervals: rankingIntervals({ scores: weak }, options) },
      { label: 'after', summary: summariseRanking(strong), intervals: rankingIntervals({ scores: strong }, options) },
    ],
    rankingDifferences: [
      { label: 'after - before', intervals: rankingIntervals({ scores: strong, before: weak }, options) },
    ],
  };
}

export function inventReport(seed: number): ReportInput {
  return {
    title: 'nano-check',
    subtitle: 'An invented run: every number on this page is made up.',
    facts: [
      { name: 'model', value: 'models/nano, 3.4M parameters' },
      { name: 'tasks', value: '2,168 functions of 13 packages' },
      { name: 'seed', value: String(seed) },
      { name: 'time', value: '6 min 12 s on 2 cores' },
    ],
    steps: inventSteps(90, seed),
    table: inventTable(150, seed),
    files: [
      { name: 'weights', path: 'runs/nano-check/weights' },
      { name: 'events', path: 'runs/nano-check/events.jsonl' },
    ],
  };
}

function inventTask(id: string, random: Random): Task {
  const lines = 3 + random.below(3);
  const bug = random.next() < 1 / 3 ? -1 : random.below(lines);
  return makeTask(
    id,
    Array.from({ length: lines }, (_, position) => {
      const kind = random.pick(BUG_CATEGORIES);
      return [position + 1, kind, position === bug ? 'bug' : 'inverse'] as const;
    }),
  );
}

function inventLines(tasks: readonly Task[], random: Random, skill: number): LineScore[] {
  const scores = tasks.map(({ environment, gold }) =>
    environment.changes.map(({ line }) => random.next() + (gold.bugs[0]?.startLine === line ? skill : 0)),
  );
  return labelLineScores(tasks, scores);
}

function withLookups(
  results: readonly TaskResult[],
  random: Random,
  rates: { elsewhere: number; other: number },
): TaskResult[] {
  return results.map((result) => {
    const lookups = result.task.metadata.edits
      .filter(({ kind }) => random.next() < (isElsewhereKind(kind) ? rates.elsewhere : rates.other))
      .map(({ line }) => ({ line, name: 'x', found: true }));
    const turns = result.task.metadata.edits.length + lookups.length;
    const cost = { tokens: 300 + 20 * turns, sampledTokens: 2 * turns, turns, toolSeconds: 0 };
    return { ...result, submission: { ...result.submission, lookups }, cost };
  });
}

function clip(value: number): number {
  return Math.min(1, Math.max(0, value));
}
