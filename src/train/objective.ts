/**
 * The training objective: token-level policy gradient with truncated importance weights, over recorded kept sets.
 *
 *   L = -(1/N) sum over trained tokens of  sg(min(r, C)) A log p   - (c/N) sum of H
 *   r = p_trainer / p_sampler, both renormalised over the kept row that was recorded when the token was drawn
 *
 * N is the number of trained tokens of the whole batch, so the split into micro-batches cannot show. Pure.
 * Source: truncated importance sampling as in verl's rollout correction and slime; log-probabilities are replayed over the kept set recorded at each draw.
 */
import { checkSegment } from '../domain/rollout.ts';
import type { Segment } from '../domain/rollout.ts';
import type { Mismatch, TrainSample } from './trainer.ts';

export interface ObjectiveOptions {
  /** C, at least 1. */
  readonly importanceCap: number;
  /** c, at least 0. */
  readonly entropyCoefficient: number;
}

/** What a model must evaluate for one segment, and what the objective keeps of it. */
export interface ObjectiveSequence {
  readonly tokens: Int32Array;
  /** Sampled positions, ascending. */
  readonly positions: Int32Array;
  readonly kept: { readonly ids: Int32Array; readonly offsets: Int32Array };
  readonly temperature: number;
  readonly samplerLogprobs: Float32Array;
  readonly trained: Uint8Array;
  /** Staleness of each sampled position. */
  readonly staleness: Int32Array;
  readonly advantage: number;
}

export interface SequenceOutput {
  readonly logprobs: Float32Array;
  readonly entropies: Float32Array;
}

export interface SequenceGradient {
  readonly logprobs: Float32Array;
  readonly entropies: Float32Array;
}

/** Sampled positions of a segment with their kept rows, ready for the model. Throws when an invariant is broken. */
export function toObjectiveSequence(segment: Segment, advantage: number, trainerVersion: number): ObjectiveSequence {
  checkSegment(segment);
  const { kept, tokens } = segment;
  const positions: number[] = [];
  for (let t = 0; t < tokens.length; t++) if ((kept.offsets[t + 1] ?? 0) > (kept.offsets[t] ?? 0)) positions.push(t);
  const count = positions.length;
  const offsets = new Int32Array(count + 1);
  const samplerLogprobs = new Float32Array(count);
  const trained = new Uint8Array(count);
  const staleness = new Int32Array(count);
  let oldest = Number.POSITIVE_INFINITY;
  let spanIndex = 0;
  for (let index = 0; index < count; index++) {
    const t = positions[index] ?? 0;
    offsets[index + 1] = (offsets[index] ?? 0) + (kept.offsets[t + 1] ?? 0) - (kept.offsets[t] ?? 0);
    samplerLogprobs[index] = segment.logprobs[t] ?? 0;
    trained[index] = segment.trained[t] ?? 0;
    while ((segment.versions[spanIndex]?.end ?? Number.POSITIVE_INFINITY) <= t) spanIndex++;
    oldest = Math.min(oldest, segment.versions[spanIndex]?.version ?? trainerVersion);
    staleness[index] = trainerVersion - oldest;
  }
  return {
    tokens,
    positions: Int32Array.from(positions),
    kept: { ids: kept.ids, offsets },
    temperature: segment.temperature,
    samplerLogprobs,
    trained,
    staleness,
    advantage,
  };
}

/** Ascending by rollout id, then segment: the one order in which gradients are added. */
export function toObjectiveSequences(samples: readonly TrainSample[], trainerVersion: number): ObjectiveSequence[] {
  const ordered = [...samples].sort((a, b) => (a.rolloutId < b.rolloutId ? -1 : 1));
  return ordered
    .flatMap((sample) =>
      sample.segments.map((segment) => toObjectiveSequence(segment, sample.advantage, trainerVersion)),
    )
    .filter((sequence) => sequence.positions.length > 0);
}

export function countTrained(sequences: readonly ObjectiveSequence[]): number {
  let count = 0;
  for (const sequence of sequences) for (const flag of sequence.trained) count += flag;
  return count;
}

/** Sums over the batch, filled by `objectiveGradient` one micro-batch at a time. */
export class ObjectiveSums {
  loss = 0;
  entropy = 0;
  trained = 0;
  singletons = 0;
  kept = 0;
  truncated = 0;
  sampled = 0;
  readonly #byStaleness = new Map<number, { tokens: number; k3: number; maxAbsDelta: number }>();

  addMismatch(staleness: number, k3: number, absDelta: number): void {
    const entry = this.#byStaleness.get(staleness) ?? { tokens: 0, k3: 0, maxAbsDelta: 0 };
    entry.tokens++;
    entry.k3 += k3;
    entry.maxAbsDelta = Math.max(entry.maxAbsDelta, absDelta);
    this.#byStaleness.set(staleness, entry);
  }

  mismatch(): Mismatch[] {
    return [...this.#byStaleness]
      .sort(([a], [b]) => a - b)
      .map(([staleness, { tokens, k3, maxAbsDelta }]) => ({ staleness, tokens, k3: k3 / tokens, maxAbsDelta }));
  }
}

/**
 * dL/d(log p) and dL/dH for each sampled position of one sequence; adds its loss and metrics to `sums`.
 * Positions that are not trained get exactly 0. Log-ratios are bounded to +-20 before exp.
 */
export function objectiveGradient(
  sequence: ObjectiveSequence,
  output: SequenceOutput,
  batchTrained: number,
  options: ObjectiveOptions,
  sums: ObjectiveSums,
): SequenceGradient {
  const count = sequence.positions.length;
  const logprobs = new Float32Array(count);
  const entropies = new Float32Array(count);
  const { offsets } = sequence.kept;
  for (let index = 0; index < count; index++) {
    const trainer = output.logprobs[index] ?? 0;
    const delta = trainer - (sequence.samplerLogprobs[index] ?? 0);
    const ratio = Math.exp(Math.min(20, Math.max(-20, delta)));
    const width = (offsets[index + 1] ?? 0) - (offsets[index] ?? 0);
    sums.sampled++;
    sums.addMismatch(sequence.staleness[index] ?? 0, ratio - 1 - Math.min(20, Math.max(-20, delta)), Math.abs(delta));
    if (sequence.trained[index] === 0) continue;
    const weight = Math.min(ratio, options.importanceCap);
    const entropy = output.entropies[index] ?? 0;
    sums.trained++;
    sums.kept += width;
    if (width === 1) sums.singletons++;
    if (ratio > options.importanceCap) sums.truncated++;
    sums.entropy += entropy;
    sums.loss -= (weight * sequence.advantage * trainer + options.entropyCoefficient * entropy) / batchTrained;
    logprobs[index] = -(weight * sequence.advantage) / batchTrained;
    entropies[index] = -options.entropyCoefficient / batchTrained;
  }
  return { logprobs, entropies };
}
