/**
 * The engine's speed as shares of the multiply-add peak that this machine reaches in the same run, on two threads:
 * a matrix product, a train step of a 5M-parameter model, and sampling at batch 32. Exits non-zero below a floor.
 * The peak is measured with 128-bit lanes, as wasm has them, and doubled: the floors are shares of the 256-bit peak.
 */
import { policyVersion } from '../src/domain/ids.ts';
import { DEFAULT_SAMPLING } from '../src/domain/policy.ts';
import { initialWeights, type ModelConfig } from '../src/model/config.ts';
import { createEngine } from '../src/model/engine.ts';
import { multiply } from '../src/model/operations.ts';
import { Sampler } from '../src/model/sampler.ts';
import { TrainingModel } from '../src/model/training.ts';

const FLOORS = { product: 0.26, trainStep: 0.15, outsideKernels: 0.25 };
/** 243 dense and 39 of attention without causal skipping, for 8,192 tokens. */
const TRAIN_STEP_GFLOP = 282;
const CONFIG: ModelConfig = {
  architecture: 'llama',
  hiddenSize: 256,
  intermediateSize: 704,
  layers: 6,
  heads: 8,
  kvHeads: 8,
  headDim: 32,
  vocabSize: 512,
  contextLength: 257,
  rmsNormEpsilon: 1e-6,
  ropeTheta: 10_000,
  ropeScaling: undefined,
  qkNorm: false,
  qkvBias: false,
  tiedEmbeddings: false,
  eosTokenIds: [],
};

const engine = await createEngine({ threads: 2 });

function seconds(work: () => void): number {
  const started = performance.now();
  work();
  return (performance.now() - started) / 1000;
}

const peakOut = engine.allocFloats(4);
// About as long as one product, so that both meet the same neighbours.
const peakItems = 40_000_000;
const peakRate = (): number => (2 * 80 * peakItems) / seconds(() => engine.run('peak', peakItems, 1, peakOut)) / 1e9;

const [rows, depth, columns] = [8192, 256, 1024];
const operands = {
  to: engine.allocFloats(rows * columns),
  a: engine.allocF32(new Float32Array(rows * depth).fill(0.5)),
  b: engine.allocF32(new Float32Array(columns * depth).fill(0.25)),
  rows,
  columns,
  depth,
  lda: depth,
  ldc: columns,
  panelStride: depth * 8,
  addend: 0,
  bias: 0,
};
const productRate = (): number => (2 * rows * columns * depth) / seconds(() => multiply(engine, operands)) / 1e9;

const model = TrainingModel.create(engine, CONFIG, initialWeights(CONFIG, 1));
const sequences = Array.from({ length: 32 }, (_, sequence) => ({
  tokens: Int32Array.from({ length: 257 }, (_unused, position) => (sequence * 31 + position * 17) % CONFIG.vocabSize),
  positions: Int32Array.from({ length: 256 }, (_unused, position) => position + 1),
  temperature: 1,
}));
function trainStep(): void {
  for (let first = 0; first < 32; first += 8)
    model.accumulate(sequences.slice(first, first + 8), (outputs) =>
      outputs.map(({ logprobs }) => ({ logprobs: new Float32Array(logprobs.length).fill(-1 / 8192) })),
    );
  model.step({ learningRate: 1e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weightDecay: 0.01, clipNorm: 1 });
}

const sampler = Sampler.create(engine, CONFIG, model.servedWeights(), { version: policyVersion(0), slots: 32 });
let seed = 0;
function sampleBatch(): { tokensPerSecond: number; outside: number } {
  for (let request = 0; request < 32; request++)
    sampler.submit({
      tokens: Int32Array.from({ length: 16 }, (_, position) => (seed * 7 + position * 3) % CONFIG.vocabSize),
      sampling: { ...DEFAULT_SAMPLING, topP: 0.95, maxTokens: 128, stopIds: [] },
      seed: seed++,
      onFinish: () => {},
    });
  const before = sampler.stats;
  const elapsed = seconds(() => {
    while (sampler.step() > 0);
  });
  const { kernelMs, otherMs, sampledTokens } = sampler.stats;
  const other = otherMs - before.otherMs;
  return {
    tokensPerSecond: (sampledTokens - before.sampledTokens) / elapsed,
    outside: other / (other + kernelMs - before.kernelMs),
  };
}

/** The share of the peak that `rate` reaches, with the peak measured before and after it. */
function shareOfPeak(rate: () => number): { share: number; rate: number } {
  const before = peakRate() + peakRate();
  const reached = rate();
  const around = (before + peakRate() + peakRate()) / 4;
  peaks.push(around);
  return { share: reached / around, rate: reached };
}
function median<T>(items: readonly T[], key: (item: T) => number): T {
  const item = items.toSorted((a, b) => key(a) - key(b))[Math.floor(items.length / 2)];
  if (item === undefined) throw new RangeError('median of nothing');
  return item;
}

// The first calls run in the baseline compiler. Then everything is measured in turns, and the median of each is taken.
const peaks: number[] = [];
peakRate();
productRate();
trainStep();
sampleBatch();
const products: { share: number; rate: number }[] = [];
const steps: { share: number; rate: number }[] = [];
const samples: { tokensPerSecond: number; outside: number }[] = [];
for (let round = 0; round < 3; round++) {
  for (let repeat = 0; repeat < 5; repeat++) products.push(shareOfPeak(productRate));
  steps.push(shareOfPeak(() => TRAIN_STEP_GFLOP / seconds(trainStep)));
  samples.push(sampleBatch());
}
await engine.close();

const peak = median(peaks, (rate) => rate);
const product = median(products, ({ share }) => share);
const step = median(steps, ({ share }) => share);
const sample = median(samples, ({ outside }) => outside);

console.log(
  `build ${engine.build}, 2 threads; peak ${peak.toFixed(0)} GFLOP/s = twice the ${(peak / 2).toFixed(0)} measured with 128-bit lanes; shares are medians, each against the peak around it`,
);
const line = (name: string, ratio: number, floor: number, holds: boolean, note: string): boolean => {
  console.log(`${name.padEnd(36)} ${ratio.toFixed(3)}   bound ${floor} ${holds ? 'held' : 'MISSED'}   ${note}`);
  return holds;
};
const held = [
  line(
    'product 8192 x 256 x 1024 / peak',
    product.share,
    FLOORS.product,
    product.share >= FLOORS.product,
    `${product.rate.toFixed(0)} GFLOP/s`,
  ),
  line(
    'train step of 8,192 tokens / peak',
    step.share,
    FLOORS.trainStep,
    step.share >= FLOORS.trainStep,
    `${((step.rate * 8192) / TRAIN_STEP_GFLOP).toFixed(0)} tokens/s, nominal ${TRAIN_STEP_GFLOP} GFLOP`,
  ),
  line(
    'sampling: share outside kernels',
    sample.outside,
    FLOORS.outsideKernels,
    sample.outside <= FLOORS.outsideKernels,
    `${sample.tokensPerSecond.toFixed(0)} tokens/s at batch 32`,
  ),
];
if (held.includes(false)) process.exitCode = 1;
