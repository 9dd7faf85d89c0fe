/**
 * The Trainer port: takes batches of finished rollouts with their advantages, moves the weights once a batch, and
 * hands out the served weights of the version that results. The embedded trainer is one adapter.
 */
import type { PolicyVersion, RolloutId } from '../domain/ids.ts';
import type { Segment } from '../domain/rollout.ts';

export interface TrainSample {
  readonly rolloutId: RolloutId;
  /** Centred on the sample's group; the same for every trained token of every segment. */
  readonly advantage: number;
  readonly segments: readonly Segment[];
}

export interface TrainBatch {
  /** 1-based; step n takes the weights from version n - 1 to version n. */
  readonly step: number;
  /** Ascending by rollout id, so that sums have one order. */
  readonly samples: readonly TrainSample[];
}

/** How far the trainer's log-probabilities are from the sampler's, for tokens of one staleness. */
export interface Mismatch {
  /** Versions between the oldest version that sampled any token of the segment so far and the trainer's. */
  readonly staleness: number;
  readonly tokens: number;
  /** Mean of r - 1 - log r with r = trainer / sampler probability: estimates KL(sampler || trainer), at least 0. */
  readonly k3: number;
  readonly maxAbsDelta: number;
}

export interface StepReport {
  readonly step: number;
  /** False when a gradient was not finite: weights and moments did not move. */
  readonly applied: boolean;
  readonly loss: number;
  readonly gradientNorm: number;
  /** The rate that the step was taken at, warm-up included. */
  readonly learningRate: number;
  readonly sequences: number;
  readonly tokens: number;
  readonly trainedTokens: number;
  /** Nats, full vocabulary, mean over trained tokens. */
  readonly entropy: number;
  readonly singletonShare: number;
  readonly meanKept: number;
  /** Share of trained tokens whose importance weight was truncated. */
  readonly truncatedShare: number;
  readonly mismatch: readonly Mismatch[];
  readonly computeMs: number;
}

export interface Trainer {
  step(batch: TrainBatch): Promise<StepReport>;
  /** bf16 bytes of every tensor, as the sampler will use them. */
  served(): Promise<Map<string, Uint8Array>>;
  /** Writes weights, optimizer moments and counters; durable when the promise resolves. */
  save(path: string): Promise<void>;
  restore(path: string): Promise<void>;
  readonly version: PolicyVersion;
  close(): Promise<void>;
}
