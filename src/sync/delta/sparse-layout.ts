/**
 * The fixed fields of a `sparse` blob: head, block heads, end. docs/decisions/delta-format.md has the layout in words.
 * Invariant: reading refuses every field that a writer would not write, before anything is read or allocated by it.
 */
import { BLOCK_CHANGES, DENSE_ELEMENTS, GAP_BYTES, MAX_SHIFT } from './delta-kernels.ts';
import type { ElementWidth } from './element-width.ts';

const MAGIC = 0x50_53_6e_48; // "HnSP", little-endian
const VERSION = 1;
export const HEAD_BYTES = 16;
export const BLOCK_HEAD_BYTES = 24;
/** A zero where a block would begin, the number of changes, and the digest. */
export const END_BYTES = 12 + 16;
export const DIGEST_BYTES = 16;
/** Set in a plane's length when its bytes are stored as they are. */
export const RAW_PLANE = 0x8000_0000;

/** `blocks`: changes against the old bytes. `stored`: all new bytes as they are, where that is smaller. */
export type BlobForm = 'blocks' | 'stored';

export interface BlobHead {
  readonly width: ElementWidth;
  readonly form: BlobForm;
  readonly sizeBytes: number;
}

export function formatHead({ width, form, sizeBytes }: BlobHead): Buffer {
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32LE(MAGIC, 0);
  head.writeUInt8(VERSION, 4);
  head.writeUInt8(width, 5);
  head.writeUInt8(form === 'blocks' ? 0 : 1, 6);
  head.writeBigUInt64LE(BigInt(sizeBytes), 8);
  return head;
}

/** The head, or what is wrong with it for a tensor of this width and size. */
export function parseHead(head: Buffer, tensor: { width: ElementWidth; sizeBytes: number }): BlobHead | string {
  if (head.readUInt32LE(0) !== MAGIC) return 'its delta does not begin as a sparse one';
  if (head.readUInt8(4) !== VERSION)
    return `its delta has format version ${head.readUInt8(4)}, this reader knows ${VERSION}`;
  if (head.readUInt8(5) !== tensor.width)
    return `its delta has elements of ${head.readUInt8(5)} bytes, the tensor of ${tensor.width}`;
  const form = head.readUInt8(6);
  if (form > 1 || head.readUInt8(7) !== 0) return `its delta has the unknown form ${form}`;
  if (head.readBigUInt64LE(8) !== BigInt(tensor.sizeBytes))
    return `its delta is of ${head.readBigUInt64LE(8)} bytes, the tensor of ${tensor.sizeBytes}`;
  return { ...tensor, form: form === 0 ? 'blocks' : 'stored' };
}

export interface BlockHead {
  readonly changes: number;
  /** Elements from the first changed one to the last. */
  readonly span: number;
  /** The first changed element. */
  readonly first: number;
  /** `gaps`: distances and values of the changes. `dense`: XORed values of all elements of the span. */
  readonly form: 'gaps' | 'dense';
  readonly shift: number;
  /** Bytes of the high parts of the gaps, expanded. */
  readonly gapBytes: number;
}

export function formatBlockHead(block: BlockHead): Buffer {
  const head = Buffer.alloc(BLOCK_HEAD_BYTES);
  head.writeUInt32LE(block.changes, 0);
  head.writeUInt32LE(block.span, 4);
  head.writeBigUInt64LE(BigInt(block.first), 8);
  head.writeUInt8(block.form === 'gaps' ? 0 : 1, 16);
  head.writeUInt8(block.shift, 17);
  head.writeUInt32LE(block.gapBytes, 20);
  return head;
}

/** A block's head, or what is wrong with it; `from` is the first element that no block before has covered. */
export function parseBlockHead(head: Buffer, tensor: { from: number; elements: number }): BlockHead | string {
  const changes = head.readUInt32LE(0);
  const span = head.readUInt32LE(4);
  const first = Number(head.readBigUInt64LE(8));
  const form = head.readUInt8(16);
  const shift = head.readUInt8(17);
  const gapBytes = head.readUInt32LE(20);
  if (changes < 1 || changes > BLOCK_CHANGES || span < changes)
    return `a block has ${changes} changes over ${span} elements`;
  if (first < tensor.from || first + span > tensor.elements)
    return `a block covers elements ${first} to ${first + span} of ${tensor.elements}, expected from ${tensor.from} on`;
  if (form > 1 || head.readUInt16LE(18) !== 0) return `a block has the unknown form ${form}`;
  if (form === 1) {
    if (span > DENSE_ELEMENTS || shift !== 0 || gapBytes !== 0) return `a dense block covers ${span} elements`;
    return { changes, span, first, form: 'dense', shift, gapBytes };
  }
  if (shift > MAX_SHIFT || gapBytes > GAP_BYTES || gapBytes < changes - 1)
    return `a block packs ${changes} changes in ${gapBytes} bytes with shift ${shift}`;
  return { changes, span, first, form: 'gaps', shift, gapBytes };
}

/** Bytes of the low parts of a block's gaps. */
export function lowGapBytes({ changes, shift }: { changes: number; shift: number }): number {
  return Math.ceil(((changes - 1) * shift) / 8);
}
