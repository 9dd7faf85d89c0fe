/**
 * Brings the replica to the version just published. One that cannot follow ends the run with its cause: going on would
 * train on tokens that are staler than the config allows, without a word.
 */
import { HoneError } from '../domain/errors.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { ReplicaReconciler } from '../sync/reconciler.ts';

/** Polls that a published version may take to reach the replica. */
const TRIES = 3;

export interface SyncRetry {
  readonly version: PolicyVersion;
  readonly served: PolicyVersion;
  readonly reason: string;
}

export interface Synchronisation {
  readonly reconciler: Pick<ReplicaReconciler, 'poll'>;
  readonly published: PolicyVersion;
  /** The version that the replica serves now. */
  readonly served: () => PolicyVersion;
  readonly onRetry: (retry: SyncRetry) => void;
}

/** Resolves with the milliseconds that sampling stood still; undefined when the replica was there already. */
export async function synchronise({
  reconciler,
  published,
  served,
  onRetry,
}: Synchronisation): Promise<number | undefined> {
  let cause: unknown;
  let reason = 'no cause was given';
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const result = await reconciler.poll();
    if (served() === published) return result.kind === 'committed' ? result.pauseMs : undefined;
    if (result.kind === 'retry' || result.kind === 'refused') cause = result.error;
    if (cause instanceof Error) reason = cause.message;
    onRetry({ version: published, served: served(), reason });
  }
  throw new HoneError(
    'store-failed',
    `The replica serves version ${served()} and could not take version ${published}: ${reason}`,
    {
      cure: 'Check the weights folder of the run, then go on with --resume.',
      cause,
    },
  );
}
