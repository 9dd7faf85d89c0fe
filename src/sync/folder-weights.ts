/**
 * LocalWeights in a folder of this machine: a Hugging Face folder whose weight files are changed in place, beside `state.json`. The
 * dirty mark is on the disk before the first byte changes and goes when all are flushed, so a crash in between is found at the next
 * start. Invariants: one process at a time; `held` is what the bytes are, or undefined; headers and sizes of files never change.
 */
import { open, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { syncDirectory, writeFileDurably } from '../tensor/durable-file.ts';
import { isDiskFull } from '../tensor/errno-code.ts';
import { lockFolder, type FolderLock } from '../tensor/folder-lock.ts';
import { copyModelFiles, layOutModel, readModelPlaces } from '../tensor/hugging-face-folder.ts';
import { makeFolder } from '../tensor/make-folder.ts';
import { forEachBounded } from './bounded-work.ts';
import { throwIfAborted } from './deadline.ts';
import type { TensorCodec } from './delta/delta-codec.ts';
import { readFolderState, STATE_FILE, writeFolderState } from './folder-state.ts';
import type { HeldVersion, LocalWeights, WeightChange } from './local-weights.ts';
import type { TensorPlaces } from './tensor-place.ts';

const LOCK_FILE = 'weights.lock';
const TENSORS_IN_FLIGHT = 8;
const MAX_SHARD_BYTES = 4_000_000_000;

export interface FolderOptions {
  /** Hugging Face folder that everything booted from: its config and tokenizer are copied, its weights are the first version. */
  readonly bootModel: string;
  /** Its tensors as they are served, where that is not as they lie in the folder (another dtype, tied heads left out). */
  readonly bootTensors?: TensorPlaces;
  readonly bootVersion?: PolicyVersion;
  readonly codec: TensorCodec;
  /** How far the bytes of an old folder are trusted at opening: `checksums` reads them all. */
  readonly verify?: 'sizes' | 'checksums';
  readonly maxShardBytes?: number;
  readonly signal?: AbortSignal | undefined;
}

export class FolderWeights implements LocalWeights {
  readonly directory: string;
  readonly #options: FolderOptions;
  readonly #lock: FolderLock;
  #tensors: TensorPlaces;
  #held: HeldVersion | undefined;
  #dirtyReason: string | undefined;
  #openedFrom: 'folder' | 'boot' = 'boot';
  #isChanging = false;
  /** Of the model as it lay there when this process first needed it. */
  #bootSignature: string | undefined;

  private constructor(directory: string, options: FolderOptions, lock: FolderLock, tensors: TensorPlaces) {
    this.directory = directory;
    this.#options = options;
    this.#lock = lock;
    this.#tensors = tensors;
  }

  /**
   * Opens the folder, or makes it from the boot model. A folder that a crash left dirty, or whose bytes are not what its state
   * says, opens with `held` undefined. Throws `run-locked` while another process has it, `delta-base-mismatch` when it is of
   * another model.
   */
  static async open(directory: string, options: FolderOptions): Promise<FolderWeights> {
    try {
      await makeFolder(directory);
    } catch (error) {
      throw failure(`The folder ${directory} could not be made`, error);
    }
    const lock = lockFolder(directory, {
      fileName: LOCK_FILE,
      cure: 'Give every replica a data folder of its own, or stop that process.',
    });
    try {
      const boot = options.bootTensors ?? (await readModelPlaces(options.bootModel));
      const weights = new FolderWeights(directory, options, lock, boot);
      await weights.#load(boot);
      return weights;
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  get held(): HeldVersion | undefined {
    return this.#held;
  }

  get tensors(): TensorPlaces {
    return this.#tensors;
  }

  /** Why `held` is undefined. */
  get dirtyReason(): string | undefined {
    return this.#dirtyReason;
  }

  /** Whether the bytes were there already, or came from the boot model. */
  get openedFrom(): 'folder' | 'boot' {
    return this.#openedFrom;
  }

  async beginChange({
    whole,
    signal,
  }: {
    readonly whole: boolean;
    readonly signal?: AbortSignal;
  }): Promise<WeightChange> {
    throwIfAborted(signal);
    const before = this.#held;
    if (this.#isChanging)
      throw new HoneError('version-not-ready', `${this.directory} is being changed already.`, {
        cure: 'Await each change before the next.',
      });
    if (before === undefined && !whole)
      throw new HoneError(
        'delta-base-mismatch',
        `${this.directory} cannot be changed: ${this.#dirtyReason ?? 'what it holds is unknown'}.`,
        { cure: 'Write every tensor, from a full anchor or the boot model.' },
      );
    this.#isChanging = true;
    try {
      await writeFolderState(this.directory, { format: 1, state: 'dirty', reason: 'a change of it broke off' });
    } catch (error) {
      this.#isChanging = false;
      throw error;
    }
    const touched = new Set<string>();
    let isOpen = true;
    const end = (): void => {
      if (!isOpen) throw new HoneError('store-failed', `This change of ${this.directory} has ended.`);
      isOpen = false;
    };
    return {
      target: (name) => {
        const place = this.#tensors.get(name)?.place;
        if (place === undefined || !isOpen)
          throw new HoneError('delta-base-mismatch', `${this.directory} has no tensor ${name} to change.`);
        touched.add(name);
        this.#held = undefined;
        this.#dirtyReason = 'a change of it broke off';
        return place;
      },
      finish: async (next) => {
        end();
        try {
          if (before === undefined && touched.size < this.#tensors.size)
            throw new HoneError(
              'delta-base-mismatch',
              `${this.directory} was dirty, and only ${touched.size} of ${this.#tensors.size} tensors were written.`,
              { cure: 'Write every tensor, from a full anchor or the boot model.' },
            );
          await this.#flush(touched);
          await this.#writeWhole(next);
        } finally {
          this.#isChanging = false;
        }
      },
      abandon: async () => {
        if (!isOpen) return; // It was finishing: whole if that succeeded, dirty if not.
        end();
        try {
          if (touched.size === 0 && before !== undefined) await this.#writeWhole(before);
        } finally {
          this.#isChanging = false;
        }
      },
    };
  }

  /** Makes the folder anew from the boot model, whatever it held. */
  async restoreBoot({
    signal = this.#options.signal,
  }: { readonly signal?: AbortSignal | undefined } = {}): Promise<void> {
    const { bootModel, bootVersion = policyVersion(0), codec, maxShardBytes = MAX_SHARD_BYTES } = this.#options;
    const boot = this.#options.bootTensors ?? (await readModelPlaces(bootModel));
    this.#held = undefined;
    this.#dirtyReason = 'it was not seeded to the end';
    await writeFolderState(this.directory, { format: 1, state: 'seeding' });
    const layout = layOutModel(boot, { maxShardBytes });
    try {
      for (const file of await readdir(this.directory))
        if (/\.safetensors(\.index\.json)?$/.test(file)) await rm(join(this.directory, file), { force: true });
      await copyModelFiles(bootModel, this.directory);
      for (const { name, layout: shard } of layout.files) {
        const handle = await open(join(this.directory, name), 'wx');
        try {
          let offset = 0;
          while (offset < shard.head.byteLength)
            offset += (await handle.write(shard.head, offset, shard.head.byteLength - offset, offset)).bytesWritten;
          await handle.truncate(shard.sizeBytes);
        } finally {
          await handle.close();
        }
      }
      if (layout.index !== undefined)
        await writeFileDurably(join(this.directory, layout.index.name), [Buffer.from(layout.index.text)], {
          mode: 'replace',
        });
    } catch (error) {
      throw failure(`${this.directory} could not be made from ${bootModel}`, error);
    }
    this.#tensors = await readModelPlaces(this.directory);
    const checksums = new Map<string, string>();
    await forEachBounded(boot, { limit: TENSORS_IN_FLIGHT, signal }, async ([name, { place }], workSignal) => {
      const to = this.#tensors.get(name)?.place;
      if (to !== undefined) checksums.set(name, await codec.copy({ name, from: place, to }, workSignal));
    });
    await this.#flush(this.#tensors.keys());
    // The files are new here; later changes leave the folder's entries as they are.
    await syncDirectory(this.directory).catch((error: unknown) => {
      throw failure(`The folder ${this.directory} could not be flushed`, error);
    });
    this.#openedFrom = 'boot';
    await this.#writeWhole({ runId: undefined, version: bootVersion, checksums });
  }

  /** Gives the folder to whoever comes next. */
  close(): Promise<void> {
    this.#lock.release();
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #load(boot: TensorPlaces): Promise<void> {
    const { codec, verify = 'checksums', signal } = this.#options;
    await clearLeftovers(this.directory);
    const state = await readFolderState(this.directory);
    if (state === undefined) await refuseForeign(this.directory);
    if (state === undefined || state.state === 'seeding') return this.restoreBoot();
    try {
      this.#tensors = await readModelPlaces(this.directory);
    } catch (error) {
      if (!(error instanceof HoneError)) throw error;
      return this.restoreBoot(); // A weight file is gone or cut: there is no folder to bring up to date.
    }
    checkModel(this.directory, this.#tensors, boot, this.#options.bootModel);
    if (state.state === 'dirty') return this.#becomeDirty(state.reason);
    if (state.run === undefined && state.boot !== (this.#bootSignature = await bootSignature(this.#options.bootModel)))
      return this.restoreBoot();
    const checksums = new Map(Object.entries(state.checksums));
    const wrong = [...this.#tensors.keys()].filter((name) => !checksums.has(name));
    if (verify === 'checksums')
      await forEachBounded(
        this.#tensors,
        { limit: TENSORS_IN_FLIGHT, signal },
        async ([name, { place }], workSignal) => {
          const found = await codec.checksum(place, { signal: workSignal });
          if (checksums.has(name) && found !== checksums.get(name)) wrong.push(name);
        },
      );
    if (wrong.length > 0) {
      const reason = `the bytes of ${wrong.sort().join(', ')} are not those that were written`;
      await writeFolderState(this.directory, { format: 1, state: 'dirty', reason });
      return this.#becomeDirty(reason);
    }
    this.#held = { runId: state.run, version: policyVersion(state.version), checksums };
    this.#openedFrom = 'folder';
  }

  #becomeDirty(reason: string): void {
    this.#held = undefined;
    this.#dirtyReason = reason;
    this.#openedFrom = 'folder';
  }

  async #flush(names: Iterable<string>): Promise<void> {
    const paths = new Set<string>();
    for (const name of names) {
      const place = this.#tensors.get(name)?.place;
      if (place?.kind === 'file') paths.add(place.path);
    }
    try {
      for (const path of paths) {
        const handle = await open(path, 'r+');
        try {
          await handle.datasync();
        } finally {
          await handle.close();
        }
      }
    } catch (error) {
      throw failure(`The weights in ${this.directory} could not be flushed`, error);
    }
  }

  async #writeWhole(held: HeldVersion): Promise<void> {
    await writeFolderState(this.directory, {
      format: 1,
      state: 'whole',
      ...(held.runId === undefined ? {} : { run: held.runId }),
      version: held.version,
      boot: (this.#bootSignature ??= await bootSignature(this.#options.bootModel)),
      checksums: Object.fromEntries(held.checksums),
    });
    this.#held = held;
    this.#dirtyReason = undefined;
  }
}

/** Tells an exchanged boot model from the one before without reading it. */
async function bootSignature(bootModel: string): Promise<string> {
  const parts: string[] = [];
  for (const name of (await readdir(bootModel)).sort()) {
    if (!name.endsWith('.safetensors')) continue;
    const { size, mtimeMs } = await stat(join(bootModel, name));
    parts.push(`${name} ${size} ${mtimeMs}`);
  }
  return parts.join('\n');
}

/** Files of writes that a crash broke off. */
async function clearLeftovers(directory: string): Promise<void> {
  for (const name of await readdir(directory))
    if (/^\..*\.tmp$/.test(name)) await rm(join(directory, name), { force: true });
}

/** A folder that is not of this kind is never written to. */
export async function refuseForeign(directory: string): Promise<void> {
  const found = (await readdir(directory)).find((name) => name === 'config.json' || name.endsWith('.safetensors'));
  if (found === undefined) return;
  throw new HoneError(
    'invalid-config',
    `${directory} already holds ${found} but no ${STATE_FILE}: its files are not Hone's to change.`,
    { cure: 'Choose an empty folder, or one that was made this way before.' },
  );
}

function checkModel(directory: string, own: TensorPlaces, boot: TensorPlaces, bootModel: string): void {
  const problems: string[] = [];
  for (const [name, { dtype, shape }] of boot) {
    const tensor = own.get(name);
    if (tensor === undefined) problems.push(`${name} is missing`);
    else if (tensor.dtype !== dtype || tensor.shape.join() !== shape.join())
      problems.push(`${name} is ${tensor.dtype} [${tensor.shape.join(', ')}], not ${dtype} [${shape.join(', ')}]`);
  }
  for (const name of own.keys()) if (!boot.has(name)) problems.push(`${name} is unexpected`);
  if (problems.length === 0) return;
  throw new HoneError(
    'delta-base-mismatch',
    `${directory} holds another model than ${bootModel}: ${problems.join('; ')}.`,
    { cure: 'Choose another data folder for this model, or name the model that the folder was made from.' },
  );
}

function failure(what: string, error: unknown): HoneError {
  if (error instanceof HoneError) return error;
  const isFull = isDiskFull(error);
  return new HoneError('store-failed', `${what}: ${isFull ? 'the disk is full' : reasonOf(error)}.`, {
    cure: 'Make room on that disk, or choose a folder on another one.',
    cause: error,
  });
}
