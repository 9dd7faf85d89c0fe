/**
 * What a replica is started with, and what it expects of the place that its weights come from. Owns no behaviour.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

import type { ObjectSource, WeightStore } from '../sync/store/weight-store.ts';
import type { ClusterMemberEvent } from '../sync/cluster/cluster-member.ts';
import type { CommittedWeights } from '../sync/reconciler.ts';
import type { CommitMode } from './embedded-policy.ts';

/** What a replica tells the source that its weights come from. */
export type SyncProgress =
  | { readonly kind: 'holding'; readonly runId?: string; readonly version: number }
  | { readonly kind: 'staged'; readonly runId: string; readonly version: number }
  | { readonly kind: 'committed'; readonly runId: string; readonly version: number; readonly pauseMs: number };

/** A place that versions come from; a cluster's also takes progress and lets peers read. */
export interface VersionSource extends ObjectSource {
  report?(progress: SyncProgress): void;
  handlePeerRequest?(request: IncomingMessage, response: ServerResponse): boolean;
  close?(): Promise<void>;
}

/** What a source may need of the replica. */
export interface SourceHooks {
  /** Where peers reach this replica; known once its ports are open. */
  readonly peerUrl: () => string;
  readonly bootId: string;
  readonly cacheDirectory: string;
  readonly onWake: () => void;
  /** What happens between this replica and its cluster. */
  readonly onEvent: (event: ClusterMemberEvent) => void;
  readonly signal: AbortSignal;
}

export interface ReplicaServiceOptions {
  /** Hugging Face folder: version 0. */
  readonly model: string;
  /** Of this replica alone: its weights, its downloads. */
  readonly dataDirectory: string;
  /** Undefined = the model is served as it is. */
  readonly openSource?: ((hooks: SourceHooks) => Promise<VersionSource>) | undefined;
  /** Whether the source is a cluster's: what is wrong with it is then said of its controller. */
  readonly followsController?: boolean;
  /** Takes kept sets that requests want stored. */
  readonly sideDataStore?: WeightStore | undefined;
  /** Control URLs. */
  readonly routers: readonly string[];
  readonly id: string;
  readonly bootId: string;
  readonly cluster: string;
  readonly slots: number;
  readonly threads: number;
  readonly build: 'auto' | 'plain' | 'fma';
  readonly contextLength?: number | undefined;
  readonly commitMode: CommitMode;
  readonly inFlight: 'keep' | 'recompute';
  readonly verifyServed: boolean;
  readonly pollEveryMs: number;
  /** The run to follow; the first that the store names when left out. */
  readonly runId?: string | undefined;
  readonly host: string;
  readonly port: number;
  readonly controlPort: number;
  /** Host name or address by which routers and peers reach it, where that is not `host`. */
  readonly advertisedHost?: string | undefined;
  /** The fleet's secret. */
  readonly token?: string | undefined;
  readonly maxWaiting?: number | undefined;
  readonly maxPendingBytes?: number | undefined;
  readonly stallMs?: number | undefined;
  /** Requests that a commit, or the end of the replica, waits for get this long. */
  readonly drainMs: number;
  /** What a commit may take besides; then what is served counts as unknown, and the replica ends. */
  readonly commitMs?: number | undefined;
  /** An engine that answers nothing for so long is given up, and the replica ends. */
  readonly engineSilenceMs?: number | undefined;
  readonly eventsPath?: string | undefined;
  /** Takes each distinct problem with routers, controller or weights once, and its end once. */
  readonly say?: (sentence: string) => void;
  readonly onCommitted?: (weights: CommittedWeights) => void;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  readonly wallMs: () => number;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly newRequestId: () => string;
}
