/**
 * The Policy port: who samples. Token in, token out. The embedded replica is its adapter; an external engine would be another.
 * `logprobs` are of the distribution that was really sampled: after temperature, renormalised over the kept set.
 */
import type { PolicyVersion } from './ids.ts';
import type { KeptSets, VersionSpan } from './rollout.ts';

export interface Sampling {
  /** Above 0; 1 leaves the logits as they are. Greedy is `greedy: true`, which ignores all else. */
  readonly temperature: number;
  /** Ids kept at most; 0 = no limit. */
  readonly topK: number;
  /** In (0, 1]; 1 = off. Keep a token when the mass before it, by falling probability, is below topP. */
  readonly topP: number;
  /** In [0, 1); keep a token when its probability is at least minP times the largest. 0 = off. */
  readonly minP: number;
  readonly maxTokens: number;
  /** Sampling one of these ends the reply; the id is part of the reply. */
  readonly stopIds: readonly number[];
  readonly greedy: boolean;
}

export const DEFAULT_SAMPLING: Omit<Sampling, 'maxTokens' | 'stopIds'> = {
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  greedy: false,
};

export interface GenerateRequest {
  readonly tokens: Int32Array;
  readonly sampling: Sampling;
  /** Drives only this request's draws: same seed, prompt and weights = same tokens whatever else is in the batch. */
  readonly seed: number;
  readonly minVersion?: PolicyVersion;
  readonly exactVersion?: PolicyVersion;
  /**
   * How many tokens of this reply were drawn before, by a replica that went away; they are the end of `tokens`. Draws are numbered
   * from here, so that a reply that goes on elsewhere at the same version has the bits of one that was never interrupted. Default 0.
   */
  readonly drawnBefore?: number;
  /** Requests of one session like to meet the replica that has their prefix in its cache. */
  readonly session?: string;
  readonly signal?: AbortSignal;
  /** Called once per sampled token, in order, as soon as it is drawn. */
  readonly onToken?: (id: number, drawn: DrawnToken) => void;
}

/** All that is recorded of one sampled token. */
export interface DrawnToken {
  readonly logprob: number;
  /** Ids that were kept, ascending; the sampled one is among them. */
  readonly kept: Int32Array;
  readonly version: PolicyVersion;
}

export interface Generation {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  /** One row a sampled token; greedy gives singletons. */
  readonly kept: KeptSets;
  /** Over positions of `tokens` (0 = first sampled). */
  readonly versions: readonly VersionSpan[];
  readonly finish: 'stop' | 'length' | 'abort';
}

export interface Policy {
  /** Rejects with HoneError `context-too-small` when the prompt leaves no room for one token. */
  generate(request: GenerateRequest): Promise<Generation>;
  /** The version that a request admitted now would start with. */
  readonly version: PolicyVersion;
  readonly contextLength: number;
}
