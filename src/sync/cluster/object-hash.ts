/**
 * The xxh3-128 of a whole object whose bytes come in order, a chunk at a time: what a version's index says of its files.
 * Owns one set of kernels, a few megabytes; invariant: the digest is that of the bytes in order, however they are cut.
 */
import { compileDeltaKernels, DeltaKernels } from '../delta/delta-kernels.ts';

/** Kernels that are kept for the next object. */
const MOST_SPARE = 2;

const spare: ObjectHash[] = [];
let compiled: Promise<WebAssembly.Module> | undefined;

export class ObjectHash {
  readonly #kernels: DeltaKernels;

  private constructor(module: WebAssembly.Module) {
    this.#kernels = new DeltaKernels(module);
    this.#kernels.resetHash('blob');
  }

  static async take(): Promise<ObjectHash> {
    compiled ??= compileDeltaKernels();
    return spare.pop() ?? new ObjectHash(await compiled);
  }

  /** Whoever took it uses it no more. */
  static giveBack(hash: ObjectHash): void {
    hash.reset();
    if (spare.length < MOST_SPARE) spare.push(hash);
  }

  update(bytes: Uint8Array): void {
    this.#kernels.hashBytes('blob', bytes);
  }

  reset(): void {
    this.#kernels.resetHash('blob');
  }

  /** 32 hex digits. */
  digest(): string {
    return this.#kernels.digest('blob').toString('hex');
  }
}
