/**
 * The codec on worker threads. It owns the threads, which job runs where, and what happens to a job when its owner aborts it or its
 * thread dies. Invariants: every job settles exactly once, and only after its thread has let go of its places; at most
 * two jobs are with a thread, or as many small ones as its slots hold, the others wait here, the largest in front.
 */
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { placeSizeBytes, type BytePlace } from '../tensor-place.ts';
import {
  fromPlainError,
  type CodecJob,
  type CodecResult,
  type CodecWorkerData,
  type FromCodecWorker,
  type ToCodecWorker,
} from './codec-messages.ts';
import type {
  ApplyTensorJob,
  ChecksumFormat,
  CopyTensorJob,
  EncodedTensor,
  EncodeTensorJob,
  TensorCodec,
} from './delta-codec.ts';
import { compileDeltaKernels } from './delta-kernels.ts';
import { shareJob } from './shared-places.ts';

/** One that runs and one that waits at the thread, so that it never idles for a turn of this thread's loop. */
const JOBS_A_WORKER = 2;
/**
 * More of them while all together are small: on a busy machine each turn between the threads costs milliseconds, which is more than
 * such a job takes.
 */
const SLOTS = 32;
const SMALL_BYTES = 4 << 20;
const START_TIMEOUT_MS = 60_000;
const CLOSE_TIMEOUT_MS = 60_000;
const LARGEST_POOL = 64;

export interface CodecPoolOptions {
  /** Worker threads, 1 to 64. Default: the cores, at most 8. */
  readonly threads?: number;
  /** How a worker is started; for those that watch or replace it. */
  readonly spawn?: (data: CodecWorkerData) => Worker;
}

interface Task {
  readonly ticket: number;
  readonly job: CodecJob;
  readonly sizeBytes: number;
  readonly resolve: (result: CodecResult) => void;
  readonly reject: (error: unknown) => void;
  /** Where it runs, once it does. */
  at: { readonly thread: Thread; readonly slot: number } | undefined;
}

interface Thread {
  readonly worker: Worker;
  readonly aborts: Int32Array;
  /** The task in each slot. */
  readonly tasks: (Task | undefined)[];
  busy: number;
  /** Of the tensors in its slots. */
  busyBytes: number;
}

export class CodecPool implements TensorCodec {
  readonly #threads = new Set<Thread>();
  readonly #queue: Task[] = [];
  #nextTicket = 0;
  #isDispatching = false;
  #closing: Promise<void> | undefined;
  #whenIdle: (() => void) | undefined;
  #lastDeath: HoneError | undefined;

  private constructor() {}

  /** Compiles the kernels and starts the threads; rejects when one does not come up. */
  static async start({
    threads = Math.min(8, availableParallelism()),
    spawn = spawnDeltaWorker,
  }: CodecPoolOptions = {}): Promise<CodecPool> {
    if (!Number.isInteger(threads) || threads < 1 || threads > LARGEST_POOL)
      throw new HoneError('invalid-config', `threads is ${threads}, expected an integer from 1 to ${LARGEST_POOL}.`, {
        cure: 'Set threads within that range.',
      });
    const deltaKernels = await compileDeltaKernels();
    const pool = new CodecPool();
    try {
      await Promise.all(Array.from({ length: threads }, () => pool.#startThread(deltaKernels, spawn)));
    } catch (error) {
      await pool.close();
      throw error;
    }
    return pool;
  }

  /** Threads that are alive. */
  get threads(): number {
    return this.#threads.size;
  }

  async encode(job: EncodeTensorJob, signal?: AbortSignal): Promise<EncodedTensor> {
    const result = await this.#run({ kind: 'encode', job }, { sizeBytes: placeSizeBytes(job.next.place), signal });
    if (result.kind !== 'encode') throw new TypeError(`answer of kind ${result.kind} to an encode job`);
    return result.encoded;
  }

  async apply(job: ApplyTensorJob, signal?: AbortSignal): Promise<void> {
    await this.#run({ kind: 'apply', job }, { sizeBytes: placeSizeBytes(job.to.place), signal });
  }

  copy(job: CopyTensorJob, signal?: AbortSignal): Promise<string> {
    return this.#digest({ kind: 'copy', job }, { sizeBytes: placeSizeBytes(job.from), signal });
  }

  checksum(
    place: BytePlace,
    { format = 'xxh3-128', signal }: { format?: ChecksumFormat; signal?: AbortSignal } = {},
  ): Promise<string> {
    return this.#digest({ kind: 'checksum', place, format }, { sizeBytes: placeSizeBytes(place), signal });
  }

  /** Fails the jobs that wait, aborts those that run, and ends the threads. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #digest(job: CodecJob, options: { sizeBytes: number; signal: AbortSignal | undefined }): Promise<string> {
    const result = await this.#run(job, options);
    if (result.kind !== 'copy' && result.kind !== 'checksum') throw new TypeError(`answer of kind ${result.kind}`);
    return result.checksum;
  }

  async #run(
    job: CodecJob,
    { sizeBytes, signal }: { sizeBytes: number; signal: AbortSignal | undefined },
  ): Promise<CodecResult> {
    if (signal?.aborted === true) throw abortedBefore();
    const shared = shareJob(job);
    let task: Task | undefined;
    const onAbort = (): void => {
      if (task !== undefined) this.#abort(task);
    };
    try {
      const result = await new Promise<CodecResult>((resolve, reject) => {
        task = { ticket: this.#nextTicket++, job: shared.job, sizeBytes, resolve, reject, at: undefined };
        this.#enqueue(task);
        signal?.addEventListener('abort', onAbort, { once: true });
      });
      shared.bringBack();
      return result;
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  #enqueue(task: Task): void {
    if (this.#closing !== undefined) {
      task.reject(closed());
      return;
    }
    if (this.#threads.size === 0) {
      task.reject(this.#allDead());
      return;
    }
    // Behind all that are as large, so that equal ones keep their order.
    const after = this.#queue.findIndex((other) => other.sizeBytes < task.sizeBytes);
    this.#queue.splice(after < 0 ? this.#queue.length : after, 0, task);
    if (this.#isDispatching) return;
    this.#isDispatching = true;
    // Jobs given in one go are all in the queue before the first is taken.
    queueMicrotask(() => {
      this.#isDispatching = false;
      this.#dispatch();
    });
  }

  #dispatch(): void {
    while (this.#queue.length > 0) {
      let thread: Thread | undefined;
      const [task] = this.#queue;
      if (task === undefined) return;
      for (const candidate of this.#threads)
        if (hasRoom(candidate, task) && candidate.busy < (thread?.busy ?? SLOTS)) thread = candidate;
      if (thread === undefined) return;
      this.#queue.shift();
      this.#give(task, thread);
    }
  }

  #give(task: Task, thread: Thread): void {
    const slot = thread.tasks.indexOf(undefined);
    thread.tasks[slot] = task;
    task.at = { thread, slot };
    // Referenced while it works, so that waiting for a job keeps the process alive; never when idle.
    thread.busyBytes += task.sizeBytes;
    if (thread.busy++ === 0) thread.worker.ref();
    Atomics.store(thread.aborts, slot, 0);
    try {
      thread.worker.postMessage({ ticket: task.ticket, slot, job: task.job } satisfies ToCodecWorker);
    } catch (error) {
      this.#release(task);
      task.reject(error);
    }
  }

  #receive(thread: Thread, message: FromCodecWorker): void {
    if (message.type === 'ready') return;
    const task = thread.tasks.find((candidate) => candidate?.ticket === message.ticket);
    if (task === undefined) return;
    this.#release(task);
    if (message.type === 'done') task.resolve(message.result);
    else task.reject(fromPlainError(message.error));
    this.#dispatch();
  }

  #release(task: Task): void {
    if (task.at === undefined) return;
    const { thread, slot } = task.at;
    thread.tasks[slot] = undefined;
    task.at = undefined;
    thread.busyBytes -= task.sizeBytes;
    if (--thread.busy === 0) thread.worker.unref();
    this.#tellIdle();
  }

  #tellIdle(): void {
    for (const thread of this.#threads) if (thread.busy > 0) return;
    this.#whenIdle?.();
  }

  /** One that waits fails at once; one that runs when its thread has noticed. */
  #abort(task: Task): void {
    if (task.at !== undefined) {
      Atomics.store(task.at.thread.aborts, task.at.slot, 1);
      return;
    }
    const at = this.#queue.indexOf(task);
    if (at < 0) return;
    this.#queue.splice(at, 1);
    task.reject(abortedBefore());
  }

  async #startThread(deltaKernels: WebAssembly.Module, spawn: (data: CodecWorkerData) => Worker): Promise<void> {
    const aborts = new Int32Array(new SharedArrayBuffer(4 * SLOTS));
    const worker = spawn({ deltaKernels, aborts });
    const tasks = Array.from({ length: SLOTS }, () => undefined);
    const thread: Thread = { worker, aborts, tasks, busy: 0, busyBytes: 0 };
    this.#threads.add(thread);
    let timer: NodeJS.Timeout | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        timer = setTimeout(() => reject(dead(`was not ready after ${START_TIMEOUT_MS / 1000} s`)), START_TIMEOUT_MS);
        worker.on('message', (message: FromCodecWorker) => {
          if (message.type === 'ready') resolve();
          else this.#receive(thread, message);
        });
        worker.once('error', (cause) => {
          const error = dead(`died: ${reasonOf(cause)}`, cause);
          this.#bury(thread, error);
          reject(error);
        });
        worker.once('exit', (code) => {
          const error = dead(`ended with code ${code}`);
          this.#bury(thread, error);
          reject(error);
        });
      });
    } finally {
      clearTimeout(timer);
    }
    worker.unref();
  }

  /** The thread is gone: its jobs fail, the other threads go on with the rest. */
  #bury(thread: Thread, error: HoneError): void {
    if (!this.#threads.delete(thread)) return;
    this.#lastDeath = error;
    for (const task of thread.tasks) {
      if (task === undefined) continue;
      this.#release(task);
      task.reject(error);
    }
    if (this.#threads.size === 0) for (const task of this.#queue.splice(0)) task.reject(this.#allDead());
    this.#tellIdle();
    this.#dispatch();
  }

  #allDead(): HoneError {
    return new HoneError('engine-failed', `No thread of the delta codec is left: ${this.#lastDeath?.message ?? ''}`, {
      cure: 'Start the process again; when a thread dies again, give it more memory or fewer threads.',
    });
  }

  async #close(): Promise<void> {
    for (const task of this.#queue.splice(0)) task.reject(closed());
    const idle = new Promise<void>((resolve) => {
      this.#whenIdle = resolve;
    });
    for (const thread of this.#threads) for (const task of thread.tasks) if (task !== undefined) this.#abort(task);
    this.#tellIdle();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, CLOSE_TIMEOUT_MS);
    });
    await Promise.race([idle, late]);
    clearTimeout(timer);
    await Promise.all(
      [...this.#threads].map(({ worker }) => {
        worker.ref();
        return worker.terminate();
      }),
    );
  }
}

function hasRoom({ busy, busyBytes }: Thread, { sizeBytes }: Task): boolean {
  return busy < JOBS_A_WORKER || (busy < SLOTS && busyBytes + sizeBytes <= SMALL_BYTES);
}

function spawnDeltaWorker(data: CodecWorkerData): Worker {
  const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
  return new Worker(new URL(`./delta-worker.${extension}`, import.meta.url), { workerData: data });
}

function abortedBefore(): HoneError {
  return new HoneError('aborted', 'The work on the tensor was aborted before it began.');
}

function closed(): HoneError {
  return new HoneError('aborted', 'The delta codec was closed.');
}

function dead(what: string, cause?: unknown): HoneError {
  return new HoneError('engine-failed', `A thread of the delta codec ${what}.`, {
    cure: 'Give the process more memory or the codec fewer threads; what it was working on has to be done again.',
    cause,
  });
}
