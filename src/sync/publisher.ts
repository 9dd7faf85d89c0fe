/**
 * Makes weights visible: bytes, then the index, then one compare-and-swap of the pointer.
 * Invariants: versions only grow; the baseline that the next delta is taken against moves only after the pointer did; nothing that
 * was uploaded is overwritten. A publisher killed before its swap leaves a directory that no pointer names: the next one publishes
 * the same version under the next free name (`weight_v000008-r1`) and, once the pointer is past it, removes what was left behind.
 */
import { HoneError } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { elementCount } from '../tensor/dtype.ts';
import { encodeVersion, type EncodedVersion } from './delta.ts';
import { loadVersion } from './version-chain.ts';
import { formatIdentity, parseIdentity, type VersionIdentity } from './version-directory.ts';
import { checksumOf, imageOf, type WeightImage } from './weight-image.ts';
import { bodyOf, checkStoreKey, type WeightStore } from './store/weight-store.ts';

/** The one pointer of a run's store; its text names the newest version's directory. */
export const LATEST_POINTER = 'latest';

/** More left-over directories of one version than this means that something else is wrong. */
const MAX_ATTEMPTS = 100;

export interface PublisherOptions {
  readonly runId: string;
  /** The version that `bootWeights` are; itself never published. */
  readonly bootVersion: PolicyVersion;
  /** bf16 bytes of all tensors, as the replicas loaded them. */
  readonly bootWeights: ReadonlyMap<string, Uint8Array>;
  /** Every version that is a multiple of this is a full anchor; a new replica then needs at most this many deltas. */
  readonly anchorEvery: number;
  /** Milliseconds from any fixed origin, for the report. */
  readonly now?: () => number;
}

export interface PublishReport {
  readonly version: PolicyVersion;
  /** Bytes that were uploaded, index included. */
  readonly bytes: number;
  readonly changedElements: number;
  readonly totalElements: number;
  readonly anchor: boolean;
  readonly encodeMs: number;
  readonly uploadMs: number;
}

interface Published {
  /** Undefined = the boot weights, which no directory holds. */
  readonly identity: VersionIdentity | undefined;
  readonly version: PolicyVersion;
  readonly image: WeightImage;
}

export class Publisher {
  readonly #store: WeightStore;
  readonly #runId: string;
  readonly #anchorEvery: number;
  readonly #now: () => number;
  #current: Published;
  /** Versions whose swap failed without an answer: the pointer may have moved, the next publish finds out. */
  readonly #unanswered = new Map<string, Published>();
  #isPublishing = false;

  private constructor(store: WeightStore, options: PublisherOptions, current: Published) {
    this.#store = store;
    this.#runId = options.runId;
    this.#anchorEvery = options.anchorEvery;
    this.#now = options.now ?? (() => performance.now());
    this.#current = current;
  }

  /** Takes over where the pointer is: replays the newest anchor and the deltas after it, checksums verified. */
  static async open(store: WeightStore, options: PublisherOptions): Promise<Publisher> {
    const { runId, bootVersion, bootWeights, anchorEvery } = options;
    checkStoreKey(runId);
    if (!Number.isSafeInteger(anchorEvery) || anchorEvery < 1)
      throw new HoneError('invalid-config', `anchorEvery is ${anchorEvery}, it must be a whole number of at least 1.`, {
        cure: 'Set how many versions may lie between two full anchors, for example 20.',
      });
    const boot = imageOf(bootWeights);
    const pointer = await store.readPointer(LATEST_POINTER);
    if (pointer === undefined)
      return new Publisher(store, options, { identity: undefined, version: bootVersion, image: boot });
    const identity = parseIdentity(pointer.value, `Pointer ${LATEST_POINTER}`);
    if (identity.runId !== runId)
      throw new HoneError(
        'pointer-conflict',
        `The weight store already belongs to run ${identity.runId}, this run is ${runId}.`,
        {
          cure: 'Give each run its own folder, or resume the run that the store belongs to.',
        },
      );
    if (identity.version < bootVersion)
      throw new HoneError(
        'pointer-rewind',
        `Run ${runId} has published version ${identity.version}, but is to boot from version ${bootVersion}.`,
        {
          cure: 'Boot from the weights of the published version or an older one.',
        },
      );
    const image = await loadVersion(store, identity, { version: bootVersion, image: boot });
    return new Publisher(store, options, { identity, version: identity.version, image });
  }

  /** Newest version that is known to be visible. */
  get version(): PolicyVersion {
    return this.#current.version;
  }

  /** The bf16 bytes of that version, to continue from; not to be written to. */
  get tensors(): ReadonlyMap<string, Uint8Array> {
    return this.#current.image.tensors;
  }

  /**
   * Publishes bf16 bytes of all tensors as the next version. They are copied before the first wait, so the trainer may go on.
   * Throws `pointer-conflict` when another publisher moved the pointer, `store-failed` when the store did not take the bytes;
   * after either the baseline is where it was.
   */
  async publish(
    tensors: ReadonlyMap<string, Uint8Array>,
    shapes: ReadonlyMap<string, readonly number[]>,
  ): Promise<PublishReport> {
    if (this.#isPublishing)
      throw new HoneError('pointer-conflict', `Version ${this.#current.version + 1} is still being published.`, {
        cure: 'Await each publish before the next.',
      });
    this.#isPublishing = true;
    try {
      const startedMs = this.#now();
      const image = this.#snapshot(tensors, shapes);
      const tag = await this.#confirmPointer();
      const version = policyVersion(this.#current.version + 1);
      const anchor = version % this.#anchorEvery === 0;
      const encoded = await encodeVersion({
        identity: { runId: this.#runId, version, attempt: 0 },
        next: image,
        previous: this.#current.image,
        base: anchor
          ? undefined
          : (this.#current.identity ?? { runId: this.#runId, version: this.#current.version, attempt: 0 }),
        shapes,
      });
      const encodedMs = this.#now();
      const identity = await this.#upload(version, encoded);
      await this.#swap(tag, { identity, version, image });
      await this.#removeLeftovers(identity);
      return {
        version,
        bytes: encoded.wireBytes,
        changedElements: encoded.changedElements,
        totalElements: encoded.totalElements,
        anchor,
        encodeMs: encodedMs - startedMs,
        uploadMs: this.#now() - encodedMs,
      };
    } finally {
      this.#isPublishing = false;
    }
  }

  /** Copies what changed, shares the rest with the baseline. No waiting in here. */
  #snapshot(tensors: ReadonlyMap<string, Uint8Array>, shapes: ReadonlyMap<string, readonly number[]>): WeightImage {
    const baseline = this.#current.image;
    const problems: string[] = [];
    for (const name of baseline.tensors.keys()) if (!tensors.has(name)) problems.push(`${name} is missing`);
    const copies = new Map<string, Uint8Array>();
    const checksums = new Map<string, string>();
    for (const [name, bytes] of tensors) {
      const old = baseline.tensors.get(name);
      const shape = shapes.get(name);
      if (old === undefined) problems.push(`${name} is new`);
      else if (old.byteLength !== bytes.byteLength)
        problems.push(`${name} has ${bytes.byteLength} bytes, the version before ${old.byteLength}`);
      else if (shape === undefined || elementCount(shape) !== bytes.byteLength / 2)
        problems.push(
          `${name} has ${bytes.byteLength} bytes of bf16, its shape is ${shape === undefined ? 'not given' : `[${shape.join(', ')}]`}`,
        );
      const isSame = old !== undefined && Buffer.compare(old, bytes) === 0;
      const kept = isSame ? old : new Uint8Array(bytes);
      copies.set(name, kept);
      checksums.set(name, (isSame ? baseline.checksums.get(name) : undefined) ?? checksumOf(kept));
    }
    if (problems.length > 0)
      throw new HoneError(
        'delta-base-mismatch',
        `The tensors to publish are not those of the run: ${problems.join('; ')}.`,
        {
          cure: 'Publish every tensor of the model that the run booted from, as bf16.',
        },
      );
    return { tensors: copies, checksums };
  }

  /** The tag to swap against, after making sure that the pointer is where this publisher left it. */
  async #confirmPointer(): Promise<string | undefined> {
    const pointer = await this.#store.readPointer(LATEST_POINTER);
    const landed = pointer === undefined ? undefined : this.#unanswered.get(pointer.value);
    if (landed !== undefined) this.#advance(landed);
    const expected = this.#current.identity === undefined ? undefined : formatIdentity(this.#current.identity);
    if (pointer?.value !== expected) throw this.#conflict(pointer?.value);
    return pointer?.tag;
  }

  async #upload(version: PolicyVersion, encoded: EncodedVersion): Promise<VersionIdentity> {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const identity = { runId: this.#runId, version, attempt };
      if (await this.#uploadAs(identity, encoded)) return identity;
    }
    throw new HoneError(
      'store-failed',
      `The store holds ${MAX_ATTEMPTS} directories of version ${version} that were never made visible.`,
      {
        cure: `Remove ${this.#runId}/weight_v${String(version).padStart(6, '0')}* from the weight store.`,
      },
    );
  }

  /** False when other bytes already have this name. Identical files of a killed upload are completed. */
  async #uploadAs(identity: VersionIdentity, encoded: EncodedVersion): Promise<boolean> {
    for (const file of encoded.files)
      if (
        (await this.#store.putObject(`${formatIdentity(identity)}/${file.name}`, bodyOf(...file.chunks))) ===
        'different'
      )
        return false;
    return true;
  }

  async #swap(tag: string | undefined, next: Published & { readonly identity: VersionIdentity }): Promise<void> {
    const value = formatIdentity(next.identity);
    let result: 'swapped' | 'conflict';
    try {
      result = await this.#store.compareAndSwapPointer(LATEST_POINTER, tag, value);
    } catch (error) {
      this.#unanswered.set(value, next);
      throw error;
    }
    if (result === 'conflict') throw this.#conflict((await this.#store.readPointer(LATEST_POINTER))?.value);
    this.#advance(next);
  }

  #advance(published: Published): void {
    this.#current = published;
    this.#unanswered.clear();
  }

  /** Safe only now: the pointer never goes back, so no publisher can make a directory of this version visible any more. */
  async #removeLeftovers({ runId, version, attempt: published }: VersionIdentity): Promise<void> {
    for (let attempt = 0; attempt < published; attempt++) {
      try {
        for (const { key } of await this.#store.list(`${formatIdentity({ runId, version, attempt })}/`))
          await this.#store.remove(key);
      } catch (error) {
        // The version is visible; what stays behind costs space and nothing else.
        if (!(error instanceof HoneError)) throw error;
      }
    }
  }

  #conflict(found: string | undefined): HoneError {
    return new HoneError(
      'pointer-conflict',
      `Another publisher moved the pointer of run ${this.#runId} to ${found ?? 'nothing'} after version ${this.#current.version}.`,
      {
        cure: 'Stop one of the two processes that train this run; then resume, which continues from the published version.',
      },
    );
  }
}
