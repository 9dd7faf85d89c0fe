/**
 * Which curves a run has: from its step events to charts, in the order that a reader asks about them - does it learn,
 * does it stay open, do sampler and trainer agree, what does it cost. Nothing is computed here that a step did not record.
 */
import { CHART_WIDTH, drawChart, escapeHtml } from './charts.ts';
import type { Chart, Series } from './charts.ts';
import type { StepEvent, StepMetrics } from './events.ts';
import { CHART_STYLE } from './report-style.ts';

export interface CurveGroup {
  readonly title: string;
  readonly charts: readonly Chart[];
}

type NumberKey = {
  [Key in keyof StepMetrics]-?: StepMetrics[Key] extends number | null ? Key : never;
}[keyof StepMetrics];

export interface CurveOptions {
  /** Of the F-score; 0.5 unless given. */
  readonly beta?: number;
  /** The direction that a frontier term steers in: the share of the improvement that is to be success. */
  readonly alpha?: number;
}

export function curveGroups(steps: readonly StepEvent[], options: CurveOptions = {}): CurveGroup[] {
  const { beta = 0.5, alpha } = options;
  const metric = (name: string, key: NumberKey): Series => ({
    name,
    points: steps.map(({ step, metrics }) => ({ step, value: metrics[key] })),
  });
  return [
    { title: 'Does it learn', charts: [...learningCharts(metric, beta), ...componentCharts(steps)] },
    ...(steps.some(({ metrics }) => metrics['frontier/gap'] !== undefined)
      ? [{ title: 'Where does it land', charts: frontierCharts(steps, alpha) }]
      : []),
    { title: 'Does it stay open', charts: [...opennessCharts(metric), droppedChart(steps)] },
    { title: 'Do sampler and trainer agree', charts: agreementCharts(steps) },
    { title: 'What does it cost', charts: [...costCharts(metric), timeChart(steps)] },
  ];
}

/** The six curves that tell the story of a run, as one picture that stands alone. */
export function renderCurvesSvg(steps: readonly StepEvent[], options: CurveOptions = {}): string {
  const charts = new Map(
    curveGroups(steps, options).flatMap((group) => group.charts.map((chart) => [chart.id, chart])),
  );
  const chosen = ['detection', 'reward', 'lookups', 'variance', 'entropy', 'max-delta'].flatMap(
    (id) => charts.get(id) ?? [],
  );
  const gap = 32;
  const titleHeight = 24;
  const drawings = chosen.map((chart) => ({ chart, drawing: drawChart(chart) }));
  const panelHeight = titleHeight + Math.max(0, ...drawings.map(({ drawing }) => drawing.height));
  const panels = drawings.map(({ chart, drawing }, index) => {
    const x = gap + (index % 3) * (CHART_WIDTH + gap);
    const y = gap / 2 + Math.floor(index / 3) * (panelHeight + gap / 2);
    const title = `<text class="panel" x="0" y="14">${escapeHtml(chart.title)}</text>`;
    return `<g transform="translate(${x} ${y})">${title}<g transform="translate(0 ${titleHeight})">${drawing.body}</g></g>`;
  });
  const width = gap + 3 * (CHART_WIDTH + gap);
  const height = gap + Math.ceil(chosen.length / 3) * (panelHeight + gap / 2);
  const label = `Curves of a training run over ${steps.length} steps: ${chosen.map(({ title }) => title).join(', ')}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${escapeHtml(label)}"><style>${CHART_STYLE}</style><rect class="ground" width="${width}" height="${height}" rx="8"/>${panels.join('')}</svg>\n`;
}

type MetricSeries = (name: string, key: NumberKey) => Series;

function learningCharts(metric: MetricSeries, beta: number): Chart[] {
  return [
    {
      id: 'detection',
      title: 'Detection, averaged over samples',
      caption: 'Training rollouts of each step, dropped groups included. Thin: each step; bold: moving mean.',
      form: 'lines',
      format: 'score',
      series: [
        metric('precision', 'rollout/precision'),
        metric('recall', 'rollout/recall'),
        metric(`F${beta}`, 'rollout/f_beta'),
      ],
    },
    {
      id: 'reward',
      title: 'Reward',
      caption: 'Mean over training rollouts; in [0, 1] before what terms add and take.',
      form: 'lines',
      format: 'score',
      series: [metric('reward', 'rollout/reward_mean')],
    },
    {
      id: 'lookups',
      title: 'Changed lines looked up',
      caption: 'Lines whose evidence lies elsewhere in the package, against all other changed lines.',
      form: 'lines',
      format: 'share',
      startsAtZero: true,
      series: [
        metric('evidence elsewhere', 'rollout/lookup_rate_elsewhere'),
        metric('others', 'rollout/lookup_rate_other'),
      ],
    },
  ];
}

type RecordKey = 'reward/components' | `frontier/${'success_gain' | 'cost_saving' | 'log_price' | 'gap'}`;

/** One series for each name that any step has; a step without it is a gap. */
function recordSeries(steps: readonly StepEvent[], key: RecordKey): Series[] {
  const names = new Set(steps.flatMap(({ metrics }) => Object.keys(metrics[key] ?? {})));
  return [...names].map((name) => ({
    name,
    points: steps.map(({ step, metrics }) => ({ step, value: metrics[key]?.[name] ?? null })),
  }));
}

/** Nothing where no step recorded what its reward is made of. */
function componentCharts(steps: readonly StepEvent[]): Chart[] {
  const series = recordSeries(steps, 'reward/components');
  if (series.length === 0) return [];
  return [
    {
      id: 'components',
      title: 'What the reward is made of',
      caption: 'Mean of each part; they add up to the reward. Prices and penalties lie below 0.',
      form: 'lines',
      format: 'score',
      series,
    },
  ];
}

function frontierCharts(steps: readonly StepEvent[], alpha: number | undefined): Chart[] {
  const target =
    alpha === undefined
      ? 'The target is a gap of 0.'
      : `The target direction is gain : saving = ${alpha} : ${Number((1 - alpha).toPrecision(12))}.`;
  const chart = (id: string, title: string, caption: string, key: RecordKey): Chart => ({
    id,
    title,
    caption,
    form: 'lines',
    format: 'score',
    series: recordSeries(steps, key),
  });
  return [
    chart(
      'success-gain',
      'Success gained',
      `Success over that of the starting policy at the same effort, minus 1. ${target}`,
      'frontier/success_gain',
    ),
    chart(
      'cost-saving',
      'Cost saved',
      `1 minus cost over that of the starting policy at the same effort. ${target}`,
      'frontier/cost_saving',
    ),
    chart(
      'gap',
      'Gap to the target direction',
      'Above 0 success is ahead and the price of cost rises; below 0 saving is ahead and it falls.',
      'frontier/gap',
    ),
    chart(
      'log-price',
      'Price of cost',
      'Natural logarithm of the price that the step was scored with.',
      'frontier/log_price',
    ),
  ];
}

function opennessCharts(metric: MetricSeries): Chart[] {
  return [
    {
      id: 'variance',
      title: 'Groups with variance',
      caption:
        'Groups whose rollouts differ in the raw outcome or in a count that steering prices, of all scored groups: what is left to learn from.',
      form: 'lines',
      format: 'share',
      startsAtZero: true,
      series: [metric('groups with variance', 'rollout/groups_with_variance')],
    },
    {
      id: 'entropy',
      title: 'Entropy',
      caption: 'Over the full vocabulary, in nats, mean over trained tokens.',
      form: 'lines',
      format: 'score',
      startsAtZero: true,
      series: [metric('entropy', 'policy/entropy')],
    },
    {
      id: 'singletons',
      title: 'Kept sets of one token',
      caption: 'Trained tokens that had no alternative: they carry no gradient.',
      form: 'lines',
      format: 'share',
      series: [metric('singletons', 'policy/singleton_share')],
    },
    {
      id: 'kept-size',
      title: 'Kept-set size',
      caption: 'Tokens that could have been drawn, mean over trained tokens.',
      form: 'lines',
      format: 'count',
      series: [metric('mean size', 'policy/kept_size_mean')],
    },
  ];
}

function droppedChart(steps: readonly StepEvent[]): Chart {
  const reasons = [
    ...new Set(steps.flatMap(({ metrics }) => Object.keys(metrics['rollout/groups_dropped']))),
  ].toSorted();
  return {
    id: 'dropped',
    title: 'Groups dropped, by reason',
    caption: 'Sampled but not trained; the batch was refilled.',
    form: 'lines',
    format: 'count',
    startsAtZero: true,
    series: reasons.map((name) => ({
      name,
      points: steps.map(({ step, metrics }) => ({ step, value: metrics['rollout/groups_dropped'][name] ?? 0 })),
    })),
  };
}

function agreementCharts(steps: readonly StepEvent[]): Chart[] {
  const mismatch = (key: 'k3' | 'max_abs_delta'): Series[] => {
    const seen = new Set(
      steps.flatMap(({ metrics }) => metrics['train/mismatch_by_staleness'].map(({ staleness }) => staleness)),
    );
    return [...seen]
      .toSorted((a, b) => a - b)
      .map((staleness) => ({
        name: `${staleness} late`,
        points: steps.map(({ step, metrics }) => {
          const entry = metrics['train/mismatch_by_staleness'].find((candidate) => candidate.staleness === staleness);
          return { step, value: entry === undefined || entry.tokens === 0 ? null : entry[key] };
        }),
      }));
  };
  const latest = Math.max(0, ...steps.map(({ metrics }) => metrics['rollout/staleness_histogram'].length));
  return [
    {
      id: 'k3',
      title: 'Mismatch k3 by staleness',
      caption: 'Mean of r − 1 − ln r, r = trained over sampled probability. By versions late: 0 must be exactly 0.',
      form: 'lines',
      format: 'scientific',
      startsAtZero: true,
      series: mismatch('k3'),
    },
    {
      id: 'max-delta',
      title: 'Largest |Δ log-probability|',
      caption: 'Between trainer and sampler, by how many versions late the token was sampled.',
      form: 'lines',
      format: 'score',
      startsAtZero: true,
      series: mismatch('max_abs_delta'),
    },
    {
      id: 'staleness',
      title: 'Staleness of trained tokens',
      caption: 'Share of trained tokens by versions late.',
      form: 'shares',
      format: 'count',
      series: Array.from({ length: latest }, (_, staleness) => ({
        name: `${staleness} late`,
        points: steps.map(({ step, metrics }) => ({
          step,
          value: metrics['rollout/staleness_histogram'][staleness] ?? 0,
        })),
      })),
    },
  ];
}

function costCharts(metric: MetricSeries): Chart[] {
  return [
    {
      id: 'throughput',
      title: 'Tokens per second',
      caption: 'Sampled over the wall time of the step; trained over the time of forward, backward and update.',
      form: 'lines',
      format: 'count',
      startsAtZero: true,
      series: [
        metric('sampled', 'speed/sampled_tokens_per_second'),
        metric('trained', 'speed/trained_tokens_per_second'),
      ],
    },
    {
      id: 'tokens',
      title: 'Tokens per rollout',
      caption: 'Environment included.',
      form: 'lines',
      format: 'count',
      series: [metric('tokens', 'rollout/tokens_mean')],
    },
    {
      id: 'delta',
      title: 'Weight delta',
      caption: 'Bytes published by the step, compressed; a gap where a full anchor was published.',
      form: 'lines',
      format: 'bytes',
      startsAtZero: true,
      series: [metric('delta', 'sync/delta_bytes')],
    },
    {
      id: 'changed',
      title: 'Weights changed',
      caption: 'Served weights whose bits changed in the step.',
      form: 'lines',
      format: 'share',
      startsAtZero: true,
      series: [metric('changed', 'sync/changed_share')],
    },
    {
      id: 'pause',
      title: 'Pause',
      caption: 'Sampling stood still to commit a version between two decode steps.',
      form: 'lines',
      format: 'milliseconds',
      startsAtZero: true,
      series: [metric('pause', 'sync/pause_ms')],
    },
  ];
}

function timeChart(steps: readonly StepEvent[]): Chart {
  const phases = [...new Set(steps.flatMap(({ metrics }) => Object.keys(metrics['speed/time_split_ms'])))];
  return {
    id: 'time',
    title: 'Where the time goes',
    caption: 'Share of the wall time of the step by phase; the table has milliseconds.',
    form: 'shares',
    format: 'milliseconds',
    series: phases.map((name) => ({
      name,
      points: steps.map(({ step, metrics }) => ({ step, value: metrics['speed/time_split_ms'][name] ?? 0 })),
    })),
  };
}
