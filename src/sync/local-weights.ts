/**
 * The LocalWeights port: the bytes of one version that a replica, a publisher or a tool holds, and how they become those of the
 * next one. Two adapters: MemoryWeights (the old version stays whole until the change is finished) and FolderWeights (a Hugging
 * Face folder on disk, changed in place under a dirty mark that a crash leaves behind).
 * Invariant: `held` names exactly the version whose bytes `tensors` are, or the weights say that they are dirty.
 */
import type { PolicyVersion } from '../domain/ids.ts';
import type { BytePlace, TensorPlaces } from './tensor-place.ts';

export interface HeldVersion {
  /** Undefined = the model folder that everything booted from, whichever run goes on from it. */
  readonly runId: string | undefined;
  readonly version: PolicyVersion;
  /** xxh3-128 of each tensor's bytes. */
  readonly checksums: ReadonlyMap<string, string>;
}

export interface LocalWeights extends AsyncDisposable {
  /** Undefined = dirty: a change broke off, and only a change that writes every tensor may begin. */
  readonly held: HeldVersion | undefined;
  /** Why they are dirty, for the end of a sentence. */
  readonly dirtyReason?: string | undefined;
  /** Names, dtypes and shapes never change; places of memory may, with each change. */
  readonly tensors: TensorPlaces;
  /** One change at a time. `whole`: every tensor will be written (an anchor). In a folder the dirty mark is on the disk when this resolves. */
  beginChange(options: { readonly whole: boolean; readonly signal?: AbortSignal }): Promise<WeightChange>;
  /** Brings back the model that everything booted from, whatever is held; only where its bytes are still at hand. */
  restoreBoot?(options?: { readonly signal?: AbortSignal | undefined }): Promise<void>;
  close(): Promise<void>;
}

export interface WeightChange {
  /** Where the tensor's new bytes go. In a folder that is where the old ones are. */
  target(name: string): BytePlace;
  /** All bytes are written and checked: flushes them, takes the mark away, and `held` is `next`. */
  finish(next: HeldVersion): Promise<void>;
  /** Memory goes back to what it held; a folder in which anything was written stays dirty. */
  abandon(): Promise<void>;
}
