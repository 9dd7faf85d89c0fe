/**
 * The loop of an engine's worker thread, and the control words that it shares with the engine.
 * A worker claims chunks of the current job, spins briefly when there is none, then sleeps on the wake word.
 * Invariant: a chunk is claimed once, and a job's arguments stand still until all of its chunks are done.
 */
import { isMainThread, parentPort, workerData } from 'node:worker_threads';

export type Kernel = (begin: number, end: number, ...args: number[]) => void;

export const KERNEL_NAMES = [
  'pack_rows',
  'pack_columns',
  'expand',
  'matmul',
  'matmul_weight',
  'bias_gradient',
  'embed',
  'embed_gradient',
  'gather',
  'scatter_add',
  'rmsnorm',
  'rmsnorm_backward',
  'rmsnorm_weight',
  'swiglu',
  'swiglu_backward',
  'rope_query',
  'rope_cache',
  'rope_backward',
  'attention',
  'attention_backward',
  'head_logprob',
  'head_gradient',
  'sample',
  'sum_squares',
  'take',
  'round_bf16',
  'adamw',
  'peak',
] as const;
export type KernelName = (typeof KERNEL_NAMES)[number];

/** Offsets into the control words; those that threads contend for lie on cache lines of their own. */
export const CONTROL = {
  /** generation << 12 | next chunk to claim. */
  state: 0,
  total: 16,
  kernel: 17,
  items: 18,
  chunk: 19,
  arguments: 20,
  done: 32,
  wake: 48,
  sleepers: 49,
  failed: 50,
  /** Workers in service: one with a higher number claims nothing any more. */
  workers: 51,
  /** Chunks that workers, not the engine's own thread, have run. */
  helped: 52,
} as const;
export const CONTROL_LENGTH = 64;
export const MAX_ARGUMENTS = 24;
/** The next-chunk value of a state with nothing to claim. */
export const EXHAUSTED = 0xfff;
const SPINS_BEFORE_SLEEP = 5000;

/** Claims and runs chunks until none is left, as worker `self` (0 is the engine's own thread). Returns whether it ran any. */
export function runChunks(self: number, control: Int32Array, args: Float64Array, kernels: readonly Kernel[]): boolean {
  let ran = false;
  for (;;) {
    const state = Atomics.load(control, CONTROL.state);
    const index = state & EXHAUSTED;
    const total = Atomics.load(control, CONTROL.total);
    if (index === EXHAUSTED || index >= total || self > Atomics.load(control, CONTROL.workers)) return ran;
    if (Atomics.compareExchange(control, CONTROL.state, state, state + 1) !== state) continue;
    ran = true;
    if (self > 0) Atomics.add(control, CONTROL.helped, 1);
    const chunk = Atomics.load(control, CONTROL.chunk);
    const begin = index * chunk;
    const end = Math.min(Atomics.load(control, CONTROL.items), begin + chunk);
    try {
      // The index was stored by the engine that gave us this very list.
      (kernels[Atomics.load(control, CONTROL.kernel)] as Kernel)(
        begin,
        end,
        ...args.subarray(0, Atomics.load(control, CONTROL.arguments)),
      );
    } catch {
      Atomics.store(control, CONTROL.failed, 1);
    }
    if (Atomics.add(control, CONTROL.done, 1) + 1 === total) Atomics.notify(control, CONTROL.done);
  }
}

interface EngineWorkerData {
  readonly self: number;
  readonly engineModule: WebAssembly.Module;
  readonly memory: WebAssembly.Memory;
  readonly control: Int32Array;
  readonly kernelArguments: Float64Array;
  readonly stackPointer: number;
}

function isEngineWorkerData(data: unknown): data is EngineWorkerData {
  return typeof data === 'object' && data !== null && 'engineModule' in data;
}

function serve(data: EngineWorkerData): void {
  const { exports } = new WebAssembly.Instance(data.engineModule, { env: { memory: data.memory } });
  (exports['__stack_pointer'] as WebAssembly.Global).value = data.stackPointer;
  const kernels = KERNEL_NAMES.map((name) => exports[name] as Kernel);
  const { control, self } = data;
  parentPort?.postMessage('ready');
  for (let idle = 0; self <= Atomics.load(control, CONTROL.workers); idle++) {
    if (runChunks(self, control, data.kernelArguments, kernels)) idle = 0;
    if (idle < SPINS_BEFORE_SLEEP) continue;
    const wake = Atomics.load(control, CONTROL.wake);
    if (runChunks(self, control, data.kernelArguments, kernels) || self > Atomics.load(control, CONTROL.workers))
      continue;
    Atomics.add(control, CONTROL.sleepers, 1);
    Atomics.wait(control, CONTROL.wake, wake);
    Atomics.sub(control, CONTROL.sleepers, 1);
    idle = 0;
  }
}

if (!isMainThread && isEngineWorkerData(workerData)) serve(workerData);
