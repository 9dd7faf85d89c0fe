/**
 * What comes back from the clusters besides tokens: kept sets, routing matrices. Named typed arrays of one version travel as one
 * object, `<run>/side/v000007/<sha256>`: zstd over safetensors, addressed by the hash of the safetensors bytes.
 * Invariants: the same content is stored once a version; what `get` returns has the hash that its key says, or it throws
 * `checksum-mismatch`. Which versions' data stays is decided by prune.ts.
 */
import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { decodeSafetensors, encodeSafetensors, type TensorData } from '../tensor/safetensors.ts';
import { bodyOf, checkStoreKey, readWhole, type CallOptions, type WeightStore } from './store/weight-store.ts';

/** What one object may expand to, and nearly what it may be; a hostile one must not fill the memory. */
const MAX_EXPANDED_BYTES = 1 << 30;
/** What zstd adds to bytes that do not shrink is far less. */
const FRAME_BYTES = 1 << 20;
const CHUNK_BYTES = 1 << 20;

const compress = promisify(zstdCompress);
const expand = promisify(zstdDecompress);

export type SideValues = Int32Array | Int16Array | Uint8Array | Float32Array;

export interface SideArray {
  readonly values: SideValues;
  /** Row-major; its product is the number of values. */
  readonly shape: readonly number[];
}

export type SideArrays = ReadonlyMap<string, SideArray>;

/** `<run>/side/v000007/<sha256>` */
export type SideDataKey = string;

export class SideDataStore {
  readonly #store: WeightStore;
  readonly #runId: string;
  readonly #maxBytes: number;

  constructor(
    store: WeightStore,
    { runId, maxBytes = MAX_EXPANDED_BYTES }: { readonly runId: string; readonly maxBytes?: number },
  ) {
    checkStoreKey(runId);
    this.#maxBytes = maxBytes;
    this.#store = store;
    this.#runId = runId;
  }

  /** Stores the arrays under the version whose rollouts they belong to. The key is what `get` takes, here or elsewhere. */
  async put(version: PolicyVersion, arrays: SideArrays, options: CallOptions = {}): Promise<SideDataKey> {
    const tensors = new Map<string, TensorData>();
    for (const [name, { values, shape }] of arrays) tensors.set(name, tensorOf(name, values, shape));
    const content = Buffer.concat(encodeSafetensors(tensors, {}, 'side data'));
    if (content.byteLength > this.#maxBytes)
      throw new HoneError(
        'store-failed',
        `Side data of ${content.byteLength} bytes is more than one object may hold (${this.#maxBytes}).`,
        { cure: 'Store it as several objects, such as one a segment.' },
      );
    const key = `${sideDataPrefix(this.#runId)}${versionName(version)}/${sha256(content)}`;
    // The size of the content then stands in the frame's header, for readers of other libraries.
    const frameOptions = {
      chunkSize: CHUNK_BYTES,
      pledgedSrcSize: content.byteLength,
      params: { [constants.ZSTD_c_compressionLevel]: 1 },
    };
    const frame = await compress(content, frameOptions);
    // Another build of zstd may have made other bytes of the same content: then those must prove good.
    if ((await this.#store.putObject(key, bodyOf(frame), options)) === 'different') await this.get(key, options);
    return key;
  }

  /** Undefined when there is no such object: it was pruned, or never arrived. */
  async get(key: SideDataKey, options: CallOptions = {}): Promise<Map<string, SideArray> | undefined> {
    const parsed = parseSideDataKey(key);
    if (parsed?.runId !== this.#runId)
      throw new HoneError('store-failed', `${key} is not the key of side data of run ${this.#runId}.`, {
        cure: 'Pass the key that put returned, on a store of the same run.',
      });
    const frame = await readWhole(this.#store, key, { ...options, maxBytes: this.#maxBytes + FRAME_BYTES });
    if (frame === undefined) return undefined;
    let content: Buffer;
    try {
      content = await expand(frame, { chunkSize: CHUNK_BYTES, maxOutputLength: this.#maxBytes });
    } catch (error) {
      throw damaged(key, `it does not expand (${reasonOf(error)})`, error);
    }
    const hash = sha256(content);
    if (hash !== parsed.hash) throw damaged(key, `its content has sha256 ${hash}`);
    const arrays = new Map<string, SideArray>();
    for (const [name, tensor] of decodeSafetensors(content, key).tensors) arrays.set(name, arrayOf(name, tensor, key));
    return arrays;
  }
}

/** Everything under it is side data of the run. */
function sideDataPrefix(runId: string): string {
  return `${runId}/side/`;
}

/** Undefined when the key is none of side data. */
export function parseSideDataKey(
  key: string,
): { readonly runId: string; readonly version: PolicyVersion; readonly hash: string } | undefined {
  const [, runId, version, hash] = /^([A-Za-z0-9_][A-Za-z0-9._-]*)\/side\/v(\d{6,15})\/([0-9a-f]{64})$/.exec(key) ?? [];
  if (runId === undefined || version === undefined || hash === undefined) return undefined;
  return { runId, version: policyVersion(Number(version)), hash };
}

function tensorOf(name: string, values: SideValues, shape: readonly number[]): TensorData {
  const count = shape.reduce((product, extent) => product * extent, 1);
  if (count !== values.length)
    throw new HoneError(
      'store-failed',
      `Side data ${name} has ${values.length} values, its shape [${shape.join(', ')}] takes ${count}.`,
      { cure: 'Pass the shape that the values were laid out in.' },
    );
  return { dtype: dtypeOf(values), shape, bytes: new Uint8Array(values.buffer, values.byteOffset, values.byteLength) };
}

function dtypeOf(values: SideValues): 'I32' | 'I16' | 'U8' | 'F32' {
  if (values instanceof Int32Array) return 'I32';
  if (values instanceof Int16Array) return 'I16';
  return values instanceof Float32Array ? 'F32' : 'U8';
}

function arrayOf(name: string, { dtype, shape, bytes }: TensorData, key: string): SideArray {
  const copy = new Uint8Array(bytes); // Views into the object need not be aligned.
  switch (dtype) {
    case 'I32':
      return { values: new Int32Array(copy.buffer), shape };
    case 'I16':
      return { values: new Int16Array(copy.buffer), shape };
    case 'F32':
      return { values: new Float32Array(copy.buffer), shape };
    case 'U8':
      return { values: copy, shape };
    default:
      throw damaged(key, `${name} is ${dtype}, which side data never is`);
  }
}

function versionName(version: PolicyVersion): string {
  return `v${String(version).padStart(6, '0')}`;
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

function damaged(key: string, what: string, cause?: unknown): HoneError {
  return new HoneError('checksum-mismatch', `${key} is damaged: ${what}.`, {
    cure: 'Drop the rollout that it belongs to; it can only be sampled again.',
    cause,
  });
}
