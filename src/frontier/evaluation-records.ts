/**
 * Evaluations of a real policy as JSON Lines: one rollout a line, with its task, its effort, whether it succeeded and what it
 * cost. Every line is read or the whole file is refused, naming the line, the value and the cure. A rollout that cheated
 * counts as a failure, and its cost counts. Pure: the caller reads the file.
 */
import { z } from 'zod';

import { effortSchema } from '../domain/effort.ts';
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import { costWeightsSchema, weightedCost } from '../reward/cost.ts';
import type { CostWeights } from '../reward/cost.ts';

const COUNTS = ['tokens', 'sampledTokens', 'turns', 'toolSeconds', 'lookups'] as const;
/** Bad lines that are told one by one; the rest are counted. */
const MOST_TOLD = 3;

export interface EvaluationRecord {
  readonly taskId: string;
  readonly effort: Effort;
  /** In [0, 1]; 0 when it cheated. */
  readonly success: number;
  /** At least 0, in the unit of the option. */
  readonly cost: number;
  readonly cheated: boolean;
}

/** How the cost of a line becomes a number: priced counts, or a number already with the name of its unit. */
export interface CostOption {
  readonly unit: string;
  readonly weights: CostWeights | null;
  /** `--cost tokens`: the unit of plain numbers, or the one count that is taken. */
  readonly isOneCount: boolean;
}

const countSchema = z.number().nonnegative();
const lineSchema = z.object({
  task: z.union([z.string().min(1), z.int()]),
  effort: effortSchema,
  success: z.union([z.boolean(), z.number().min(0).max(1)]),
  cost: z.union([
    countSchema,
    z.strictObject({
      tokens: countSchema.optional(),
      sampledTokens: countSchema.optional(),
      turns: countSchema.optional(),
      toolSeconds: countSchema.optional(),
      lookups: countSchema.optional(),
    }),
  ]),
  cheated: z.boolean().optional(),
});

const EXPECTED = {
  task: 'the name of a task',
  effort: 'a name in lower-case letters, digits and dashes, such as low',
  success: 'true, false or a number from 0 to 1',
  cost: `a number from 0 up, or an object of counts from 0 up (${COUNTS.join(', ')})`,
  cheated: 'true or false',
} as const;
const FORM = '{"task":"t1","effort":"low","success":true,"cost":0.02}';

/**
 * `tokens=0.000002,turns=0.01` prices counts; one count alone, such as `turns`, is taken as it is; any other word, such as
 * `usd`, names the unit of costs that are numbers already. Throws `invalid-config` on anything else.
 */
export function parseCostOption(text: string | undefined): CostOption {
  if (text === undefined) return { unit: 'cost', weights: null, isOneCount: false };
  if (!text.includes('=')) {
    const count = COUNTS.find((name) => name === text);
    if (count !== undefined) return { unit: count, weights: costWeightsSchema.parse({ [count]: 1 }), isOneCount: true };
    if (/^[\p{L}$€£][\w$€£ -]*$/u.test(text)) return { unit: text, weights: null, isOneCount: false };
    throw new HoneError('invalid-config', `--cost is ${JSON.stringify(text)}, neither prices nor the name of a unit.`, {
      cure: 'Give prices such as --cost tokens=0.000002,turns=0.01, or a unit such as --cost usd.',
    });
  }
  const weights: Record<string, number> = {};
  for (const part of text.split(',')) {
    const [name = '', value = '', ...rest] = part.split('=').map((piece) => piece.trim());
    const price = value === '' || rest.length > 0 ? Number.NaN : Number(value);
    if (!COUNTS.some((count) => count === name) || !(price >= 0 && Number.isFinite(price)) || name in weights)
      throw new HoneError('invalid-config', `--cost has the part ${JSON.stringify(part)}, not a price of a count.`, {
        cure: `Give each of ${COUNTS.join(', ')} at most once, with a price from 0 up, such as tokens=0.000002.`,
      });
    weights[name] = price;
  }
  const parsed = costWeightsSchema.safeParse(weights);
  if (parsed.success) return { unit: 'cost', weights: parsed.data, isOneCount: false };
  throw new HoneError('invalid-config', `--cost ${text} has no price above 0: nothing would cost anything.`, {
    cure: 'Give at least one price above 0, such as turns=0.01.',
  });
}

/**
 * Rollouts in the order of their lines; empty lines are skipped, keys that nobody reads are let through. Throws
 * `invalid-config` on an empty file and on any line that is not an evaluation: `origin:line`, the value, the cure.
 */
export function parseEvaluations(
  text: string,
  { origin, cost }: { readonly origin: string; readonly cost: CostOption },
): EvaluationRecord[] {
  const records: EvaluationRecord[] = [];
  const problems: { readonly what: string; readonly cure: string }[] = [];
  let costKind: { readonly kind: 'number' | 'object'; readonly line: number } | undefined;
  // A byte order mark is no part of the first line.
  const lines = text.replace(/^\uFEFF/u, '').split(/\r?\n/u);
  lines.forEach((content, index) => {
    if (content.trim() === '') return;
    const line = index + 1;
    const read = parseLine(content);
    if ('what' in read) {
      problems.push({ what: `${origin}:${line} ${read.what}`, cure: read.cure });
      return;
    }
    const kind = typeof read.cost === 'number' ? 'number' : 'object';
    costKind ??= { kind, line };
    if (kind !== costKind.kind) {
      problems.push({
        what: `${origin}:${line} has a cost of another form than line ${costKind.line}`,
        cure: 'Write all costs as numbers in one unit, or all as counts.',
      });
      return;
    }
    const priced = priceLine(read.cost, cost);
    // That is the option's fault and not the line's, and would be the same on every line.
    if (typeof priced !== 'number')
      throw new HoneError('invalid-config', `${origin}:${line} ${priced.what}.`, { cure: priced.cure });
    const cheated = read.cheated ?? false;
    records.push({
      taskId: String(read.task),
      effort: read.effort,
      success: cheated ? 0 : Number(read.success),
      cost: priced,
      cheated,
    });
  });
  const [first] = problems;
  if (first !== undefined) {
    const told = problems.slice(0, MOST_TOLD).map(({ what }) => what);
    const left = problems.length - told.length;
    const rest = left === 0 ? '' : `; ${left} more ${left === 1 ? 'line has a problem' : 'lines have problems'}`;
    throw new HoneError('invalid-config', `${told.join('; ')}${rest}.`, { cure: first.cure });
  }
  if (records.length === 0)
    throw new HoneError('invalid-config', `${origin} holds no evaluation.`, {
      cure: `Write one rollout a line, such as ${FORM}; hone eval --efforts --out does.`,
    });
  return records;
}

type Line = z.infer<typeof lineSchema>;
interface Problem {
  readonly what: string;
  readonly cure: string;
}

function parseLine(content: string): Line | Problem {
  let value: unknown;
  try {
    value = JSON.parse(content);
  } catch {
    const odd = notANumber(content);
    if (odd !== undefined)
      return {
        what: `has the ${odd.key} ${odd.value}, which is no number of JSON`,
        cure: 'Write a number, or leave out rollouts whose figures are not known.',
      };
    return { what: `is not JSON: ${shorten(content)}`, cure: `Write one rollout a line, such as ${FORM}.` };
  }
  const parsed = lineSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return { what: `is ${shorten(content)}, not an object`, cure: `Write one rollout a line, such as ${FORM}.` };
  const key = (Object.keys(EXPECTED) as (keyof typeof EXPECTED)[]).find((name) =>
    parsed.error.issues.some(({ path }) => path[0] === name),
  );
  if (key === undefined) return { what: `is ${shorten(content)}`, cure: `Write it such as ${FORM}.` };
  // The cast says no more than the check above: an object that is not an array.
  const found = (value as Record<string, unknown>)[key];
  const what =
    found === undefined ? `has no ${key}` : `has the ${key} ${shorten(JSON.stringify(found))}, not ${EXPECTED[key]}`;
  const cure =
    key === 'success' && found === null
      ? 'Leave out rollouts whose machine failed: they say nothing about the policy.'
      : `Give ${EXPECTED[key]}.`;
  return { what, cure };
}

/** The first key whose value is NaN or infinite, as Python writes them. */
export function notANumber(content: string): { readonly key: string; readonly value: string } | undefined {
  const [, key, value] = /"(\w+)"\s*:\s*(-?(?:NaN|Infinity)\b)/u.exec(content) ?? [];
  return key === undefined || value === undefined ? undefined : { key, value };
}

function priceLine(cost: Line['cost'], option: CostOption): number | Problem {
  if (typeof cost === 'number') {
    if (option.weights === null || option.isOneCount) return cost;
    return {
      what: `has the cost ${cost}, a number, but --cost prices counts`,
      cure: 'Leave --cost out, or let it name the unit of the numbers, such as --cost usd.',
    };
  }
  const { weights } = option;
  const present = COUNTS.filter((name) => cost[name] !== undefined);
  if (weights === null)
    return {
      what: `has a cost of counts (${present.join(', ')}), and nothing says what they are worth`,
      cure: `Price them, such as --cost ${present.map((name) => `${name}=${EXAMPLE_PRICES[name]}`).join(',') || 'turns=0.01'}, or take one count alone, such as --cost ${present[0] ?? 'turns'}.`,
    };
  const missing = COUNTS.filter((name) => weights[name] > 0 && cost[name] === undefined);
  if (missing.length > 0)
    return {
      what: `has a cost without ${missing.join(' and ')}, which --cost prices`,
      cure: `Count ${missing.join(' and ')}, or price only what is there: ${present.join(', ') || 'nothing'}.`,
    };
  const counts = { tokens: 0, sampledTokens: 0, turns: 0, toolSeconds: 0, lookups: 0, ...withoutGaps(cost) };
  return weightedCost(counts, weights);
}

const EXAMPLE_PRICES = { tokens: 0.000002, sampledTokens: 0.00001, turns: 0.01, toolSeconds: 0.001, lookups: 0.02 };

function withoutGaps(cost: Exclude<Line['cost'], number>): Partial<Record<(typeof COUNTS)[number], number>> {
  return Object.fromEntries(Object.entries(cost).filter(([, count]) => count !== undefined));
}

function shorten(text: string): string {
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}
