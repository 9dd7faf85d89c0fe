/**
 * Collects the bytes of a blob in a few buffers that can be handed to another thread without a copy.
 * Invariant: `finish` returns exactly the appended bytes in order, each buffer no larger than what it holds.
 */
const FIRST_BYTES = 16_384;
const LARGEST_BYTES = 1 << 20;

export class BlobWriter {
  sizeBytes = 0;
  readonly #full: Uint8Array<ArrayBuffer>[] = [];
  #current = new Uint8Array(FIRST_BYTES);
  #used = 0;

  append(bytes: Uint8Array): void {
    this.sizeBytes += bytes.byteLength;
    let rest = bytes;
    while (rest.byteLength > 0) {
      if (this.#used === this.#current.byteLength) {
        this.#full.push(this.#current);
        this.#current = new Uint8Array(Math.min(LARGEST_BYTES, this.#current.byteLength * 2));
        this.#used = 0;
      }
      const part = rest.subarray(0, this.#current.byteLength - this.#used);
      this.#current.set(part, this.#used);
      this.#used += part.byteLength;
      rest = rest.subarray(part.byteLength);
    }
  }

  finish(): Uint8Array<ArrayBuffer>[] {
    const last = this.#current.slice(0, this.#used);
    return last.byteLength === 0 ? this.#full : [...this.#full, last];
  }
}
