/**
 * One rollout's recording session: turns in, token-exact segments out. It renders, finds the window that the prompt
 * continues, samples, and records a turn only when someone is still there to receive it.
 * Invariants: what the model wrote is never tokenised again; a retry of a served body adds no turn; after the seal
 * nothing is added.
 */
import { HoneError, reasonOf } from '../domain/errors.ts';
import { deriveSeed } from '../domain/ids.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { Generation, Policy, Sampling } from '../domain/policy.ts';
import { checkSegment } from '../domain/rollout.ts';
import type { Cost, Segment } from '../domain/rollout.ts';
import type { TemplateMessage } from '../model/chat-template.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { ChatError, echoKey } from './chat-request.ts';
import type { ChatRequest } from './chat-request.ts';
import { concatenate } from './prompt-text.ts';
import type { PromptText } from './prompt-text.ts';
import { SegmentTape } from './segment-tape.ts';
import { parseToolCalls } from './tool-calls.ts';
import type { ToolCall } from './tool-calls.ts';

export interface SessionOptions {
  readonly id: string;
  readonly sampling: Sampling;
  readonly seed: number;
  readonly minVersion?: PolicyVersion;
  readonly exactVersion?: PolicyVersion;
}

/** What one turn sends back, whatever the wire format. */
export interface Reply {
  readonly turn: number;
  readonly content: string;
  readonly calls: readonly ToolCall[];
  readonly finishReason: 'stop' | 'length' | 'tool_calls';
  readonly promptTokens: number;
  readonly completionTokens: number;
}

export interface SessionStats {
  readonly turns: number;
  /** Requests answered with a reply already served or in flight. */
  readonly replayedRetries: number;
  /** Segments begun because a prompt did not continue the window before it. */
  readonly newSegments: number;
  /** A prompt left no room in the context. */
  readonly truncated: boolean;
}

export interface SealedSession {
  readonly segments: readonly Segment[];
  readonly cost: Cost;
  readonly stats: SessionStats;
  /** The policy's last failure that no later turn made good: the cause of an infra-failed rollout. */
  readonly failure: string | undefined;
  /** Why nothing can be trained, when nothing was sampled. */
  readonly emptyReason: string | undefined;
}

export interface TurnContext {
  readonly bodyHash: string;
  readonly isRetry: boolean;
  /** Fires when this client went away. */
  readonly signal: AbortSignal;
  /** Called with each piece of sampled text; the stop token's text is not among them. */
  readonly onText?: (text: string) => void;
}

interface TurnInFlight {
  readonly bodyHash: string;
  readonly reply: Promise<Reply>;
  readonly controller: AbortController;
  waiters: number;
}

interface Base {
  readonly tape: SegmentTape;
  readonly tokenCount: number;
  readonly textLength: number;
}

interface EngineParts {
  readonly policy: Policy;
  readonly tokenizer: Tokenizer;
  readonly renderPrompt: (messages: readonly TemplateMessage[], tools: readonly unknown[] | undefined) => PromptText;
  /** Milliseconds, monotone. */
  readonly now: () => number;
}

export class RecordingSession {
  readonly #options: SessionOptions;
  readonly #parts: EngineParts;
  readonly #tapes: SegmentTape[] = [];
  /** The raw text behind each served reply, by its position in the message list and its echo key. */
  readonly #served = new Map<string, string>();
  readonly #inFlight = new Set<TurnInFlight>();
  #last: { bodyHash: string; reply: Reply } | undefined;
  #turnsStarted = 0;
  #turns = 0;
  #replayedRetries = 0;
  #truncated = false;
  #abandonedTurns = 0;
  #failure: string | undefined;
  #isSealed = false;
  #toolMs = 0;
  #idleSince: number | undefined;

  constructor(options: SessionOptions, parts: EngineParts) {
    this.#options = options;
    this.#parts = parts;
  }

  /** Serves one turn, or the stored reply when the request is an SDK's retry. Rejects with ChatError. */
  async turn(request: ChatRequest, context: TurnContext): Promise<Reply> {
    this.#refuseSealed();
    if (context.isRetry) {
      for (const turn of this.#inFlight) {
        if (turn.bodyHash !== context.bodyHash || turn.controller.signal.aborted) continue;
        this.#replayedRetries++;
        return this.#wait(turn, context.signal);
      }
      if (this.#last?.bodyHash === context.bodyHash) {
        this.#replayedRetries++;
        return this.#last.reply;
      }
    }
    if (this.#inFlight.size === 0 && this.#idleSince !== undefined) this.#toolMs += this.#parts.now() - this.#idleSince;
    const controller = new AbortController();
    const turn: TurnInFlight = {
      bodyHash: context.bodyHash,
      controller,
      waiters: 0,
      reply: this.#sample(request, context, controller.signal).finally(() => {
        this.#inFlight.delete(turn);
        this.#idleSince = this.#parts.now();
      }),
    };
    this.#inFlight.add(turn);
    return this.#wait(turn, context.signal);
  }

  /** Ends the session: turns in flight are aborted, later ones refused. Segments are checked before they go out. */
  async seal(): Promise<SealedSession> {
    this.#isSealed = true;
    const stragglers = [...this.#inFlight];
    for (const turn of stragglers) turn.controller.abort();
    await Promise.allSettled(stragglers.map((turn) => turn.reply));
    const segments = this.#tapes.map((tape) => tape.toSegment());
    for (const segment of segments) checkSegment(segment);
    const sampledTokens = this.#tapes.reduce((sum, tape) => sum + tape.sampledCount, 0);
    return {
      segments,
      cost: {
        tokens: segments.reduce((sum, segment) => sum + segment.tokens.length, 0),
        sampledTokens,
        turns: this.#turns,
        toolSeconds: this.#toolMs / 1000,
      },
      stats: {
        turns: this.#turns,
        replayedRetries: this.#replayedRetries,
        newSegments: Math.max(0, this.#tapes.length - 1),
        truncated: this.#truncated,
      },
      failure: this.#failure,
      emptyReason: sampledTokens > 0 ? undefined : this.#whyEmpty(),
    };
  }

  #whyEmpty(): string {
    if (this.#failure !== undefined) return `No token was sampled: the policy failed (${this.#failure}).`;
    if (this.#truncated) return 'No token was sampled: the first prompt filled the context.';
    if (this.#abandonedTurns > 0) return 'No token was sampled: every client went away before its reply.';
    return 'No token was sampled: the harness asked for no turn.';
  }

  #refuseSealed(): void {
    if (this.#isSealed)
      throw new ChatError(409, 'session_sealed', 'This session is sealed; no turn can be added to it.');
  }

  /** Waits for a turn on behalf of one client; the turn is aborted when its last client is gone. */
  async #wait(turn: TurnInFlight, signal: AbortSignal): Promise<Reply> {
    turn.waiters++;
    const leave = (): void => {
      turn.waiters--;
      if (turn.waiters === 0) turn.controller.abort();
    };
    if (signal.aborted) leave();
    else signal.addEventListener('abort', leave, { once: true });
    try {
      return await turn.reply;
    } finally {
      signal.removeEventListener('abort', leave);
    }
  }

  async #sample(request: ChatRequest, context: TurnContext, signal: AbortSignal): Promise<Reply> {
    const { policy } = this.#parts;
    const { sampling, seed, minVersion, exactVersion } = this.#options;
    const whole = this.#render(request);
    const base = this.#continuedWindow(whole.text);
    const tailText = whole.text.slice(base?.textLength ?? 0);
    const tail = whole.encodeFrom(base?.textLength ?? 0);
    const prompt = base === undefined ? tail : concatenate([base.tape.tokens(base.tokenCount), tail]);
    const room = policy.contextLength - prompt.length;
    if (room < 1) this.#refuseLong(prompt.length);

    const turnIndex = this.#turnsStarted++;
    let generation: Generation;
    try {
      generation = await policy.generate({
        tokens: prompt,
        sampling: {
          ...sampling,
          maxTokens: Math.min(sampling.maxTokens, request.maxTokens ?? sampling.maxTokens, room),
        },
        seed: deriveSeed(seed, 'turn', turnIndex),
        session: this.#options.id,
        signal,
        ...(minVersion === undefined ? {} : { minVersion }),
        ...(exactVersion === undefined ? {} : { exactVersion }),
        ...(context.onText === undefined ? {} : { onToken: this.#textStream(context.onText) }),
      });
      if (generation.finish === 'abort')
        throw new HoneError('aborted', 'The policy ended the request before its reply was whole.');
    } catch (cause) {
      // A turn that served nothing gives its seed back, so that the attempt after it draws the same tokens.
      if (this.#turnsStarted === turnIndex + 1) this.#turnsStarted = turnIndex;
      throw this.#refusalFor(cause, prompt.length, signal);
    }
    if (signal.aborted) throw this.#refusalFor(undefined, prompt.length, signal);
    const reply = this.#record(request, { base, tail, tailText, generation, turnIndex });
    this.#last = { bodyHash: context.bodyHash, reply };
    return reply;
  }

  /** The whole history as text; our own replies are rendered from what was sampled, not from what came back. */
  #render(request: ChatRequest): PromptText {
    const messages = request.messages.map((message, index) => {
      const sampled = message.echoKey === undefined ? undefined : this.#served.get(`${index} ${message.echoKey}`);
      return sampled === undefined ? message.template : { role: 'assistant', content: sampled };
    });
    try {
      return this.#parts.renderPrompt(messages, request.tools);
    } catch (cause) {
      throw cause instanceof HoneError ? new ChatError(400, 'invalid_messages', cause.message) : cause;
    }
  }

  /** The window that the text continues whole; else the longest beginning of one that it shares. */
  #continuedWindow(text: string): Base | undefined {
    let best: Base | undefined;
    for (const tape of this.#tapes) {
      const boundary = tape.sharedBoundary(text);
      if (boundary !== undefined && (best === undefined || boundary.textLength >= best.textLength))
        best = { tape, ...boundary };
    }
    return best;
  }

  #record(
    request: ChatRequest,
    turn: { base: Base | undefined; tail: Int32Array; tailText: string; generation: Generation; turnIndex: number },
  ): Reply {
    const { tokenizer } = this.#parts;
    const { base, generation } = turn;
    const tape = this.#tapeFor(base);
    tape.appendEnvironment(turn.tail, turn.tailText);
    const promptTokens = tape.tokenCount;
    const sampledText = tokenizer.decode(generation.tokens);
    const stopped = generation.finish === 'stop';
    const text = stopped ? tokenizer.decode(generation.tokens.subarray(0, -1)) : sampledText;
    tape.appendSampled(generation, sampledText, sampledText.length - text.length);
    this.#turns++;
    this.#failure = undefined;

    const { content, calls } = request.parseTools ? parseToolCalls(text) : { content: text, calls: [] };
    this.#served.set(`${request.messages.length} ${echoKey(content, calls)}`, text);
    return {
      turn: turn.turnIndex,
      content,
      calls,
      finishReason: finishReason(stopped, calls.length),
      promptTokens,
      completionTokens: generation.tokens.length,
    };
  }

  /** The tape to append to: the base itself when it ends there, else a new one that begins with the base's ids, untrained. */
  #tapeFor(base: Base | undefined): SegmentTape {
    if (base !== undefined && base.tape.tokenCount === base.tokenCount) return base.tape;
    const { sampling } = this.#options;
    const tape = new SegmentTape(sampling.greedy ? 1 : sampling.temperature);
    if (base !== undefined)
      tape.appendEnvironment(base.tape.tokens(base.tokenCount), base.tape.text.slice(0, base.textLength));
    this.#tapes.push(tape);
    return tape;
  }

  #textStream(onText: (text: string) => void): (id: number) => void {
    const decoder = this.#parts.tokenizer.createStreamDecoder();
    const stops = new Set(this.#options.sampling.stopIds);
    return (id) => {
      const text = stops.has(id) ? decoder.flush() : decoder.push(id);
      if (text.length > 0) onText(text);
    };
  }

  #refuseLong(promptTokens: number): never {
    this.#truncated = true;
    throw new ChatError(
      400,
      'context_length_exceeded',
      `The prompt has ${promptTokens} tokens, and the model's context holds ${this.#parts.policy.contextLength}; shorten the messages.`,
    );
  }

  #refusalFor(cause: unknown, promptTokens: number, signal: AbortSignal): ChatError {
    if (signal.aborted) this.#abandonedTurns++;
    if (signal.aborted)
      return this.#isSealed
        ? new ChatError(409, 'session_sealed', 'This session was sealed while the turn ran; the turn was not added.')
        : new ChatError(499, 'client_closed_request', 'The client went away; the turn was not added.');
    if (cause instanceof HoneError && cause.code === 'context-too-small') this.#refuseLong(promptTokens);
    this.#failure = reasonOf(cause);
    return new ChatError(503, 'policy_unavailable', `The policy could not answer: ${this.#failure}`);
  }
}

function finishReason(stopped: boolean, calls: number): Reply['finishReason'] {
  if (!stopped) return 'length';
  return calls > 0 ? 'tool_calls' : 'stop';
}
