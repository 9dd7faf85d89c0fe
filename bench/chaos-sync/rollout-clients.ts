/**
 * Clients that sample through the fleet as rollout workers do: each request has an id, is opened, generated, and then either
 * accepted into the data buffer or dropped for a reason. Owns the client's side of the record.
 * Invariant: a rollout is in the buffer before the log says that it was accepted, and every opened request ends in the log.
 */
import { HoneError, reasonOf } from '../../src/domain/errors.ts';
import { createRandom, deriveSeed, groupId, policyVersion, rolloutId, type Random } from '../../src/domain/ids.ts';
import { STANDARD_EFFORT } from '../../src/domain/effort.ts';
import { DEFAULT_SAMPLING, type GenerateRequest, type Generation, type Policy } from '../../src/domain/policy.ts';
import { checkSegment, type Rollout, type Segment } from '../../src/domain/rollout.ts';
import type { RolloutBuffer } from '../../src/rollout/buffer.ts';
import { sampleTask } from '../../src/rollout/rollout.fixture.ts';
import type { ServiceLog } from '../../src/serve/service/service-log.ts';
import type { FinishedGeneration } from './resample.ts';

export interface RolloutClientsOptions {
  /** One request's way to the fleet; `onResume` is told of each stream that went on, with the tokens drawn before. */
  readonly policyFor: (request: string, onResume: (at: number) => void) => Policy;
  readonly buffer: RolloutBuffer;
  readonly log: ServiceLog;
  readonly streams: number;
  readonly seed: number;
  readonly vocabSize: number;
  readonly stopIds: readonly number[];
  /** Longest reply. */
  readonly maxTokens: number;
  /** For one request, tries and waits included. */
  readonly deadlineMs: number;
}

export class RolloutClients {
  readonly #options: RolloutClientsOptions;
  readonly #stop = new AbortController();
  readonly #streams: Promise<void>[];
  #ordinal = 0;
  #open = 0;
  accepted = 0;
  dropped = 0;
  tokens = 0;
  resumed = 0;
  /** Newest version that any reply had. */
  newestVersion = 0;
  readonly finished: FinishedGeneration[] = [];
  readonly dropReasons = new Map<string, number>();

  constructor(options: RolloutClientsOptions) {
    this.#options = options;
    this.#streams = Array.from({ length: options.streams }, (_, stream) => this.#run(stream));
  }

  get open(): number {
    return this.#open;
  }

  /** Opens no more requests; resolves when the open ones have ended, at the latest after their deadline. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#streams);
  }

  async #run(stream: number): Promise<void> {
    const random = createRandom(deriveSeed(this.#options.seed, 'client', stream));
    while (!this.#stop.signal.aborted) await this.#request(this.#ordinal++, random);
  }

  async #request(ordinal: number, random: Random): Promise<void> {
    const { buffer, log, policyFor, deadlineMs } = this.#options;
    const request = `request-${ordinal}`;
    const task = sampleTask(ordinal);
    const asked = this.#ask(ordinal, random);
    const { tokens: prompt, sampling, seed, minVersion } = asked;
    buffer.admit(ordinal, groupId(request), task, policyVersion(this.newestVersion));
    log.append({ event: 'request-open', request, seed, prompt: prompt.length, minVersion });
    this.#open += 1;
    const streamed: number[] = [];
    const resumedAt: number[] = [];
    try {
      const policy = policyFor(request, (at) => resumedAt.push(at));
      const signal = AbortSignal.timeout(deadlineMs);
      const generation = await policy.generate({
        ...asked,
        session: request,
        signal,
        onToken: (id) => streamed.push(id),
      });
      if (generation.finish === 'abort') throw new HoneError('aborted', `${request} was aborted.`);
      const rollout = rolloutOf(request, { task, asked, generation });
      buffer.addRollout(ordinal, rollout);
      buffer.markReady(ordinal);
      log.append({
        event: 'request-accepted',
        request,
        tokens: [...generation.tokens],
        streamed,
        versions: generation.versions,
        finish: generation.finish,
        resumedAt,
      });
      this.#count(generation, resumedAt);
      this.finished.push({
        request,
        prompt: [...prompt],
        sampling,
        seed,
        tokens: [...generation.tokens],
        logprobs: generation.logprobs,
        versions: generation.versions,
        resumedAt,
      });
    } catch (error) {
      const code = error instanceof HoneError ? error.code : 'internal';
      buffer.drop(ordinal, code);
      log.append({ event: 'request-dropped', request, code, reason: reasonOf(error), streamed: streamed.length });
      this.dropped += 1;
      this.dropReasons.set(code, (this.dropReasons.get(code) ?? 0) + 1);
    } finally {
      this.#open -= 1;
    }
  }

  /** Every fourth request begins a prompt that the next three share; one in five insists on a version that it saw. */
  #ask(ordinal: number, random: Random): GenerateRequest {
    const { seed, vocabSize, stopIds, maxTokens } = this.#options;
    const words = createRandom(deriveSeed(seed, 'prompt', Math.floor(ordinal / 4)));
    const tokens = Int32Array.from({ length: 16 + words.below(64) }, () => words.below(vocabSize));
    const insists = random.next() < 0.2 && this.newestVersion > 0;
    return {
      tokens,
      sampling: {
        ...DEFAULT_SAMPLING,
        temperature: random.pick([0.7, 1]),
        topP: random.pick([0.9, 1]),
        topK: random.pick([0, 40]),
        maxTokens: 8 + random.below(maxTokens - 8),
        stopIds,
      },
      seed: deriveSeed(seed, 'draws', ordinal),
      ...(insists ? { minVersion: policyVersion(this.newestVersion) } : {}),
    };
  }

  #count(generation: Generation, resumedAt: readonly number[]): void {
    this.accepted += 1;
    this.tokens += generation.tokens.length;
    this.resumed += resumedAt.length;
    this.newestVersion = Math.max(this.newestVersion, ...generation.versions.map(({ version }) => version));
  }
}

function rolloutOf(
  request: string,
  { task, asked, generation }: { task: ReturnType<typeof sampleTask>; asked: GenerateRequest; generation: Generation },
): Rollout {
  const segment = segmentOf(asked, generation);
  checkSegment(segment);
  return {
    id: rolloutId(request),
    taskId: task.id,
    groupId: groupId(request),
    attempt: 0,
    effort: STANDARD_EFFORT,
    segments: [segment],
    cost: { tokens: segment.tokens.length, sampledTokens: generation.tokens.length, turns: 1, toolSeconds: 0 },
    status: generation.finish === 'stop' ? 'completed' : 'truncated',
    seed: asked.seed,
    admittedVersion: policyVersion(asked.minVersion ?? 0),
    lookups: 0,
  };
}

/** Prompt and reply as training sees them. */
function segmentOf({ tokens: prompt, sampling }: GenerateRequest, generation: Generation): Segment {
  const length = prompt.length + generation.tokens.length;
  const tokens = new Int32Array(length);
  tokens.set(prompt);
  tokens.set(generation.tokens, prompt.length);
  const logprobs = new Float32Array(length);
  logprobs.set(generation.logprobs, prompt.length);
  const offsets = new Int32Array(length + 1);
  offsets.set(generation.kept.offsets, prompt.length);
  return {
    tokens,
    trained: new Uint8Array(length).fill(1, prompt.length),
    logprobs,
    kept: { ids: generation.kept.ids, offsets },
    versions: generation.versions.map(({ version, start, end }) => ({
      version,
      start: start + prompt.length,
      end: end + prompt.length,
    })),
    temperature: sampling.temperature,
  };
}
