/**
 * A worker thread of the codec pool: takes jobs one after the other and answers each. Invariant: one job at a time uses the kernels'
 * memory, even where a job waits for zlib; a job that fails leaves the worker ready for the next.
 */
import { isMainThread, parentPort, workerData, type MessagePort } from 'node:worker_threads';

import { HoneError } from '../../domain/errors.ts';
import {
  toPlainError,
  type CodecJob,
  type CodecResult,
  type CodecWorkerData,
  type FromCodecWorker,
  type ToCodecWorker,
} from './codec-messages.ts';
import type { EncodedTensor, EncodeTensorJob } from './delta-codec.ts';
import { DeltaKernels } from './delta-kernels.ts';
import type { CodecContext } from './delta-pass.ts';
import { applyOverwrite, encodeOverwrite } from './overwrite-blob.ts';
import { applySparse } from './sparse-decoder.ts';
import { encodeSparse } from './sparse-encoder.ts';
import { hashPlace } from './tensor-hash.ts';
import { applyXor, encodeXor } from './xor-blob.ts';

async function run(context: CodecContext, { job }: { job: CodecJob }): Promise<CodecResult> {
  switch (job.kind) {
    case 'encode':
      return { kind: 'encode', encoded: await encode(context, job.job) };
    case 'apply':
      if (job.job.encoding === 'sparse') applySparse(context, job.job);
      else if (job.job.encoding === 'xor') await applyXor(context, job.job);
      else await applyOverwrite(context, job.job);
      return { kind: 'apply' };
    case 'copy': {
      const { from, to, checksum, checksumFormat = 'xxh3-128', name } = job.job;
      // The caller wants the xxh3 of what it copied; another format to be checked is one more look at the source.
      if (checksum !== undefined && checksumFormat !== 'xxh3-128')
        hashPlace(context.kernels, { from, format: checksumFormat }, context.checkAbort).expect(checksum, name);
      const hash = hashPlace(context.kernels, { from, to, format: 'xxh3-128' }, context.checkAbort);
      if (checksum !== undefined && checksumFormat === 'xxh3-128') hash.expect(checksum, name);
      return { kind: 'copy', checksum: hash.digest() };
    }
    case 'checksum': {
      const hash = hashPlace(context.kernels, { from: job.place, format: job.format }, context.checkAbort);
      return { kind: 'checksum', checksum: hash.digest() };
    }
    default:
      return job satisfies never;
  }
}

async function encode(context: CodecContext, job: EncodeTensorJob): Promise<EncodedTensor> {
  switch (job.encoding) {
    case 'sparse':
      return encodeSparse(context, job);
    case 'xor':
      return encodeXor(context, job);
    case 'overwrite':
      return encodeOverwrite(context, job);
    default:
      return job.encoding satisfies never;
  }
}

function serve(port: MessagePort, { deltaKernels, aborts }: CodecWorkerData): void {
  const kernels = new DeltaKernels(deltaKernels);
  const answer = async ({ ticket, slot, job }: ToCodecWorker): Promise<void> => {
    const checkAbort = (): void => {
      if (Atomics.load(aborts, slot) !== 0) throw new HoneError('aborted', 'The work on the tensor was aborted.');
    };
    let message: FromCodecWorker;
    const transfer: ArrayBuffer[] = [];
    try {
      checkAbort();
      const result = await run({ kernels, checkAbort }, { job });
      // The encoders' chunks are whole buffers of their own.
      if (result.kind === 'encode')
        for (const chunk of result.encoded.chunks) transfer.push(chunk.buffer as ArrayBuffer);
      message = { type: 'done', ticket, result };
    } catch (error) {
      message = { type: 'failed', ticket, error: toPlainError(error) };
    }
    port.postMessage(message, transfer);
  };
  let last = Promise.resolve();
  port.on('message', (message: ToCodecWorker) => {
    last = last.then(() => answer(message));
  });
  port.postMessage({ type: 'ready' } satisfies FromCodecWorker);
}

function isCodecWorkerData(data: unknown): data is CodecWorkerData {
  return typeof data === 'object' && data !== null && 'deltaKernels' in data;
}

if (!isMainThread && parentPort !== null && isCodecWorkerData(workerData)) serve(parentPort, workerData);
