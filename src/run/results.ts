/**
 * The before/after table with its controls, made from the passes that a run folder stores. Thresholds are chosen on
 * training packages and applied to held-out ones; every interval is a paired bootstrap over the same held-out tasks.
 */
import { reportedBeta } from './reported-beta.ts';
import { tellsEffort } from './efforts.ts';
import type { LineProbabilities } from './line-scoring.ts';
import { evaluationPasses } from './run-evaluation.ts';
import type { RunFolder } from './run-folder.ts';
import { deriveSeed } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import { compareResults, intervalsOf } from '../eval/comparison.ts';
import { alwaysSilent, thresholdControl } from '../eval/controls.ts';
import { readStepEvents } from '../eval/events.ts';
import { measureLanding, pairResults } from '../eval/landing.ts';
import type { Landing } from '../eval/landing.ts';
import { labelLineScores, rankingIntervals, summariseRanking } from '../eval/line-scores.ts';
import type { LineScore } from '../eval/line-scores.ts';
import { scoreLines, trainNGramClassifier } from '../eval/n-gram-classifier.ts';
import type { DifferenceRow, RankingRow, ResultRow, ResultTable } from '../eval/result-table.ts';
import { isDirectionalKind, isElsewhereKind, restrictToKinds, scoreResults } from '../eval/scores.ts';
import type { TaskResult } from '../eval/scores.ts';
import type { Corpus } from '../tasks/corpus.ts';
import { drawTasks } from '../tasks/draw.ts';

export interface RunResults {
  readonly table: ResultTable;
}

export interface ResultsInput {
  readonly folder: RunFolder;
  readonly evalTasks: readonly Task[];
  readonly pretraining: Corpus;
}

const RESAMPLES = 2000;
/** Tasks that the n-gram classifier learns from. */
const CLASSIFIER_TASKS = 8000;

interface StoredLines {
  readonly heldout: LineProbabilities;
  readonly tuning?: LineProbabilities;
  readonly tuningTasks?: readonly Task[];
}

export function buildResults(input: ResultsInput): RunResults {
  const { folder, evalTasks } = input;
  const { config } = folder;
  const beta = reportedBeta(config.reward);
  const bootstrap = { seed: config.eval.seed, resamples: RESAMPLES, beta };
  const pass = (name: string): TaskResult[] | undefined => storedPass(folder, name);
  const row = (label: string, role: ResultRow['role'], results: readonly TaskResult[]): ResultRow => ({
    label,
    role,
    scores: scoreResults(results, { beta }),
    intervals: intervalsOf(results, bootstrap),
  });
  const difference = (
    label: string,
    before: readonly TaskResult[],
    after: readonly TaskResult[],
    scope: DifferenceRow['scope'] = 'all',
  ): DifferenceRow => {
    const keep = (kind: string): boolean =>
      scope === 'all' || (scope === 'elsewhere' ? isElsewhereKind(kind) : !isDirectionalKind(kind));
    const [from, to] =
      scope === 'all' ? [before, after] : [restrictToKinds(before, keep), restrictToKinds(after, keep)];
    return { label, scope, intervals: compareResults({ before: from, after: to }, bootstrap) };
  };

  const rows: ResultRow[] = [];
  const differences: DifferenceRow[] = [];
  for (const { name, greedy, effort } of evaluationPasses(config)) {
    const mode = `${greedy ? 'greedy' : 'sampled'}${tellsEffort(config) ? `, ${effort}` : ''}`;
    const before = pass(`before-${name}`);
    const after = pass(`after-${name}`);
    if (before !== undefined) rows.push(row(`before, ${mode}`, 'policy', before));
    if (after !== undefined) rows.push(row(`after, ${mode}`, 'policy', after));
    if (before === undefined || after === undefined) continue;
    for (const scope of ['all', 'elsewhere', 'without-directional'] as const)
      differences.push({ ...difference(`after - before, ${mode}`, before, after, scope), isHeadline: scope === 'all' });
  }
  const after = pass('after-sampled');
  const blind = pass('after-sampled-no-lookups');
  if (blind !== undefined) rows.push(row('after, look-ups taken away', 'control', blind));
  if (after !== undefined && blind !== undefined)
    for (const scope of ['all', 'elsewhere'] as const)
      differences.push({
        ...difference('after - look-ups taken away', blind, after, scope),
        isHeadline: scope === 'elsewhere',
      });

  const landings = landingsOf(folder);
  const rankings: RankingRow[] = [];
  const rankingDifferences: { label: string; intervals: RankingRow['intervals'] }[] = [];
  const rank = (label: string, scores: readonly LineScore[]): void => {
    rankings.push({ label, summary: summariseRanking(scores), intervals: rankingIntervals({ scores }, bootstrap) });
  };
  if (config.eval.controls) {
    rows.push(row('always silent', 'control', alwaysSilent(evalTasks)));
    const size = {
      count: CLASSIFIER_TASKS,
      bugShare: config.tasks.bugShare,
      elsewhereShare: config.tasks.elsewhereShare,
    };
    // It learns from the pre-training packages, as the base model did; the threshold is then chosen on lines it never saw.
    const learning = drawTasks(input.pretraining, { seed: deriveSeed(config.eval.seed, 'n-gram'), ...size });
    const classifier = trainNGramClassifier(learning, { seed: config.eval.seed });
    const before = folder.readJson('eval/before-lines.json') as StoredLines | undefined;
    const afterLines = folder.readJson('eval/after-lines.json') as StoredLines | undefined;
    const tuningTasks = before?.tuningTasks ?? [];
    const nGram = scoreLines(classifier, evalTasks);
    const tuned = (label: string, tuning: readonly LineScore[], lines: readonly LineScore[]): void => {
      const results = thresholdControl({ tuning, tasks: evalTasks, lines }, { beta }).results;
      rows.push(row(label, 'control', results));
      for (const [mode, policy] of [
        ['sampled', after],
        ['greedy', pass('after-greedy')],
      ] as const)
        if (policy !== undefined)
          differences.push({ ...difference(`${mode} - ${label}`, results, policy), isHeadline: mode === 'sampled' });
    };
    tuned('n-gram classifier', scoreLines(classifier, tuningTasks), nGram);
    if (before?.tuning !== undefined) {
      for (const [label, pick] of [
        ['before, threshold tuned', (lines: LineProbabilities) => lines.asPlayed],
        ...(config.harness.lookups === 'on'
          ? [['before, all looked up', (lines: LineProbabilities) => lines.withLookups] as const]
          : []),
      ] as const)
        tuned(
          label,
          labelLineScores(tuningTasks, pick(before.tuning)),
          labelLineScores(evalTasks, pick(before.heldout)),
        );
    }
    rank('n-gram classifier', nGram);
    for (const [moment, stored] of [
      ['before', before],
      ['after', afterLines],
    ] as const) {
      if (stored === undefined) continue;
      rank(`${moment}, as played`, labelLineScores(evalTasks, stored.heldout.asPlayed));
      rank(`${moment}, without look-ups`, labelLineScores(evalTasks, stored.heldout.withoutLookups));
      rank(`${moment}, all looked up`, labelLineScores(evalTasks, stored.heldout.withLookups));
    }
    if (before !== undefined && afterLines !== undefined)
      for (const [label, pick] of [
        ['after - before, as played', (lines: LineProbabilities) => lines.asPlayed],
        ['after - before, without look-ups', (lines: LineProbabilities) => lines.withoutLookups],
      ] as const)
        rankingDifferences.push({
          label,
          intervals: rankingIntervals(
            {
              scores: labelLineScores(evalTasks, pick(afterLines.heldout)),
              before: labelLineScores(evalTasks, pick(before.heldout)),
            },
            bootstrap,
          ),
        });
  }
  return {
    table: {
      title: 'held-out packages',
      tasks: evalTasks.length,
      packages: new Set(evalTasks.map((task) => task.environment.package)).size,
      beta,
      resamples: RESAMPLES,
      rows,
      differences,
      rankings,
      rankingDifferences,
      ...(landings.length === 0 ? {} : { landings }),
    },
  };
}

/** One an effort that was evaluated before and after; none without a frontier term or a step. */
function landingsOf(folder: RunFolder): Landing[] {
  const { config } = folder;
  const term = config.reward.terms.find(({ kind }) => kind === 'frontier');
  const steps = readStepEvents(folder.events());
  const [first] = steps;
  if (term?.kind !== 'frontier' || first === undefined) return [];
  return evaluationPasses(config).flatMap(({ name, greedy, effort }) => {
    const before = storedPass(folder, `before-${name}`);
    const after = storedPass(folder, `after-${name}`);
    if (greedy || before === undefined || after === undefined) return [];
    const columns = pairResults(
      { before, after },
      {
        base: config.reward.base,
        // What step 1 was scored with is what the starting policy measured. Null: the base reads none.
        precisionWeight: first.metrics['reward/precision_weight'] ?? 0,
        costs: term.costs,
      },
    );
    const costNames = term.costs.map((cost) => cost.name);
    return [
      measureLanding(
        { effort, alpha: term.alpha, columns, costNames, steps },
        { seed: config.eval.seed, resamples: RESAMPLES },
      ),
    ];
  });
}

function storedPass(folder: RunFolder, name: string): TaskResult[] | undefined {
  // Written by the run.
  return (folder.readJson(`eval/${name}.json`) as { results: TaskResult[] } | undefined)?.results;
}
