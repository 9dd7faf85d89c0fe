/**
 * The element types of safetensors and the exact casts between the floating ones that models are stored in.
 * Invariants: float32 -> bfloat16 rounds to nearest, ties to even; NaN stays NaN (never turns into infinity), infinity and
 * the sign of zero are kept; casts to float32 are exact. Little-endian machines only, as safetensors files are.
 */

/** In the order of the format's own enumeration, which is also the order (reversed) that standard writers lay tensors out in. */
export const DTYPES = [
  'BOOL',
  'F4',
  'F6_E2M3',
  'F6_E3M2',
  'U8',
  'I8',
  'F8_E5M2',
  'F8_E4M3',
  'F8_E8M0',
  'F8_E4M3FNUZ',
  'F8_E5M2FNUZ',
  'I16',
  'U16',
  'F16',
  'BF16',
  'I32',
  'U32',
  'F32',
  'C64',
  'F64',
  'I64',
  'U64',
] as const;
export type Dtype = (typeof DTYPES)[number];

const SIZE_BITS: Record<Dtype, number> = {
  BOOL: 8,
  F4: 4,
  F6_E2M3: 6,
  F6_E3M2: 6,
  U8: 8,
  I8: 8,
  F8_E5M2: 8,
  F8_E4M3: 8,
  F8_E8M0: 8,
  F8_E4M3FNUZ: 8,
  F8_E5M2FNUZ: 8,
  I16: 16,
  U16: 16,
  F16: 16,
  BF16: 16,
  I32: 32,
  U32: 32,
  F32: 32,
  C64: 64,
  F64: 64,
  I64: 64,
  U64: 64,
};

export function isDtype(text: string): text is Dtype {
  return Object.hasOwn(SIZE_BITS, text);
}

/** Position in the format's enumeration: later types are at least as wide. */
export function dtypeRank(dtype: Dtype): number {
  return DTYPES.indexOf(dtype);
}

/** Product of a shape; 1 for a scalar. `undefined` when it does not fit a safe integer. */
export function elementCount(shape: readonly number[]): number | undefined {
  let count = 1;
  for (const extent of shape) count *= extent;
  return Number.isSafeInteger(count) ? count : undefined;
}

/** Bytes of a tensor; `undefined` on overflow, or when a type below one byte does not fill whole bytes. */
export function tensorSizeBytes(dtype: Dtype, shape: readonly number[]): number | undefined {
  const count = elementCount(shape);
  if (count === undefined) return undefined;
  const sizeBits = count * SIZE_BITS[dtype];
  return Number.isSafeInteger(sizeBits) && sizeBits % 8 === 0 ? sizeBits / 8 : undefined;
}

/** Rounds to bfloat16, nearest even. Writes into `into` when given, else into a new array; returns it. */
export function float32ToBfloat16(
  values: Float32Array,
  into: Uint16Array = new Uint16Array(values.length),
): Uint16Array {
  if (into.length !== values.length)
    throw new RangeError(`float32ToBfloat16: ${values.length} values into ${into.length} places`);
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let index = 0; index < words.length; index++) {
    const word = words[index]!;
    // A NaN whose payload sits in the dropped half would round to infinity: keep sign and exponent, set the quiet bit.
    into[index] =
      (word & 0x7fffffff) > 0x7f800000 ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  }
  return into;
}

/** Exact. Writes into `into` when given, else into a new array; returns it. */
export function bfloat16ToFloat32(
  halves: Uint16Array,
  into: Float32Array = new Float32Array(halves.length),
): Float32Array {
  if (into.length !== halves.length)
    throw new RangeError(`bfloat16ToFloat32: ${halves.length} values into ${into.length} places`);
  const words = new Uint32Array(into.buffer, into.byteOffset, into.length);
  for (let index = 0; index < words.length; index++) words[index] = halves[index]! << 16;
  return into;
}

/** The value that a float32 has after a round trip through bfloat16, in place: what a sampler and a trainer both compute with. */
export function roundToBfloat16(values: Float32Array): Float32Array {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let index = 0; index < words.length; index++) {
    const word = words[index]!;
    words[index] =
      (word & 0x7fffffff) > 0x7f800000
        ? (word | 0x400000) & 0xffff0000
        : (word + 0x7fff + ((word >>> 16) & 1)) & 0xffff0000;
  }
  return values;
}

/** Exact, subnormals included. */
export function float16ToFloat32(halves: Uint16Array): Float32Array {
  const values = new Float32Array(halves.length);
  const words = new Uint32Array(values.buffer);
  for (let index = 0; index < halves.length; index++) {
    const half = halves[index]!;
    const sign = (half & 0x8000) << 16;
    const exponent = (half >>> 10) & 0x1f;
    const fraction = half & 0x3ff;
    if (exponent === 0) {
      values[index] = fraction * 2 ** -24;
      words[index] = words[index]! | sign;
    } else if (exponent === 0x1f) words[index] = sign | 0x7f800000 | (fraction << 13);
    else words[index] = sign | ((exponent + 112) << 23) | (fraction << 13);
  }
  return values;
}
