/**
 * The control that a model must beat: logistic regression on hashed 1- to 4-grams of one changed line, and nothing else.
 * The line is read as a word diff, each token with its side (kept, removed, added), once as written and once with names,
 * numbers and strings made abstract. It sees no function, no other line and no other file. Adagrad; same seed, same bits.
 */
import { createRandom } from '../domain/ids.ts';
import type { Random } from '../domain/ids.ts';
import type { ChangedLine, Task } from '../domain/task.ts';
import { isBugLine, labelLineScores } from './line-scores.ts';
import type { LineScore } from './line-scores.ts';

export interface NGramOptions {
  readonly seed: number;
  readonly epochs?: number;
  /** log2 of the number of weights. */
  readonly bucketBits?: number;
  readonly learningRate?: number;
}

export interface NGramClassifier {
  /** Probability that the line is a bug. */
  score(change: ChangedLine): number;
}

const LONGEST_N_GRAM = 4;
const KEYWORDS = new Set(
  (
    'async await break case catch class const continue default delete do else extends false finally for function if in ' +
    'instanceof let new null of return super switch this throw true try typeof undefined var void while yield'
  ).split(' '),
);
const TOKEN =
  /[A-Za-z_$][\w$]*|\d[\w.]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|\/\/.*|[=!]==?|=>|[<>]=|&&|\|\||\?\?|\?\.|\+\+|--|\*\*|\.\.\.|[-+*/%]=|\S/g;

export function trainNGramClassifier(tasks: readonly Task[], options: NGramOptions): NGramClassifier {
  const { seed, epochs = 6, bucketBits = 18, learningRate = 0.1 } = options;
  const mask = 2 ** bucketBits - 1;
  const examples = tasks.flatMap((task) =>
    task.environment.changes.map((change) => ({
      features: featuresOf(change, mask),
      label: isBugLine(task, change.line) ? 1 : 0,
    })),
  );
  const weights = new Float64Array(mask + 1);
  const squares = new Float64Array(mask + 1);
  const random = createRandom(seed);
  const order = Array.from(examples.keys());
  for (let epoch = 0; epoch < epochs; epoch++) {
    shuffle(order, random);
    for (const index of order) {
      const example = examples[index];
      if (example === undefined) continue;
      const { features, label } = example;
      // Every active feature has the value 1/sqrt(count), so long lines do not take longer steps.
      const value = 1 / Math.sqrt(features.length);
      const gradient = (probability(weights, features) - label) * value;
      for (let position = 0; position < features.length; position++) {
        const bucket = features[position] ?? 0;
        const square = (squares[bucket] ?? 0) + gradient * gradient;
        squares[bucket] = square;
        weights[bucket] = (weights[bucket] ?? 0) - (learningRate * gradient) / Math.sqrt(square + 1e-8);
      }
    }
  }
  return { score: (change) => probability(weights, featuresOf(change, mask)) };
}

export function scoreLines(classifier: NGramClassifier, tasks: readonly Task[]): LineScore[] {
  return labelLineScores(
    tasks,
    tasks.map(({ environment }) => environment.changes.map((change) => classifier.score(change))),
  );
}

/** The changed line as tokens with their side: ` kept`, `-removed`, `+added`, removed before added. */
export function diffTokens(change: Pick<ChangedLine, 'before' | 'after'>): string[] {
  const before = change.before.match(TOKEN) ?? [];
  const after = change.after.match(TOKEN) ?? [];
  const columns = after.length + 1;
  // common[i * columns + j]: longest common subsequence of before[i..] and after[j..].
  const common = new Uint16Array((before.length + 1) * columns);
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      const here = i * columns + j;
      const down = common[here + columns] ?? 0;
      const right = common[here + 1] ?? 0;
      common[here] = before[i] === after[j] ? (common[here + columns + 1] ?? 0) + 1 : Math.max(down, right);
    }
  }
  const tokens: string[] = [];
  let i = 0;
  let j = 0;
  while (i < before.length || j < after.length) {
    const here = i * columns + j;
    if (i < before.length && j < after.length && before[i] === after[j]) {
      tokens.push(` ${before[i]}`);
      i++;
      j++;
    } else if (i < before.length && (j === after.length || (common[here + columns] ?? 0) >= (common[here + 1] ?? 0))) {
      tokens.push(`-${before[i++]}`);
    } else {
      tokens.push(`+${after[j++]}`);
    }
  }
  return tokens;
}

function featuresOf(change: ChangedLine, mask: number): Int32Array {
  const tokens = diffTokens(change);
  const buckets = new Set<number>([0]);
  addNGrams(buckets, ['^', ...tokens, '$'], { mask, salt: 0x9e3779b9 });
  addNGrams(buckets, ['^', ...tokens.map(abstractToken), '$'], { mask, salt: 0x85ebca6b });
  return Int32Array.from(buckets);
}

function addNGrams(
  buckets: Set<number>,
  tokens: readonly string[],
  { mask, salt }: { readonly mask: number; readonly salt: number },
): void {
  const hashes = tokens.map(hashText);
  for (let start = 0; start < hashes.length; start++) {
    let hash = salt;
    for (let length = 1; length <= LONGEST_N_GRAM && start + length <= hashes.length; length++) {
      hash = mix(Math.imul(hash, 0x01000193) ^ (hashes[start + length - 1] ?? 0));
      buckets.add(hash & mask);
    }
  }
}

function abstractToken(token: string): string {
  const side = token.slice(0, 1);
  const text = token.slice(1);
  if (/^["'`]/.test(text)) return `${side}"`;
  if (/^\d/.test(text)) return `${side}0`;
  if (/^\/\//.test(text)) return `${side}//`;
  return /^[A-Za-z_$]/.test(text) && !KEYWORDS.has(text) ? `${side}name` : token;
}

function probability(weights: Float64Array, features: Int32Array): number {
  let sum = 0;
  for (let position = 0; position < features.length; position++) sum += weights[features[position] ?? 0] ?? 0;
  return 1 / (1 + Math.exp(-sum / Math.sqrt(features.length)));
}

function hashText(text: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index++) hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193);
  return mix(hash);
}

function mix(word: number): number {
  const once = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
  const twice = Math.imul(once ^ (once >>> 13), 0xc2b2ae35);
  return twice ^ (twice >>> 16);
}

function shuffle(order: number[], random: Random): void {
  for (let last = order.length - 1; last > 0; last--) {
    const other = random.below(last + 1);
    const held = order[last] ?? 0;
    order[last] = order[other] ?? 0;
    order[other] = held;
  }
}
