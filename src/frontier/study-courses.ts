/**
 * The pictures of a study that follow training: the price of cost, the paths of single problems between the frontiers before
 * and after the skill is learned, and the cost under a price that started wrong. Each carries its numbers as a table.
 */
import { fixedLanding, steeredLanding } from './equilibrium.ts';
import { effortTitle, factorName, mainArms, slopeErrorArms } from './study-arms.ts';
import type { DrawnArm } from './study-arms.ts';
import { costCourse, exampleProblems, meanTrajectory, priceCourse } from './study-paths.ts';
import type { CourseBand } from './study-paths.ts';
import { STARTING_COSTS, STUDY_EFFORTS } from './study-record.ts';
import type { StudyRecord } from './study-record.ts';
import { STARTING_Q, successRate, successSlope, toyProblem, toyStart } from './toy-task.ts';
import type { Figure, LegendEntry, Panel } from './xy-chart.ts';
import type { Point } from './xy-frame.ts';
import type { Layer } from './xy-layers.ts';
import type { Dash, Look } from './xy-look.ts';
import { formatNumber } from './xy-scale.ts';

const EFFORTS = STUDY_EFFORTS.map((_, effort) => effort);
const MEDIUM = Math.floor(STUDY_EFFORTS.length / 2);
const MOST_TABLE_ROWS = 11;
const CURVE_POINTS = 60;

/** Price relative to its start, mean over runs and the band of the middle 80 %; one panel an effort. */
export function priceFigure(record: StudyRecord): Figure {
  const arms = mainArms(record.plan).filter(({ arm }) => arm.rule.kind === 'steered');
  const courses = EFFORTS.map((effort) =>
    arms.map((drawn) => ({ drawn, course: priceCourse(record, { arm: drawn.index, effort }) })),
  );
  const all = courses
    .flat()
    .flatMap(({ course }) => course.flatMap(({ low, high }) => [Math.exp(low), Math.exp(high)]));
  const shared = { low: 0.95 * Math.min(...all, 1), high: 1.05 * Math.max(...all, 1) };
  const panels = courses.map((lines, effort): Panel => {
    const bands = lines.map(({ drawn: { look }, course }): Layer => ({
      kind: 'band',
      look,
      opacity: 0.1,
      points: course.map(({ step, low, high }) => ({ x: step, low: Math.exp(low), high: Math.exp(high) })),
    }));
    const ends = lines.map(
      ({ drawn: { name }, course }) => `${name} ${formatNumber(Math.exp(course.at(-1)?.mean ?? Number.NaN), 'times')}`,
    );
    return {
      title: effortTitle(effort),
      summary: `${effortTitle(effort)}, price at the last step relative to its start: ${ends.join(', ')}.`,
      x: { label: 'step', format: 'number', low: 0, high: record.plan.steps },
      y: { label: 'price relative to the start', format: 'times', scale: 'log', ...shared },
      layers: [...bands, ...lines.map(({ drawn, course }) => meanLine(drawn.look, course)), endLabels(lines)],
      rightMargin: 64,
    };
  });
  return {
    id: 'price',
    title: 'What steering does to the price of cost',
    caption:
      'The price λ over training, relative to the slope that it started from, on a logarithmic axis. Lines are means over problems and seeds, shades reach from the 10th to the 90th percentile. A fixed price would be a level line at ×1. A line that levels off has settled.',
    legend: arms.map(({ name, look }): LegendEntry => ({ name, look, shows: 'line' })),
    panels,
    table: courseTable(
      courses.flatMap((lines, effort) =>
        lines.map(({ drawn, course }) => ({ name: `${drawn.name}, ${STUDY_EFFORTS[effort]}`, course })),
      ),
    ),
  };
}

/** Paths of an easy, a middle and a hard problem at medium effort between the frontiers of q = 1/2 and q = 1. */
export function trajectoryFigure(record: StudyRecord): Figure {
  const arms = mainArms(record.plan);
  const rows: string[][] = [];
  const labels = ['An easy problem', 'A middling problem', 'A hard problem'];
  const problems = exampleProblems(record);
  const start = STARTING_COSTS[MEDIUM] ?? 1;
  const panels = problems.map((index, position): Panel => {
    const problem = toyProblem(index);
    const name = problems.length === labels.length ? (labels[position] ?? '') : `Problem ${index}`;
    const paths = arms.map((drawn) => ({
      drawn,
      path: meanTrajectory(record, { arm: drawn.index, effort: MEDIUM, problem: index }),
    }));
    const costs = paths.flatMap(({ path }) => path.map(({ cost }) => cost)).filter(Number.isFinite);
    const [least, most] = [Math.max(0, 0.75 * Math.min(...costs, start)), 1.12 * Math.max(...costs, start)];
    const curve = (q: number): Point[] =>
      Array.from({ length: CURVE_POINTS + 1 }, (_, place) => {
        const cost = least + (place / CURVE_POINTS) * (most - least);
        return { x: cost, y: successRate({ ...problem, q, cost }) };
      });
    const { successes } = toyStart(problem);
    const origin = { x: start, y: successes[MEDIUM] ?? Number.NaN };
    const slope = successSlope({ ...problem, q: STARTING_Q, cost: start });
    const tangentAt = (x: number): Point => ({ x, y: origin.y + slope * (x - start) });
    for (const { drawn, path } of paths)
      rows.push([`${name.toLowerCase()}, ${drawn.name}`, ...pathCells(record, { drawn, path, index })]);
    return {
      title: `${name}: p = ${formatNumber(problem.pGood, 'number', 2)} or ${formatNumber(problem.pBad, 'number', 2)}`,
      summary: `${name}, starting at ${formatNumber(start, 'number')} candidates and ${formatNumber(origin.y, 'percent')} success: ${paths.map(({ drawn, path }) => `${drawn.name} ends at ${sayPoint(path.at(-1))}`).join('; ')}.`,
      x: { label: 'mean candidates a rollout (cost)', format: 'number', low: least, high: most },
      y: { label: 'success', format: 'percent' },
      layers: [
        { kind: 'line', look: { colour: 'soft', dash: 'dashed' }, points: curve(STARTING_Q), width: 1.4 },
        { kind: 'line', look: { colour: 'ink' }, points: curve(1), width: 1.4 },
        {
          kind: 'segments',
          look: { colour: 'ink', dash: 'dotted' },
          width: 1.6,
          segments: [{ from: tangentAt(start - 0.3 * (most - least)), to: tangentAt(start + 0.3 * (most - least)) }],
        },
        ...paths.map(({ drawn, path }): Layer => ({
          kind: 'line',
          look: { ...drawn.look, dash: drawn.look.colour === 4 ? 'dotted' : 'solid' },
          points: path.map(toPoint),
          width: 1.6,
        })),
        ...paths.map(({ drawn, path }): Layer => ({
          kind: 'marks',
          look: drawn.look,
          points: path.slice(-1).map(toPoint),
          size: 4.5,
          hasRim: true,
        })),
        { kind: 'marks', look: { colour: 'ink', isHollow: true }, points: [origin], size: 4 },
        { kind: 'labels', look: { colour: 'ink' }, side: 'below', labels: [{ ...origin, text: 'start' }] },
      ],
    };
  });
  return {
    id: 'trajectories',
    title: 'Paths of three problems, medium effort',
    caption:
      'Mean path over seeds of each arm, from the start (open circle) to the last step (mark). A candidate is right with the first p after the good action, with the second after the bad one. The dashed curve is the frontier before training (the good action in half of the rollouts), the full curve the one after the skill is learned (always the good action). The dotted line is the tangent at the start: its slope is the starting price. As the good action is learned a path rises from the dashed to the full curve; the price decides where on it.',
    legend: [
      ...arms.map(({ name, look }): LegendEntry => ({ name, look, shows: 'mark' })),
      { name: 'frontier at q = ½', look: { colour: 'soft', dash: 'dashed' }, shows: 'line' },
      { name: 'frontier at q = 1', look: { colour: 'ink' }, shows: 'line' },
      { name: 'tangent at the start', look: { colour: 'ink', dash: 'dotted' }, shows: 'line' },
    ],
    panels,
    table: {
      heads: [
        'problem and arm',
        'cost at the start',
        'cost at the end',
        'closed form',
        'success at the start',
        'success at the end',
        'closed form',
      ],
      rows,
    },
  };
}

/**
 * Cost relative to its start under right and wrong starting prices, for the fixed price and the steered rule nearest to
 * alpha = 1/2; the table has every rule. Undefined when no arm started wrong.
 */
export function wrongPriceFigure(record: StudyRecord): Figure | undefined {
  const rules = slopeErrorArms(record.plan);
  const lines = rules
    .flatMap(({ arms }) => arms)
    .map((drawn) => ({
      ...drawn,
      title: `${drawn.name}, ${factorName(drawn.arm.slopeFactor)}`,
      look: { ...drawn.look, dash: factorDash(drawn.arm.slopeFactor) },
    }));
  if (lines.length === 0) return undefined;
  const courses = EFFORTS.map((effort) =>
    lines.map((drawn) => ({ drawn, course: costCourse(record, { arm: drawn.index, effort }) })),
  );
  const alphas = rules.flatMap(({ arms: [first] }) =>
    first?.arm.rule.kind === 'steered' ? [first.arm.rule.alpha] : [],
  );
  const middle = alphas.toSorted((one, other) => Math.abs(one - 0.5) - Math.abs(other - 0.5))[0];
  const isDrawn = ({ arm: { rule } }: DrawnArm): boolean => rule.kind === 'fixed' || rule.alpha === middle;
  const panels = courses.map((ofRules, effort): Panel => {
    const ofEffort = ofRules.filter(({ drawn }) => isDrawn(drawn));
    const ends = ofEffort.map(
      ({ drawn, course }) => `${drawn.title} ${formatNumber(Math.exp(course.at(-1)?.mean ?? Number.NaN), 'times')}`,
    );
    return {
      title: effortTitle(effort),
      summary: `${effortTitle(effort)}, cost at the last step relative to the start: ${ends.join(', ')}.`,
      x: { label: 'step', format: 'number', low: 0, high: record.plan.steps },
      y: { label: 'cost relative to the start', format: 'times', scale: 'log' },
      layers: [
        ...ofEffort.map(({ drawn, course }) => meanLine(drawn.look, course)),
        ...ofEffort.map(({ drawn, course }): Layer => ({
          kind: 'marks',
          look: drawn.look,
          size: 4,
          hasRim: true,
          points: course.slice(-1).map(({ step, mean }) => ({ x: step, y: Math.exp(mean) })),
        })),
      ],
    };
  });
  return {
    id: 'wrong-price',
    title: 'When the starting price is wrong',
    caption: `Cost relative to its start over training (geometric mean over problems, logarithmic axis), for starting prices that are right (×1), too high (above) or too low (below) by a factor. A fixed price keeps its error to the end; what steering makes of the error is where its lines end.${alphas.length > 1 ? ' The numbers below have every α.' : ''}`,
    legend: lines.filter(isDrawn).map(({ title, look }): LegendEntry => ({ name: title, look, shows: 'both' })),
    panels,
    table: courseTable(
      courses.flatMap((ofEffort, effort) =>
        ofEffort.map(({ drawn, course }) => ({ name: `${drawn.title}, ${STUDY_EFFORTS[effort]}`, course })),
      ),
    ),
  };
}

function meanLine(look: Look, course: readonly CourseBand[]): Layer {
  return { kind: 'line', look, points: course.map(({ step, mean }) => ({ x: step, y: Math.exp(mean) })) };
}

function endLabels(lines: readonly { readonly drawn: DrawnArm; readonly course: readonly CourseBand[] }[]): Layer {
  const labels = lines.flatMap(({ drawn: { name, look }, course }) => {
    const last = course.at(-1);
    return last === undefined ? [] : [{ x: last.step, y: Math.exp(last.mean), text: name, look }];
  });
  return { kind: 'labels', look: { colour: 'ink' }, labels };
}

/** Right prices are full lines; errors above and below have their own dashes. */
function factorDash(factor: number): Dash {
  if (factor === 1) return 'solid';
  return factor > 1 ? 'dashed' : 'dotted';
}

function pathCells(
  { plan }: StudyRecord,
  options: { drawn: DrawnArm; path: readonly { cost: number; success: number }[]; index: number },
): string[] {
  const {
    drawn: { arm },
    path,
    index,
  } = options;
  const { pGood, pBad } = toyProblem(index);
  const q = plan.isSkillFrozen ? STARTING_Q : 1;
  const input = { pGood, pBad, startingCost: STARTING_COSTS[MEDIUM] ?? 1, q };
  const landing =
    arm.rule.kind === 'fixed'
      ? fixedLanding({ ...input, slopeFactor: arm.slopeFactor })
      : steeredLanding({ ...input, alpha: arm.rule.alpha });
  const [first, last] = [path[0], path.at(-1)];
  const cost = (value: number | undefined): string => formatNumber(value ?? Number.NaN, 'number');
  const success = (value: number | undefined): string => formatNumber(value ?? Number.NaN, 'percent');
  return [
    cost(first?.cost),
    cost(last?.cost),
    cost(landing.cost),
    success(first?.success),
    success(last?.success),
    success(landing.success),
  ];
}

/** Factors relative to the start at up to eleven steps, a column a step. */
function courseTable(
  lines: readonly { readonly name: string; readonly course: readonly CourseBand[] }[],
): Figure['table'] {
  const steps = thin(lines[0]?.course.map(({ step }) => step) ?? []);
  const rows = lines.map(({ name, course }) => {
    const byStep = new Map(course.map(({ step, mean }) => [step, mean]));
    return [name, ...steps.map((step) => formatNumber(Math.exp(byStep.get(step) ?? Number.NaN), 'times'))];
  });
  return { heads: ['mean at step', ...steps.map(String)], rows };
}

function thin(steps: readonly number[]): number[] {
  if (steps.length <= MOST_TABLE_ROWS) return [...steps];
  const stride = (steps.length - 1) / (MOST_TABLE_ROWS - 1);
  return Array.from({ length: MOST_TABLE_ROWS }, (_, index) => steps[Math.round(index * stride)] ?? 0);
}

function toPoint({ cost, success }: { cost: number; success: number }): Point {
  return { x: cost, y: success };
}

function sayPoint(point: { cost: number; success: number } | undefined): string {
  if (point === undefined) return 'no point';
  return `${formatNumber(point.cost, 'number')} candidates and ${formatNumber(point.success, 'percent')}`;
}
