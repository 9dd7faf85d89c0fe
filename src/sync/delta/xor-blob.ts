/**
 * The `xor` encoding that slime, miles, stitch and ModelExpress share: new XOR old, all bytes, as one zstd frame of level 1 that tells
 * its size. Invariant: both directions stream; applied to other bytes than those it was taken against, the checksum refuses.
 */
import type { ApplyTensorJob, EncodedTensor, EncodeTensorJob } from './delta-codec.ts';
import { TensorPair, TensorUpdate, type CodecContext } from './delta-pass.ts';
import { OpenPlace } from './open-place.ts';
import { TensorHash } from './tensor-hash.ts';
import { ZstdFrameWriter, ZstdReader } from './zstd-frames.ts';

export async function encodeXor(context: CodecContext, job: EncodeTensorJob): Promise<EncodedTensor> {
  const { kernels } = context;
  using pair = new TensorPair(context, job);
  const { width, sizeBytes } = pair;
  const hash = new TensorHash(kernels, 'xxh3-128');
  const frame = new ZstdFrameWriter(sizeBytes);
  try {
    let changedElements = 0;
    for (const { sizeBytes: count } of pair.chunks()) {
      hash.add('next', count);
      changedElements += kernels.countChanges(width, count);
      kernels.xorChunks(count);
      await frame.write(kernels.old.subarray(0, count));
    }
    const chunks = await frame.finish();
    const elements = sizeBytes / width;
    return { checksum: hash.digest(), changedElements, elements, chunks: changedElements === 0 ? [] : chunks };
  } finally {
    frame.destroy();
  }
}

export async function applyXor(context: CodecContext, job: ApplyTensorJob): Promise<void> {
  const { kernels } = context;
  using blob = new OpenPlace(job.blob, 'read');
  using update = new TensorUpdate(context, job);
  const reader = new ZstdReader(blob, job.name);
  try {
    for (const chunk of update.chunks()) {
      const difference = kernels.next.subarray(0, chunk.sizeBytes);
      await reader.readFully(difference);
      kernels.pad(chunk.sizeBytes);
      update.store(chunk, kernels.xorChunks(chunk.sizeBytes));
    }
    await reader.expectEnd();
  } finally {
    await reader.close();
  }
  update.finish();
}
