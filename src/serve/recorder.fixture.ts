/**
 * A fake policy for the tests of the room: it writes scripted text where an engine would sample; all else is real.
 */
import { createRandom, policyVersion } from '../domain/ids.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { GenerateRequest, Generation, Policy, Sampling } from '../domain/policy.ts';
import { DEFAULT_SAMPLING } from '../domain/policy.ts';
import type { VersionSpan } from '../domain/rollout.ts';
import { HoneError } from '../domain/errors.ts';
import type { Tokenizer } from '../model/tokenizer.ts';

export function samplingFor(tokenizer: Tokenizer, maxTokens = 256): Sampling {
  return { ...DEFAULT_SAMPLING, maxTokens, stopIds: [tokenizer.endOfSequence.id] };
}

export interface FakePolicyOptions {
  readonly tokenizer: Tokenizer;
  /** The text that the model writes for the n-th request; a stop token is added unless it ends in the cut mark. */
  readonly write: (turn: number, request: GenerateRequest) => string;
  readonly contextLength?: number;
  /** Waits this long between two tokens. */
  readonly tokenDelayMs?: number;
  readonly fail?: (turn: number) => Error | undefined;
  /** The stop token; the tokenizer's own unless given. */
  readonly stopId?: number;
  /** Breaks after this many tokens of every reply. */
  readonly failAfterTokens?: number;
  /** Goes on to the end whatever the signal says, as a remote engine may. */
  readonly isDeafToAbort?: boolean;
}

/** Ends a scripted text that stops at the length limit, without a stop token. */
export const CUT = '\u0000cut';

/** A fake engine: scripted text, odd tokenisation (one token a byte where chance says so), made-up log-probabilities. */
export class FakePolicy implements Policy {
  readonly contextLength: number;
  readonly requests: GenerateRequest[] = [];
  readonly generations: Generation[] = [];
  version: PolicyVersion = policyVersion(3);
  aborted = 0;
  readonly #options: FakePolicyOptions;

  constructor(options: FakePolicyOptions) {
    this.#options = options;
    this.contextLength = options.contextLength ?? 4096;
  }

  async generate(request: GenerateRequest): Promise<Generation> {
    const {
      tokenizer,
      write,
      tokenDelayMs,
      fail,
      failAfterTokens,
      isDeafToAbort,
      stopId = tokenizer.endOfSequence.id,
    } = this.#options;
    const turn = this.requests.length;
    this.requests.push(request);
    const error = fail?.(turn);
    if (error !== undefined) throw error;
    if (request.tokens.length >= this.contextLength)
      throw new HoneError('context-too-small', `The prompt has ${request.tokens.length} tokens.`);
    const random = createRandom(request.seed);
    const script = write(turn, request);
    const cut = script.endsWith(CUT);
    const ids: number[] = [];
    // Half of the words are written byte by byte: ids that encoding the text again would never give.
    for (const word of (cut ? script.slice(0, -CUT.length) : script).split(/(?<= )/))
      ids.push(...(random.next() < 0.5 ? tokenizer.encode(word) : Array.from(new TextEncoder().encode(word))));
    if (!cut) ids.push(stopId);
    const drawn = ids.slice(0, request.sampling.maxTokens);
    const finish = cut || drawn.length < ids.length ? 'length' : 'stop';
    const kept: number[] = [];
    const offsets = new Int32Array(drawn.length + 1);
    const logprobs = new Float32Array(drawn.length);
    const half = drawn.length >> 1;
    for (const [index, id] of drawn.entries()) {
      if (tokenDelayMs !== undefined) await new Promise((resolve) => setTimeout(resolve, tokenDelayMs));
      if (index === failAfterTokens) throw new Error('the engine broke in mid-reply');
      if (request.signal?.aborted === true && isDeafToAbort !== true) {
        this.aborted++;
        throw new HoneError('aborted', 'The request was aborted.');
      }
      const row = Int32Array.from(new Set([id, 7, 300])).sort();
      kept.push(...row);
      offsets[index + 1] = kept.length;
      logprobs[index] = -random.next();
      const version = half > 0 && index >= half ? policyVersion(this.version + 1) : this.version;
      request.onToken?.(id, { logprob: logprobs[index] ?? 0, kept: row, version });
    }
    const versions: VersionSpan[] =
      half > 0
        ? [
            { version: this.version, start: 0, end: half },
            { version: policyVersion(this.version + 1), start: half, end: drawn.length },
          ]
        : [{ version: this.version, start: 0, end: drawn.length }];
    const generation: Generation = {
      tokens: Int32Array.from(drawn),
      logprobs,
      kept: { ids: Int32Array.from(kept), offsets },
      versions,
      finish,
    };
    this.generations.push(generation);
    return generation;
  }
}
