/**
 * The engine under the models: one wasm memory, a bump allocator, and `run`, which splits a kernel's items over threads.
 * It knows no tensor. Invariant: threads split outputs, never a sum, so no result depends on their number or timing.
 * Chunks are claimed by compare-and-swap on (generation, next chunk): a sleeping worker never holds up a job.
 */
import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';

import { HoneError } from '../domain/errors.ts';
import {
  CONTROL,
  CONTROL_LENGTH,
  EXHAUSTED,
  KERNEL_NAMES,
  MAX_ARGUMENTS,
  runChunks,
  type Kernel,
  type KernelName,
} from './engine-worker.ts';

export type { KernelName } from './engine-worker.ts';
export type Build = 'plain' | 'fma';

export interface EngineOptions {
  /** `auto` takes the fused build when this runtime accepts it. */
  readonly build?: Build | 'auto';
  /** Threads that compute, the caller's included. Default: the cores, at most 8. */
  readonly threads?: number;
  readonly maxMemoryBytes?: number;
}

const PAGE_BYTES = 65536;
const STACK_BYTES = 8 * 1024 * 1024;
const MAX_THREADS = 16;
const SPINS_BEFORE_WAIT = 3000;
const GROWTH_BYTES = 32 * 1024 * 1024;

const kernelFile = (build: Build): Uint8Array<ArrayBuffer> =>
  new Uint8Array(readFileSync(new URL(`./kernels/kernels-${build}.wasm`, import.meta.url)));

const modules = new Map<Build, Promise<WebAssembly.Module>>();
function compiled(build: Build): Promise<WebAssembly.Module> {
  const known = modules.get(build);
  if (known !== undefined) return known;
  const compiling = WebAssembly.compile(kernelFile(build));
  modules.set(build, compiling);
  return compiling;
}

/** Compiles the kernels and starts `threads - 1` workers. Close it when done. */
export async function createEngine(options: EngineOptions = {}): Promise<Engine> {
  const {
    build = 'auto',
    threads = Math.min(8, availableParallelism()),
    maxMemoryBytes = 65536 * PAGE_BYTES,
  } = options;
  const best = (): Build => (WebAssembly.validate(kernelFile('fma')) ? 'fma' : 'plain');
  const chosen = build === 'auto' ? best() : build;
  const engine = new Engine(chosen, await compiled(chosen), { threads, maxMemoryBytes });
  await engine.ready();
  return engine;
}

export class Engine {
  readonly build: Build;
  /** Bytes that one kernel call may use for its own scratch. */
  readonly stackBytes = STACK_BYTES;
  /** Milliseconds spent in `run` so far. */
  kernelMs = 0;

  readonly #module: WebAssembly.Module;
  readonly #memory: WebAssembly.Memory;
  readonly #maxPages: number;
  readonly #stacks: number;
  readonly #kernels: Kernel[];
  readonly #control = new Int32Array(new SharedArrayBuffer(CONTROL_LENGTH * 4));
  readonly #arguments = new Float64Array(new SharedArrayBuffer(MAX_ARGUMENTS * 8));
  #workers: Worker[] = [];
  #starting: Promise<unknown>[] = [];
  #generation = 0;
  #top: number;
  #closed = false;

  constructor(build: Build, module: WebAssembly.Module, options: { threads: number; maxMemoryBytes: number }) {
    this.build = build;
    this.#module = module;
    this.#maxPages = Math.min(65536, Math.floor(options.maxMemoryBytes / PAGE_BYTES));
    const initial = Math.ceil((MAX_THREADS * STACK_BYTES) / PAGE_BYTES) + 64;
    if (this.#maxPages < initial)
      throw new HoneError(
        'engine-failed',
        `maxMemoryBytes is ${options.maxMemoryBytes}; the engine itself needs ${initial * PAGE_BYTES}.`,
        {
          cure: 'Raise maxMemoryBytes.',
        },
      );
    this.#memory = new WebAssembly.Memory({ initial, maximum: this.#maxPages, shared: true });
    const { exports } = new WebAssembly.Instance(module, { env: { memory: this.#memory } });
    // Exports of a module that we compiled: two i32 globals and the kernels, called with numbers only.
    this.#kernels = KERNEL_NAMES.map((name) => exports[name] as Kernel);
    const heap = (exports['__heap_base'] as WebAssembly.Global).value;
    this.#stacks = align(heap);
    (exports['__stack_pointer'] as WebAssembly.Global).value = this.#stacks + STACK_BYTES;
    this.#top = this.#stacks + MAX_THREADS * STACK_BYTES;
    this.setThreads(options.threads);
  }

  get threads(): number {
    return this.#workers.length + 1;
  }

  /** Starts or stops workers; no result depends on it. */
  setThreads(threads: number): void {
    if (!Number.isInteger(threads) || threads < 1 || threads > MAX_THREADS)
      throw new HoneError('invalid-config', `threads is ${threads}, expected an integer from 1 to ${MAX_THREADS}.`, {
        cure: 'Set threads within that range.',
      });
    this.#assertOpen();
    const retired = this.#retire(threads);
    for (const worker of retired) void worker.terminate();
    while (this.#workers.length < threads - 1) {
      const index = this.#workers.length + 1;
      const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
      const worker = new Worker(new URL(`./engine-worker.${extension}`, import.meta.url), {
        workerData: {
          self: index,
          engineModule: this.#module,
          memory: this.#memory,
          control: this.#control,
          kernelArguments: this.#arguments,
          stackPointer: this.#stacks + (index + 1) * STACK_BYTES,
        },
      });
      // Referenced until it runs, so that waiting for it keeps the process alive; never afterwards.
      const started = new Promise<void>((resolve) => {
        worker.once('message', () => resolve());
        worker.once('exit', () => resolve());
      }).then(() => worker.unref());
      this.#starting.push(started);
      this.#workers.push(worker);
    }
  }

  /** Resolves when all workers have started. Work may begin before: a worker joins when it is there. */
  async ready(): Promise<void> {
    await Promise.all(this.#starting.splice(0));
  }

  /** Chunks of work that were run by workers so far. */
  get workerChunks(): number {
    return Atomics.load(this.#control, CONTROL.helped);
  }

  /** Takes workers out of service; after that they claim no chunk, so they may be terminated at any moment. */
  #retire(threads: number): Worker[] {
    Atomics.store(this.#control, CONTROL.workers, threads - 1);
    Atomics.add(this.#control, CONTROL.wake, 1);
    Atomics.notify(this.#control, CONTROL.wake);
    return this.#workers.splice(threads - 1);
  }

  /** A byte address, 64-aligned, valid until a `release` below it. The bytes are not cleared. */
  alloc(bytes: number): number {
    const pointer = this.#top;
    const top = align(pointer + bytes);
    const have = this.#memory.buffer.byteLength;
    if (top > have) {
      const wanted = Math.ceil((Math.max(top, have + GROWTH_BYTES) - have) / PAGE_BYTES);
      const pages = Math.min(wanted, this.#maxPages - have / PAGE_BYTES);
      if (have + pages * PAGE_BYTES < top)
        throw new HoneError(
          'engine-failed',
          `The engine needs ${top} bytes and may use ${this.#maxPages * PAGE_BYTES}.`,
          {
            cure: 'Use smaller micro-batches, fewer slots or a shorter context, or raise maxMemoryBytes (4 GiB at most).',
          },
        );
      this.#memory.grow(pages);
    }
    this.#top = top;
    return pointer;
  }

  allocFloats(count: number): number {
    return this.alloc(count * 4);
  }

  mark(): number {
    return this.#top;
  }

  /** Frees everything allocated since `mark` was taken. */
  release(mark: number): void {
    this.#top = mark;
  }

  /** A view; it goes stale for memory allocated later, so take it where it is used. */
  f32(pointer: number, length: number): Float32Array {
    return new Float32Array(this.#memory.buffer, pointer, length);
  }

  f64(pointer: number, length: number): Float64Array {
    return new Float64Array(this.#memory.buffer, pointer, length);
  }

  i32(pointer: number, length: number): Int32Array {
    return new Int32Array(this.#memory.buffer, pointer, length);
  }

  bytes(pointer: number, length: number): Uint8Array {
    return new Uint8Array(this.#memory.buffer, pointer, length);
  }

  allocI32(values: ArrayLike<number>): number {
    const pointer = this.alloc(values.length * 4);
    this.i32(pointer, values.length).set(values);
    return pointer;
  }

  allocF32(values: ArrayLike<number>): number {
    const pointer = this.alloc(values.length * 4);
    this.f32(pointer, values.length).set(values);
    return pointer;
  }

  copy(to: number, from: number, bytes: number): void {
    new Uint8Array(this.#memory.buffer).copyWithin(to, from, from + bytes);
  }

  /** Runs a kernel over [0, items); a thread takes at least `quantum` items at a time. */
  run(kernel: KernelName, items: number, quantum: number, ...args: number[]): void {
    if (items <= 0) return;
    this.#assertOpen();
    const started = performance.now();
    const index = KERNEL_NAMES.indexOf(kernel);
    if (this.#workers.length === 0 || items <= quantum) {
      try {
        // Every name of the list was exported, see the constructor.
        (this.#kernels[index] as Kernel)(0, items, ...args);
      } catch (cause) {
        throw trapped(kernel, cause);
      }
    } else {
      this.#share(index, items, quantum, args);
    }
    this.kernelMs += performance.now() - started;
  }

  #share(index: number, items: number, quantum: number, args: number[]): void {
    const control = this.#control;
    const chunk = Math.max(quantum, Math.ceil(items / (this.threads * 4)));
    const total = Math.ceil(items / chunk);
    this.#arguments.set(args);
    control[CONTROL.kernel] = index;
    control[CONTROL.items] = items;
    control[CONTROL.chunk] = chunk;
    control[CONTROL.arguments] = args.length;
    Atomics.store(control, CONTROL.done, 0);
    Atomics.store(control, CONTROL.total, total);
    this.#generation = (this.#generation + 1) & 0xfffff;
    Atomics.store(control, CONTROL.state, this.#generation << 12);
    Atomics.add(control, CONTROL.wake, 1);
    if (Atomics.load(control, CONTROL.sleepers) > 0) Atomics.notify(control, CONTROL.wake);
    runChunks(0, control, this.#arguments, this.#kernels);
    for (let spins = 0; ; spins++) {
      const done = Atomics.load(control, CONTROL.done);
      if (done === total) break;
      if (spins > SPINS_BEFORE_WAIT) Atomics.wait(control, CONTROL.done, done, 1);
    }
    Atomics.store(control, CONTROL.state, (this.#generation << 12) | EXHAUSTED);
    if (Atomics.load(control, CONTROL.failed) !== 0) throw trapped(KERNEL_NAMES[index] ?? '');
  }

  #assertOpen(): void {
    if (this.#closed) throw new HoneError('engine-failed', 'The engine is closed.', { cure: 'Create a new one.' });
  }

  /** Ends the workers. The memory goes when nothing refers to it. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all(this.#retire(1).map((worker) => worker.terminate()));
  }
}

function trapped(kernel: string, cause?: unknown): HoneError {
  return new HoneError('engine-failed', `Kernel ${kernel} trapped.`, {
    cure: 'This is a fault of the engine; please report it with the model config.',
    cause,
  });
}

function align(pointer: number): number {
  return Math.ceil(pointer / 64) * 64;
}
