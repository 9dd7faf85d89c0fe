/**
 * The curve that a simulation starts from: frontier.json of `hone frontier fit`, or points that the user has, as JSON, JSON Lines
 * or CSV with effort, cost and success. Pure: the caller reads the file. Every bad point is refused, naming the value and
 * the cure.
 */
import { z } from 'zod';

import { effortSchema } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import { notANumber } from './evaluation-records.ts';
import { fitCurve } from './fitted-curve.ts';
import { parseFrontierFile } from './frontier-file.ts';
import type { SimulatedEffort } from './simulation.ts';
import { smoothCurve } from './smooth-curve.ts';
import type { MeasuredCurve } from './smooth-curve.ts';

export interface EffortPoint {
  readonly effort: string;
  readonly cost: number;
  /** As given; the curve may pass beside it. */
  readonly success: number;
}

export interface CurveInput {
  readonly curve: MeasuredCurve;
  /** Those that spend something, ascending by cost; with the starting prices of a fit, where there are any. */
  readonly efforts: readonly SimulatedEffort[];
  readonly points: readonly EffortPoint[];
  readonly unit: string;
  readonly isFitted: boolean;
}

const pointSchema = z.object({
  effort: effortSchema,
  cost: z.number().nonnegative(),
  success: z.number().gt(0).max(1),
});

const EXPECTED = {
  effort: 'a name in lower-case letters, digits and dashes, such as low',
  cost: 'a number from 0 up',
  success: 'a number above 0 and at most 1',
} as const;
const CURES = {
  effort: 'Name each effort, such as low, medium, high.',
  cost: 'Give the mean cost of a rollout at that effort; changes are relative to it.',
  success: 'Give the share of rollouts that succeed, such as 0.35 for 35 %; changes are relative to it.',
} as const;

/**
 * At least 2 efforts of different cost. Throws `invalid-config` on anything else: a single effort, a duplicate, a point out of
 * range (`origin:line`), a file of another form.
 */
export function parseCurve(text: string, origin: string): CurveInput {
  const content = text.replace(/^\uFEFF/u, '').trim();
  if (content === '')
    throw new HoneError('invalid-config', `${origin} is empty.`, {
      cure: 'Give frontier.json of hone frontier fit, or points with effort, cost and success.',
    });
  const whole = parseWhole(content);
  if (isRecord(whole) && 'format' in whole) return fromFit(parseFrontierFile(whole, origin), origin);
  const rows = Array.isArray(whole)
    ? whole.map((value: unknown, index) => ({ value, place: `${origin}, point ${index + 1}` }))
    : parseRows(content, origin);
  const points = rows.map(({ value, place }) => parsePoint(value, place));
  checkEfforts(points, origin);
  points.sort((left, right) => left.cost - right.cost);
  return {
    curve: fitCurve(points).curve,
    efforts: points.filter(({ cost }) => cost > 0).map(({ effort, cost }) => ({ effort, cost })),
    points,
    unit: 'cost',
    isFitted: false,
  };
}

function fromFit(fit: ReturnType<typeof parseFrontierFile>, origin: string): CurveInput {
  const points = fit.efforts.map(({ effort, cost, success }) => ({
    effort,
    cost: cost.estimate,
    success: success.estimate,
  }));
  if (fit.curve.length < 2) checkEfforts(points, origin);
  return {
    curve: smoothCurve(fit.curve),
    efforts: fit.efforts
      .filter(({ reference }) => reference !== null)
      .map(({ effort, cost, startingPrice }) => ({
        effort,
        cost: cost.estimate,
        ...(startingPrice === null ? {} : { startPrice: startingPrice.price }),
      })),
    points,
    unit: fit.cost.unit,
    isFitted: true,
  };
}

/** The value of a text that is one JSON value; undefined for JSON Lines and CSV. */
function parseWhole(content: string): unknown {
  try {
    return JSON.parse(content);
  } catch {
    return undefined;
  }
}

function parseRows(content: string, origin: string): { value: unknown; place: string }[] {
  const lines = content.split(/\r?\n/u).map((line, index) => ({ line, place: `${origin}:${index + 1}` }));
  const filled = lines.filter(({ line }) => line.trim() !== '');
  if (content.startsWith('{'))
    return filled.map(({ line, place }) => {
      try {
        const value: unknown = JSON.parse(line);
        return { value, place };
      } catch (cause) {
        const odd = notANumber(line);
        if (odd !== undefined)
          throw new HoneError(
            'invalid-config',
            `${place} has the ${odd.key} ${odd.value}, which is no number of JSON.`,
            { cure: 'Write a number, or leave the point out.', cause },
          );
        throw new HoneError('invalid-config', `${place} is not JSON: ${line.slice(0, 60)}.`, {
          cure: 'Write one point a line, such as {"effort":"low","cost":0.02,"success":0.35}.',
          cause,
        });
      }
    });
  const [head, ...rest] = filled;
  const separator = [',', ';', '\t'].find((candidate) => head?.line.includes(candidate)) ?? ',';
  const cells = (line: string): string[] => line.split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/u, '$1'));
  const names = cells(head?.line ?? '');
  const missing = Object.keys(EXPECTED).filter((name) => !names.includes(name));
  if (missing.length > 0)
    throw new HoneError(
      'invalid-config',
      `${head?.place ?? origin} has no column ${missing.join(' and no column ')}.`,
      {
        cure: 'Give a first line effort,cost,success, or JSON with these keys, or frontier.json of hone frontier fit.',
      },
    );
  return rest.map(({ line, place }) => {
    const row = cells(line);
    const cell = (name: string): string => row[names.indexOf(name)] ?? '';
    const number = (name: string): unknown => (cell(name) === '' ? undefined : asNumber(cell(name)));
    return { value: { effort: cell('effort'), cost: number('cost'), success: number('success') }, place };
  });
}

/** The text itself where it is no number, so that the error shows what was written. */
function asNumber(text: string): unknown {
  const number = Number(text);
  return Number.isNaN(number) ? text : number;
}

function parsePoint(value: unknown, place: string): EffortPoint {
  const parsed = pointSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  if (!isRecord(value))
    throw new HoneError('invalid-config', `${place} is ${JSON.stringify(value)}, not a point.`, {
      cure: 'Give points such as {"effort":"low","cost":0.02,"success":0.35}.',
    });
  if ('task' in value)
    throw new HoneError('invalid-config', `${place} is a single rollout, of task ${JSON.stringify(value['task'])}.`, {
      cure: 'Run hone frontier fit on the evaluations first; it writes the frontier.json to simulate on.',
    });
  const names = Object.keys(EXPECTED) as (keyof typeof EXPECTED)[];
  const key = names.find((name) => parsed.error.issues.some(({ path }) => path[0] === name)) ?? 'effort';
  const found = value[key];
  const what = found === undefined ? `has no ${key}` : `has the ${key} ${JSON.stringify(found)}, not ${EXPECTED[key]}`;
  throw new HoneError('invalid-config', `${place} ${what}.`, { cure: CURES[key] });
}

function checkEfforts(points: readonly EffortPoint[], origin: string): void {
  const seen = new Set<string>();
  for (const { effort } of points) {
    if (seen.has(effort))
      throw new HoneError('invalid-config', `${origin} has two points for effort ${effort}.`, {
        cure: 'Give one point an effort: its mean cost and success; hone frontier fit makes them from single rollouts.',
      });
    seen.add(effort);
  }
  if (new Set(points.map(({ cost }) => cost)).size > 1) return;
  if (points.length === 0)
    throw new HoneError('invalid-config', `${origin} has no point: there is no curve.`, {
      cure: 'Give points such as {"effort":"low","cost":0.02,"success":0.35}, one an effort.',
    });
  const has = points.length === 1 ? `one effort, ${points[0]?.effort}` : 'efforts that all cost the same';
  throw new HoneError('invalid-config', `${origin} has ${has}: one cost is no curve.`, {
    cure: 'Evaluate the policy at another effort, or add a point that you know.',
  });
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
