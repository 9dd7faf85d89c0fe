/**
 * The embedded trainer: the Trainer port over a worker thread that owns an engine, the master weights and the optimizer.
 * This file is the caller's side: it sends one request at a time and turns answers into promises. Bits depend on the
 * batch and the weights alone, never on threads.
 */
import { Worker } from 'node:worker_threads';

import type { LearningRateSchedule } from './learning-rate.ts';
import type { ObjectiveOptions } from './objective.ts';
import type { StepReport, TrainBatch, Trainer } from './trainer.ts';
import { HoneError } from '../domain/errors.ts';
import type { HoneErrorCode } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import type { PolicyVersion } from '../domain/ids.ts';

export interface OptimizerOptions extends LearningRateSchedule {
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly weightDecay: number;
  readonly clipNorm: number;
}

export interface EmbeddedTrainerOptions {
  /** config.json of the model, parsed. */
  readonly configJson: unknown;
  /** f32 weights of every tensor, by Hugging Face name. */
  readonly weights: ReadonlyMap<string, Float32Array>;
  readonly build: 'auto' | 'plain' | 'fma';
  readonly threads: number;
  /** Rows of one forward and backward pass. */
  readonly microBatchTokens: number;
  readonly objective: ObjectiveOptions;
  readonly optimizer: OptimizerOptions;
  /** false = full-vocabulary log-probabilities although the sampler was truncated; the config had to acknowledge that. */
  readonly replayKeptSets: boolean;
}

/** Places in a sequence, and what is asked there: the probability of a target among the ids of its kept row. */
export interface ScoreSequence {
  readonly tokens: Int32Array;
  /** Not descending: a place may be asked several things. */
  readonly positions: Int32Array;
  readonly targets: Int32Array;
  readonly kept: { readonly ids: Int32Array; readonly offsets: Int32Array };
}

export type TrainerRequest =
  | { readonly kind: 'step'; readonly batch: TrainBatch }
  | { readonly kind: 'served' }
  | { readonly kind: 'save'; readonly path: string }
  | { readonly kind: 'restore'; readonly path: string }
  | { readonly kind: 'score'; readonly sequences: readonly ScoreSequence[] }
  | { readonly kind: 'threads'; readonly threads: number };

export type TrainerReply =
  | { readonly id: number; readonly ok: true; readonly value: unknown }
  | {
      readonly id: number;
      readonly ok: false;
      readonly error: {
        readonly code?: HoneErrorCode;
        readonly message: string;
        readonly cure?: string;
        readonly stack?: string;
      };
    };

export class EmbeddedTrainer implements Trainer {
  readonly #worker: Worker;
  readonly #pending = new Map<number, { resolve: (value: unknown) => void; reject: (error: unknown) => void }>();
  #nextId = 0;
  #version = policyVersion(0);
  #closed = false;
  /** Why no request can be answered any more. */
  #failure: unknown;

  private constructor(worker: Worker) {
    this.#worker = worker;
    worker.on('message', (reply: TrainerReply) => {
      const waiting = this.#pending.get(reply.id);
      this.#pending.delete(reply.id);
      if (reply.ok) waiting?.resolve(reply.value);
      else
        waiting?.reject(
          reply.error.code === undefined
            ? new Error(reply.error.stack ?? reply.error.message)
            : new HoneError(
                reply.error.code,
                reply.error.message,
                reply.error.cure === undefined ? {} : { cure: reply.error.cure },
              ),
        );
    });
    worker.on('error', (error) => this.#fail(error));
    worker.on('exit', (code) => {
      if (!this.#closed)
        this.#fail(
          new HoneError('engine-failed', `The trainer thread ended with code ${code}.`, {
            cure: 'Resume the run: it goes on from the last checkpoint.',
          }),
        );
    });
  }

  static async start(options: EmbeddedTrainerOptions): Promise<EmbeddedTrainer> {
    const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
    const worker = new Worker(new URL(`./trainer-worker.${extension}`, import.meta.url), { workerData: options });
    const trainer = new EmbeddedTrainer(worker);
    await trainer.#call({ kind: 'threads', threads: options.threads });
    return trainer;
  }

  get version(): PolicyVersion {
    return this.#version;
  }

  async step(batch: TrainBatch): Promise<StepReport> {
    // The worker answers each kind of request with the value that its handler returns.
    const report = (await this.#call({ kind: 'step', batch })) as StepReport;
    this.#version = policyVersion(batch.step);
    return report;
  }

  async served(): Promise<Map<string, Uint8Array>> {
    return (await this.#call({ kind: 'served' })) as Map<string, Uint8Array>;
  }

  async save(path: string): Promise<void> {
    await this.#call({ kind: 'save', path });
  }

  async restore(path: string): Promise<void> {
    this.#version = policyVersion((await this.#call({ kind: 'restore', path })) as number);
  }

  /** Threads from now on; the bits do not depend on it. */
  async setThreads(threads: number): Promise<void> {
    await this.#call({ kind: 'threads', threads });
  }

  /** The log-probabilities asked for, at temperature 1, one array a sequence. */
  async score(sequences: readonly ScoreSequence[]): Promise<Float32Array[]> {
    return (await this.#call({ kind: 'score', sequences })) as Float32Array[];
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#worker.terminate();
    this.#fail(new HoneError('aborted', 'The trainer was closed.'));
  }

  #call(request: TrainerRequest): Promise<unknown> {
    if (this.#failure !== undefined) return Promise.reject(asError(this.#failure));
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#worker.postMessage({ id, request });
    });
  }

  #fail(error: unknown): void {
    this.#failure ??= error;
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
