/** The rule of ranges that every store keeps: half-open, whole numbers, inside the object. */
import { HoneError } from '../../domain/errors.ts';
import type { ByteRange } from './weight-store.ts';

/** Throws `store-failed` for a range that is not inside an object of this size. */
export function checkByteRange(key: string, { start, end }: ByteRange, sizeBytes: number): void {
  if (Number.isSafeInteger(start) && Number.isSafeInteger(end) && start >= 0 && start <= end && end <= sizeBytes)
    return;
  throw new HoneError('store-failed', `${key} has ${sizeBytes} bytes, bytes ${start} to ${end} were asked for.`, {
    cure: 'Ask for a range inside the object; the index of the version may belong to other bytes.',
  });
}
