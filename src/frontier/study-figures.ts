/**
 * The pictures of a study that compare where the arms end: gain against saving with the target directions, the same for
 * wrong starting prices, and the direction of each problem. Each carries its numbers as a table.
 */
import { percentile } from '../domain/statistics.ts';
import { effortTitle, mainArms, targetDirection } from './study-arms.ts';
import type { DrawnArm } from './study-arms.ts';
import { STUDY_EFFORTS } from './study-record.ts';
import type { StudyRecord } from './study-record.ts';
import { problemMoves } from './study-summary.ts';
import type { Move } from './study-summary.ts';
import type { Figure, LegendEntry, Panel } from './xy-chart.ts';
import type { Point } from './xy-frame.ts';
import type { Layer } from './xy-layers.ts';
import { formatNumber } from './xy-scale.ts';
import type { Range } from './xy-scale.ts';

interface ArmOutcomes extends DrawnArm {
  /** By effort. */
  readonly outcomes: readonly (readonly Move[])[];
}

const EFFORTS = STUDY_EFFORTS.map((_, effort) => effort);
/** Below this length of (saving, gain) a direction is noise. */
const LEAST_IMPROVEMENT = 0.05;

/** One dot a problem and arm, the mean of each arm, and the target directions as rays; one panel an effort. */
export function gainAgainstSaving(record: StudyRecord): Figure {
  const arms = mainArms(record.plan).map((drawn): ArmOutcomes => ({ ...drawn, outcomes: outcomesOf(record, drawn) }));
  const shown = shownRanges(arms);
  let beyond = 0;
  const panels = EFFORTS.map((effort): Panel => {
    const rays = arms.flatMap(({ arm, look }): Layer[] => {
      const target = targetDirection(arm);
      if (target === undefined) return [];
      const to = { x: 10 * target.saving, y: 10 * target.gain };
      return [
        {
          kind: 'segments',
          look: { ...look, dash: 'solid' },
          segments: [{ from: { x: 0, y: 0 }, to }],
          width: 1.2,
          opacity: 0.6,
        },
      ];
    });
    const dots = arms.map(({ look, outcomes }): Layer => {
      const points = (outcomes[effort] ?? []).map(({ saving, gain }) => pulledInside({ x: saving, y: gain }, shown));
      beyond += points.filter(({ isPulled }) => isPulled).length;
      return { kind: 'marks', look, points, size: 2.2, opacity: 0.5 };
    });
    const means = arms.map(({ look, outcomes }): Layer => {
      const { saving, gain } = meanOutcome(outcomes[effort] ?? []);
      return { kind: 'marks', look, points: [{ x: saving, y: gain }], size: 5.5, hasRim: true };
    });
    return {
      title: effortTitle(effort),
      summary: `${effortTitle(effort)}, mean relative cost saving and success gain: ${arms.map((arm) => sayMean(arm, effort)).join('; ')}.`,
      x: { label: 'relative cost saving', format: 'percent', ...shown.x },
      y: { label: 'relative success gain', format: 'percent', ...shown.y },
      layers: [...rays, ...dots, ...means],
      isEqualAspect: true,
    };
  });
  const legend = arms.map(({ name, look, arm }): LegendEntry => {
    const isFixed = arm.rule.kind === 'fixed';
    return { name, look: { ...look, dash: 'solid' }, shows: isFixed ? 'mark' : 'both' };
  });
  const seeds = Math.max(1, ...arms.map(({ arm }) => arm.seeds));
  const edge =
    beyond === 0 ? '' : ` ${beyond} dots lie beyond the frame and are drawn on its edge, in their own direction.`;
  return {
    id: 'gain-against-saving',
    title: 'Where each problem ends: success gained against cost saved',
    caption: `Each small mark is one problem at the last step${seeds > 1 ? `, averaged over ${seeds} seeds` : ''}; the large mark is the arm's mean. A line from the origin is the direction that its α asks for: marks on their line have landed where they were sent. A fixed price asks for no direction: its crosses show what it takes instead.${edge}`,
    legend,
    panels,
    table: outcomeTable(arms),
  };
}

/** Mean (saving, gain) of a list; NaN for an empty one. */
function meanOutcome(outcomes: readonly Move[]): { saving: number; gain: number } {
  let [saving, gain] = [0, 0];
  for (const outcome of outcomes) {
    saving += outcome.saving / outcomes.length;
    gain += outcome.gain / outcomes.length;
  }
  return outcomes.length === 0 ? { saving: Number.NaN, gain: Number.NaN } : { saving, gain };
}

function outcomesOf(record: StudyRecord, { index }: Pick<DrawnArm, 'index'>): Move[][] {
  return EFFORTS.map((effort) => problemMoves(record, { arm: index, effort }));
}

/** Angle of each problem's (saving, gain) from the saving axis, in degrees, against the target's; one panel an effort. */
export function directionFigure(record: StudyRecord): Figure {
  const arms = mainArms(record.plan).map((drawn): ArmOutcomes => ({ ...drawn, outcomes: outcomesOf(record, drawn) }));
  // The fixed price has no target; it stands apart, to the left.
  const fixedPlace = -24;
  const spread = (place: number, count: number): number => (count <= 1 ? 0 : 10 * (place / (count - 1) - 0.5));
  const rows: string[][] = [];
  const panels = EFFORTS.map((effort): Panel => {
    const columns = arms.map(({ arm, look, name, outcomes }) => {
      const target = targetDirection(arm);
      const place = target === undefined ? fixedPlace : toDegrees(Math.atan2(target.gain, target.saving));
      const angles = (outcomes[effort] ?? [])
        .filter(({ saving, gain }) => Math.hypot(saving, gain) > LEAST_IMPROVEMENT)
        .map(({ saving, gain }) => angleNear(target === undefined ? 90 : place, { saving, gain }));
      const sorted = Float64Array.from(angles).sort();
      const at = (share: number): number => (sorted.length === 0 ? Number.NaN : percentile(sorted, share));
      const summary = { low: at(0.1), middle: at(0.5), high: at(0.9) };
      rows.push([
        `${name}, ${STUDY_EFFORTS[effort]}`,
        target === undefined ? 'none' : degrees(place),
        degrees(summary.middle),
        `${degrees(summary.low)} to ${degrees(summary.high)}`,
        String(angles.length),
      ]);
      return { look, name, place, angles, summary };
    });
    const layers = columns.flatMap(({ look, place, angles, summary }): Layer[] => [
      {
        kind: 'marks',
        look,
        size: 1.8,
        opacity: 0.45,
        points: angles.map((angle, index) => ({ x: place + spread(index, angles.length), y: angle })),
      },
      {
        kind: 'error-bars',
        look: { colour: 'ink' },
        points: [{ x: place, y: summary.middle, yLow: summary.low, yHigh: summary.high }],
      },
      { kind: 'marks', look, points: [{ x: place, y: summary.middle }], size: 4.5, hasRim: true },
    ]);
    const diagonal: Layer = {
      kind: 'segments',
      look: { colour: 'soft', dash: 'dashed' },
      segments: [{ from: { x: -8, y: -8 }, to: { x: 98, y: 98 } }],
      width: 1.2,
    };
    const said = columns.map(({ name, summary }) => `${name} ${degrees(summary.middle)}`);
    return {
      title: effortTitle(effort),
      summary: `${effortTitle(effort)}, median direction of the problems: ${said.join(', ')}.`,
      x: {
        label: 'direction asked for, degrees (fixed price: none, at the left)',
        format: 'number',
        low: -36,
        high: 104,
        ticks: [0, 45, 90],
      },
      y: {
        label: 'direction taken, degrees: 0 saves cost only, 90 gains success only',
        format: 'number',
        low: -60,
        high: 180,
        ticks: [-45, 0, 45, 90, 135, 180],
      },
      layers: [diagonal, ...layers],
    };
  });
  return {
    id: 'directions',
    title: 'Direction of each problem against the one that was asked for',
    caption: `Small marks are problems that moved by more than ${100 * LEAST_IMPROVEMENT} points, the large mark is their median, the bar reaches from the 10th to the 90th percentile. On the dashed line a problem went exactly where it was sent. Above 90 degrees it got dearer, below 0 it lost success.`,
    legend: arms.map(({ name, look }): LegendEntry => ({ name, look, shows: 'mark' })),
    panels,
    table: { heads: ['arm and effort', 'asked for', 'median', '10th to 90th percentile', 'problems'], rows },
  };
}

/** What both axes show: all means, the origin, and all but the outermost hundredth of the steered dots. */
function shownRanges(arms: readonly ArmOutcomes[]): { x: Range; y: Range } {
  const steered = arms.filter(({ arm }) => arm.rule.kind === 'steered').flatMap(({ outcomes }) => outcomes.flat());
  const means = arms.flatMap(({ outcomes }) => outcomes.map((ofEffort) => meanOutcome(ofEffort)));
  const range = (key: 'saving' | 'gain'): Range => {
    const dots = Float64Array.from(steered, (outcome) => outcome[key]).sort();
    const core = dots.length === 0 ? [] : [percentile(dots, 0.005), percentile(dots, 0.995)];
    const ends = [...core, ...means.map((outcome) => outcome[key]).filter(Number.isFinite), 0];
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const margin = 0.05 * Math.max(high - low, 0.02);
    return { low: low - margin, high: high + margin };
  };
  return { x: range('saving'), y: range('gain') };
}

/** A point beyond the frame is moved towards the origin, which is inside, until it stands on the edge. */
function pulledInside(point: Point, { x, y }: { x: Range; y: Range }): Point & { isPulled: boolean } {
  const reach = (value: number, { low, high }: Range): number => {
    if (value > high) return high / value;
    return value < low ? low / value : 1;
  };
  const share = Math.min(reach(point.x, x), reach(point.y, y));
  return { x: share * point.x, y: share * point.y, isPulled: share < 1 };
}

function outcomeTable(arms: readonly ArmOutcomes[]): Figure['table'] {
  const rows = arms.flatMap(({ name, outcomes }) =>
    outcomes.map((ofEffort, effort) => {
      const cells = (['saving', 'gain'] as const).flatMap((key) => {
        const sorted = Float64Array.from(ofEffort, (outcome) => outcome[key]).sort();
        if (sorted.length === 0) return ['–', '–', '–'];
        const at = (share: number): string => formatNumber(percentile(sorted, share), 'signed-percent');
        return [
          formatNumber(meanOutcome(ofEffort)[key], 'signed-percent'),
          `${at(0.1)} to ${at(0.9)}`,
          `${at(0)} to ${at(1)}`,
        ];
      });
      return [`${name}, ${STUDY_EFFORTS[effort]}`, ...cells];
    }),
  );
  const columns = (what: string): string[] => [`${what}, mean`, '10th to 90th percentile', 'least to most'];
  return { heads: ['arm and effort', ...columns('saving'), ...columns('gain')], rows };
}

function sayMean({ name, outcomes }: ArmOutcomes, effort: number): string {
  const { saving, gain } = meanOutcome(outcomes[effort] ?? []);
  return `${name} ${formatNumber(saving, 'signed-percent')} and ${formatNumber(gain, 'signed-percent')}`;
}

/** The angle within half a turn of `centre`, so that none jumps from 180 to -180 degrees. */
function angleNear(centre: number, { saving, gain }: { saving: number; gain: number }): number {
  const angle = toDegrees(Math.atan2(gain, saving));
  return angle + 360 * Math.round((centre - angle) / 360);
}

function toDegrees(radians: number): number {
  return (180 * radians) / Math.PI;
}

function degrees(value: number): string {
  return Number.isNaN(value) ? '–' : `${value.toFixed(0).replace('-', '−')}°`;
}
