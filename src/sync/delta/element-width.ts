/**
 * The width that a delta counts in: the bytes of one element. Types below a byte, and sizes that no whole number of elements
 * fills, count as bytes. Both sides derive it from the tensor, so a blob of another width is not this tensor's.
 */
import { tensorSizeBytes, type Dtype } from '../../tensor/dtype.ts';

export type ElementWidth = 1 | 2 | 4 | 8;

export function elementWidth(dtype: Dtype, sizeBytes: number): ElementWidth {
  const width = tensorSizeBytes(dtype, [1]) ?? 1;
  return (width === 2 || width === 4 || width === 8) && sizeBytes % width === 0 ? width : 1;
}
