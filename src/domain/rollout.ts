/**
 * A rollout as the trainer sees it: one or more segments of tokens, each token with what the sampler knew when it
 * drew it. Invariants (checkSegment): every per-token array has the length of `tokens`; only sampled tokens may be
 * trained; a sampled token is in its kept row; version spans tile exactly the sampled positions' range without overlap.
 */
import type { Effort } from './effort.ts';
import { HoneError } from './errors.ts';
import type { GroupId, PolicyVersion, RolloutId, TaskId } from './ids.ts';

/** Token ids kept by top-k/top-p/min-p at each position, as compressed sparse rows. An empty row = not sampled. */
export interface KeptSets {
  /** Concatenated rows; ids ascend within a row. */
  readonly ids: Int32Array;
  /** Length tokens + 1; row t is ids[offsets[t] .. offsets[t + 1]). */
  readonly offsets: Int32Array;
}

/** Half-open range of token positions that one policy version sampled. */
export interface VersionSpan {
  readonly version: PolicyVersion;
  readonly start: number;
  readonly end: number;
}

/** One context window. Position t's log-probability is that of tokens[t] given tokens[0..t). */
export interface Segment {
  readonly tokens: Int32Array;
  /** 1 = sampled by the policy and to be trained; 0 = environment. */
  readonly trained: Uint8Array;
  /** After temperature, renormalised over the kept row; 0 where not sampled. */
  readonly logprobs: Float32Array;
  readonly kept: KeptSets;
  /** Ascending, disjoint; together they cover every sampled position. */
  readonly versions: readonly VersionSpan[];
  /** Temperature that the sampled tokens were drawn at. */
  readonly temperature: number;
}

export interface Cost {
  /** All tokens of all segments, environment included. */
  readonly tokens: number;
  readonly sampledTokens: number;
  readonly turns: number;
  readonly toolSeconds: number;
}

export type RolloutStatus = 'completed' | 'truncated' | 'aborted' | 'infra-failed';

/** What the verifier measured, before any shaping. */
export interface Outcome {
  readonly truePositives: number;
  readonly predicted: number;
  readonly actual: number;
  /** Per-sample precision and recall: both lists empty = 1, 1; exactly one empty = 0, 0. */
  readonly precision: number;
  readonly recall: number;
  readonly valid: boolean;
  /** Any attempt at cheating: reward 0, counted and shown. */
  readonly cheated: boolean;
}

export interface Rollout {
  readonly id: RolloutId;
  readonly taskId: TaskId;
  readonly groupId: GroupId;
  readonly attempt: number;
  /** The level that the task was to be done at. */
  readonly effort: Effort;
  readonly segments: readonly Segment[];
  readonly cost: Cost;
  readonly status: RolloutStatus;
  readonly outcome?: Outcome;
  readonly reward?: number;
  readonly seed: number;
  /** Policy version current when the rollout was admitted. */
  readonly admittedVersion: PolicyVersion;
  /** Look-ups made. */
  readonly lookups: number;
  /** From the first request to the submission, by the clock of whoever ran it; absent where nobody measured it. */
  readonly latencySeconds?: number;
  /** The real cause when status is infra-failed or aborted. */
  readonly failure?: string;
}

/** Oldest version that sampled any token of the rollout; the admitted version when nothing was sampled. */
export function oldestVersion(rollout: Rollout): PolicyVersion {
  let oldest: PolicyVersion | undefined;
  for (const segment of rollout.segments)
    for (const span of segment.versions) if (oldest === undefined || span.version < oldest) oldest = span.version;
  return oldest ?? rollout.admittedVersion;
}

/** Throws `invalid-rollout`, naming the broken invariant, unless the segment keeps all of them. */
export function checkSegment(segment: Segment): void {
  const { tokens, trained, logprobs, kept, versions } = segment;
  const length = tokens.length;
  const fail = (what: string): never => {
    throw new HoneError('invalid-rollout', `A segment breaks an invariant: ${what}.`, {
      cure: 'The recorder or the engine that produced it is at fault; the rollout was not trained.',
    });
  };
  if (trained.length !== length) fail(`trained has ${trained.length} entries for ${length} tokens`);
  if (logprobs.length !== length) fail(`logprobs has ${logprobs.length} entries for ${length} tokens`);
  if (kept.offsets.length !== length + 1) fail(`kept.offsets has ${kept.offsets.length} entries for ${length} tokens`);
  if (kept.offsets[0] !== 0) fail('kept.offsets does not start at 0');
  if (kept.offsets[length] !== kept.ids.length) fail('kept.offsets does not end at the number of kept ids');
  if (!(segment.temperature > 0)) fail(`temperature is ${segment.temperature}, must be above 0`);
  const covered = new Uint8Array(length);
  let previousEnd = 0;
  for (const span of versions) {
    if (span.start < previousEnd || span.end <= span.start || span.end > length)
      fail(`version span ${span.start}..${span.end} is out of order or range`);
    covered.fill(1, span.start, span.end);
    previousEnd = span.end;
  }
  for (let t = 0; t < length; t++) {
    const start = kept.offsets[t] ?? 0;
    const end = kept.offsets[t + 1] ?? 0;
    const logprob = logprobs[t] ?? Number.NaN;
    if (end < start) fail(`kept row ${t} has a negative length`);
    if (!Number.isFinite(logprob) || logprob > 1e-6)
      fail(`log-probability ${logprob} at position ${t} is not finite and at most 0`);
    if (end === start) {
      if (trained[t] !== 0) fail(`position ${t} is trained but has no kept row`);
      if (logprob !== 0) fail(`position ${t} was not sampled but has a log-probability`);
      continue;
    }
    if (covered[t] === 0) fail(`sampled position ${t} has no policy version`);
    let holds = false;
    for (let index = start; index < end; index++) {
      if (index > start && (kept.ids[index] ?? 0) <= (kept.ids[index - 1] ?? 0)) fail(`kept row ${t} is not ascending`);
      if (kept.ids[index] === tokens[t]) holds = true;
    }
    if (!holds) fail(`sampled id ${tokens[t]} at position ${t} is not in its kept row`);
  }
}
