/**
 * The embedded trainer's thread: owns the engine, the model and the optimizer, and answers one request after another.
 * A step sees the batch and the weights alone; nothing here reads a clock but to report how long things took.
 */
import { parentPort, workerData } from 'node:worker_threads';

import { loadCheckpoint, saveCheckpoint } from './checkpoint.ts';
import type { EmbeddedTrainerOptions, ScoreSequence, TrainerReply, TrainerRequest } from './embedded-trainer.ts';
import { learningRateAt } from './learning-rate.ts';
import { ObjectiveSums, countTrained, objectiveGradient, toObjectiveSequences } from './objective.ts';
import type { StepReport, TrainBatch } from './trainer.ts';
import { HoneError, reasonOf } from '../domain/errors.ts';
import { parseModelConfig } from '../model/config.ts';
import { createEngine } from '../model/engine.ts';
import { TrainingModel } from '../model/training.ts';

const port = parentPort;
if (port === null) throw new Error('trainer-worker runs as a worker thread');
// The caller passes its options as workerData; see EmbeddedTrainer.start.
const options = workerData as EmbeddedTrainerOptions;
const config = parseModelConfig(options.configJson);
const engine = await createEngine({ build: options.build, threads: options.threads });
const model = TrainingModel.create(engine, config, options.weights, { microBatchTokens: options.microBatchTokens });
let version = 0;

function step(batch: TrainBatch): StepReport {
  const started = performance.now();
  if (batch.step !== version + 1)
    throw new HoneError('engine-failed', `Step ${batch.step} was asked of a trainer at version ${version}.`, {
      cure: 'Resume the run from its newest checkpoint.',
    });
  const sequences = toObjectiveSequences(batch.samples, version);
  const trained = countTrained(sequences);
  if (trained === 0)
    throw new HoneError('invalid-rollout', `The batch of step ${batch.step} has no token to train.`, {
      cure: 'Check that the recorder marks sampled tokens as trained.',
    });
  const sums = new ObjectiveSums();
  const inputs = sequences.map(({ tokens, positions, kept, temperature }) => ({
    tokens,
    positions,
    temperature,
    ...(options.replayKeptSets ? { kept } : {}),
  }));
  model.accumulate(inputs, (outputs) =>
    outputs.map((output, index) => {
      const sequence = sequences[index];
      if (sequence === undefined) throw new RangeError('more outputs than sequences');
      return objectiveGradient(sequence, output, trained, options.objective, sums);
    }),
  );
  const { optimizer } = options;
  const learningRate = learningRateAt(optimizer, batch.step);
  const { applied, gradientNorm } = model.step({
    ...optimizer,
    learningRate,
  });
  version = batch.step;
  return {
    step: batch.step,
    applied,
    loss: sums.loss,
    gradientNorm,
    learningRate,
    sequences: sequences.length,
    tokens: sequences.reduce((sum, { tokens }) => sum + tokens.length, 0),
    trainedTokens: trained,
    entropy: sums.entropy / trained,
    singletonShare: sums.singletons / trained,
    meanKept: sums.kept / trained,
    truncatedShare: sums.truncated / trained,
    mismatch: sums.mismatch(),
    computeMs: performance.now() - started,
  };
}

async function restore(path: string): Promise<number> {
  const state = await loadCheckpoint(path);
  model.restore(state.master, {
    step: state.optimizerSteps,
    firstMoments: state.firstMoments,
    secondMoments: state.secondMoments,
  });
  version = state.version;
  return version;
}

async function save(path: string): Promise<void> {
  const { step: optimizerSteps, firstMoments, secondMoments } = model.optimizerState();
  await saveCheckpoint(path, { version, optimizerSteps, master: model.master(), firstMoments, secondMoments });
}

function score(sequences: readonly ScoreSequence[]): Float32Array[] {
  return model.evaluate(sequences.map((sequence) => ({ ...sequence, temperature: 1 }))).map(({ logprobs }) => logprobs);
}

async function handle(request: TrainerRequest): Promise<unknown> {
  switch (request.kind) {
    case 'step':
      return step(request.batch);
    case 'served':
      return model.servedWeights();
    case 'save':
      return save(request.path);
    case 'restore':
      return restore(request.path);
    case 'score':
      return score(request.sequences);
    case 'threads':
      engine.setThreads(request.threads);
      return undefined;
    default:
      return request satisfies never;
  }
}

// One after another: a request must not overtake a save that is under way.
let queue: Promise<void> = Promise.resolve();
port.on('message', ({ id, request }: { id: number; request: TrainerRequest }) => {
  queue = queue.then(async () => {
    let reply: TrainerReply;
    try {
      reply = { id, ok: true, value: await handle(request) };
    } catch (error) {
      const known =
        error instanceof HoneError
          ? { code: error.code, ...(error.cure === undefined ? {} : { cure: error.cure }) }
          : {};
      reply = {
        id,
        ok: false,
        error: {
          ...known,
          message: reasonOf(error),
          ...(error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {}),
        },
      };
    }
    port.postMessage(reply);
  });
});
