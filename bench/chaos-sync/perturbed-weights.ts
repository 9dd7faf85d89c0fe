/**
 * Weights of any version as a pure function of the boot weights: each step moves a share of the bf16 elements by one unit in the last
 * place, as an optimizer at a small learning rate does. Invariant: the same (boot weights, seed, version) gives the same bytes in
 * every process, so that whoever checks a version needs nothing that the publisher wrote.
 */
import { createRandom, deriveSeed } from '../../src/domain/ids.ts';

export interface Perturbation {
  readonly seed: number;
  /** The version that comes out. */
  readonly version: number;
  /** Share of the elements that change, such as 0.01. */
  readonly share: number;
}

const EXPONENT = 0x7f80;

/** bf16 bytes of all tensors of `version`, made from those of the version before; the input stays as it is. */
export function perturbedWeights(
  tensors: ReadonlyMap<string, Uint8Array>,
  { seed, version, share }: Perturbation,
): Map<string, Uint8Array> {
  const next = new Map<string, Uint8Array>();
  for (const [name, bytes] of tensors) {
    const random = createRandom(deriveSeed(seed, 'perturbed', version, name));
    // Shared, so that a codec's threads read it where it lies.
    const copy = new Uint8Array(new SharedArrayBuffer(bytes.byteLength));
    copy.set(bytes);
    const elements = new Uint16Array(copy.buffer, 0, copy.byteLength / 2);
    for (let at = gap(random.next(), share) - 1; at < elements.length; at += gap(random.next(), share)) {
      const bits = elements[at] ?? 0;
      const exponent = bits & EXPONENT;
      // Zeros and the edges of the range stay, so that no step makes an infinity or flips a sign.
      if (exponent === 0 || exponent >= EXPONENT - 0x80) continue;
      elements[at] = random.next() < 0.5 ? bits + 1 : bits - 1;
    }
    next.set(name, copy);
  }
  return next;
}

/** Elements to the next change, at least 1: geometric, so that unchanged elements cost nothing. */
function gap(uniform: number, share: number): number {
  return 1 + Math.floor(Math.log(1 - uniform) / Math.log(1 - share));
}
