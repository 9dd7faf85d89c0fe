/**
 * A place while a worker reads or writes it: positional, straight between the file (or shared memory) and the given buffer.
 * Invariant: a read fills its buffer or throws; nothing outside of the place is touched. Syncing to disk is the caller's business.
 */
import { closeSync, constants, openSync, readSync, writeSync } from 'node:fs';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { placeSizeBytes, type BytePlace } from '../tensor-place.ts';

type Access = 'read' | 'write' | 'update';

const FLAGS: Record<Access, number> = {
  read: constants.O_RDONLY,
  write: constants.O_WRONLY | constants.O_CREAT,
  update: constants.O_RDWR,
};

export class OpenPlace implements Disposable {
  readonly sizeBytes: number;
  readonly #place: BytePlace;
  readonly #bytes: Buffer | undefined;
  readonly #descriptor: number | undefined;

  constructor(place: BytePlace, access: Access) {
    this.#place = place;
    this.sizeBytes = placeSizeBytes(place);
    if (place.kind === 'memory') {
      // A Buffer over the same bytes: its copy is twice as fast on shared memory as `set` of a typed array.
      this.#bytes = Buffer.from(place.bytes.buffer, place.bytes.byteOffset, place.bytes.byteLength);
      return;
    }
    try {
      this.#descriptor = openSync(place.path, FLAGS[access], 0o644);
    } catch (cause) {
      throw this.#failure(access === 'read' ? 'read' : 'written', cause);
    }
  }

  /** Fills `target` from `offset` on. */
  read(offset: number, target: Buffer): void {
    if (offset < 0 || offset + target.byteLength > this.sizeBytes)
      throw new RangeError(`read of ${target.byteLength} bytes at ${offset} of a place of ${this.sizeBytes}`);
    if (this.#bytes !== undefined) {
      this.#bytes.copy(target, 0, offset, offset + target.byteLength);
      return;
    }
    for (let done = 0; done < target.byteLength;) {
      let count: number;
      try {
        count = readSync(this.#file(), target, done, target.byteLength - done, this.#start() + offset + done);
      } catch (cause) {
        throw this.#failure('read', cause);
      }
      if (count === 0)
        throw this.#failure(
          'read',
          `it ends ${target.byteLength - done} bytes before byte ${offset + target.byteLength}`,
        );
      done += count;
    }
  }

  write(offset: number, source: Buffer): void {
    if (offset < 0 || offset + source.byteLength > this.sizeBytes)
      throw new RangeError(`write of ${source.byteLength} bytes at ${offset} of a place of ${this.sizeBytes}`);
    if (this.#bytes !== undefined) {
      source.copy(this.#bytes, offset);
      return;
    }
    try {
      for (let done = 0; done < source.byteLength;)
        done += writeSync(this.#file(), source, done, source.byteLength - done, this.#start() + offset + done);
    } catch (cause) {
      throw this.#failure('written', cause);
    }
  }

  [Symbol.dispose](): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
  }

  #file(): number {
    if (this.#descriptor === undefined) throw new TypeError('the place is not a file');
    return this.#descriptor;
  }

  #start(): number {
    return this.#place.kind === 'file' ? this.#place.offset : 0;
  }

  #failure(verb: 'read' | 'written', cause: unknown): HoneError {
    const path = this.#place.kind === 'file' ? this.#place.path : 'memory';
    return new HoneError('store-failed', `Tensor bytes in ${path} could not be ${verb}: ${reasonOf(cause)}.`, {
      cure: 'Check that the file is whole and the disk has room, then fetch the version again.',
      cause,
    });
  }
}
