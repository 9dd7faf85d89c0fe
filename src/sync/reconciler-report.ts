/**
 * What a reconciler tells of itself: the result of a poll, its events, its status. Plain values for logs, metrics and status pages;
 * every sentence in them is meant to be read. Owns no behaviour.
 */
import type { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { FetchProgress } from './fetch-version.ts';
import type { StageCosts } from './staged-tensors.ts';

export type ReconcilerState = 'idle' | 'fetching' | 'staging' | 'committing' | 'failed';

export interface CommittedWeights extends StageCosts {
  readonly from: PolicyVersion;
  readonly version: PolicyVersion;
  /** Versions that this commit brought at once. */
  readonly versionsCoalesced: number;
  readonly imageChecksum: string;
  /** The same over what the engine computes with, when it was asked for. */
  readonly servedChecksum?: string;
  /** Of the weight files that were needed. */
  readonly bytes: number;
  readonly fetchMs: number;
  readonly applyMs: number;
  readonly pauseMs: number;
}

export type PollResult =
  | { readonly kind: 'current'; readonly version: PolicyVersion }
  | ({ readonly kind: 'committed' } & CommittedWeights)
  /** Nothing that is served changed; the next poll tries again. */
  | { readonly kind: 'retry'; readonly error: unknown }
  /** The pointer, or what it names, is not for this replica: it goes on serving what it had, and no retry alone will help. */
  | { readonly kind: 'refused'; readonly error: HoneError };

export type ReconcilerEvent =
  | ({ readonly type: 'weights-committed' } & CommittedWeights)
  | {
      readonly type: 'weights-reseeded';
      readonly version: PolicyVersion;
      readonly source: 'anchor' | 'boot';
      readonly reason: string;
    }
  | { readonly type: 'sync-retry'; readonly version: PolicyVersion; readonly reason: string; readonly error: unknown }
  /** Once for each sentence, not once a poll. */
  | {
      readonly type: 'sync-refused';
      readonly version: PolicyVersion;
      readonly reason: string;
      readonly error: HoneError;
    }
  /** The first look that went well after one that did not. */
  | { readonly type: 'sync-recovered'; readonly version: PolicyVersion }
  | { readonly type: 'sync-failed'; readonly version: PolicyVersion; readonly reason: string; readonly error: unknown };

export interface ReconcilerStatus {
  readonly state: ReconcilerState;
  /** Why the replica is not further, in a sentence; gone after the next success. */
  readonly reason: string | undefined;
  readonly runId: string | undefined;
  readonly servedVersion: PolicyVersion;
  readonly imageChecksum: string;
  /** Undefined = dirty. */
  readonly heldVersion: PolicyVersion | undefined;
  /** What the pointer named last. */
  readonly targetVersion: PolicyVersion | undefined;
  /** Whether the replica once was at the newest version; from then on it may serve. */
  readonly isCaughtUp: boolean;
  readonly progress: (FetchProgress & { readonly version: PolicyVersion }) | undefined;
  readonly lastCommit: CommittedWeights | undefined;
}
