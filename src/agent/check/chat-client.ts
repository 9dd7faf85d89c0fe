/**
 * Plain OpenAI chat completions over HTTP for one episode: budgets, retries, abort. It keeps the conversation's cost
 * and nothing of its content. Invariant: a request that is tried again has the same bytes and says so in
 * `x-stainless-retry-count`, so that a server can tell a retry from a new turn.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Agent, request } from 'undici';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import type { Submission } from '../../domain/finding.ts';
import type { HarnessContext } from '../../domain/harness.ts';

export interface ToolCallMessage {
  readonly id: string;
  readonly type: 'function';
  readonly function: { readonly name: string; readonly arguments: string };
}

export type Message =
  | { readonly role: 'system' | 'user'; readonly content: string }
  | { readonly role: 'assistant'; readonly content: string | null; readonly tool_calls?: readonly ToolCallMessage[] }
  | { readonly role: 'tool'; readonly tool_call_id: string; readonly content: string };

export type ChatResult =
  | { readonly kind: 'reply'; readonly content: string; readonly toolCalls: readonly ToolCallMessage[] }
  | { readonly kind: 'end'; readonly reason: Exclude<Submission['end'], 'finished' | 'malformed'> };

const MAX_RETRIES = 4;
const FIRST_BACKOFF_MS = 200;
const LONGEST_BACKOFF_MS = 5_000;

/** One pool of kept-alive connections for all episodes of a harness; idle sockets do not hold the process. */
export function createConnections(): Agent {
  return new Agent({ keepAliveTimeout: 60_000, headersTimeout: 0, bodyTimeout: 0 });
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function retryDelayMs(attempt: number, retryAfter: string | string[] | undefined): number {
  const seconds = typeof retryAfter === 'string' ? Number(retryAfter) : Number.NaN;
  const backoffMs = FIRST_BACKOFF_MS * 2 ** attempt;
  return Math.min(Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : backoffMs, LONGEST_BACKOFF_MS);
}

function readToolCalls(value: unknown): ToolCallMessage[] {
  if (!Array.isArray(value)) return [];
  return value.flatMap((call: unknown) => {
    if (!isRecord(call) || typeof call['id'] !== 'string' || !isRecord(call['function'])) return [];
    const { name, arguments: text } = call['function'];
    return typeof name === 'string' && typeof text === 'string'
      ? [{ id: call['id'], type: 'function' as const, function: { name, arguments: text } }]
      : [];
  });
}

export class ChatClient {
  readonly #context: HarnessContext;
  readonly #connections: Agent;
  readonly #deadline: AbortSignal;
  readonly #signal: AbortSignal;
  #turns = 0;
  #completionTokens = 0;

  constructor(context: HarnessContext, connections: Agent) {
    this.#context = context;
    this.#connections = connections;
    this.#deadline = AbortSignal.timeout(Math.ceil(context.budget.maxSeconds * 1000));
    this.#signal = AbortSignal.any([context.signal, this.#deadline]);
  }

  get turns(): number {
    return this.#turns;
  }

  get turnsLeft(): number {
    return this.#context.budget.maxTurns - this.#turns;
  }

  /**
   * One turn, or the reason why there is none. Throws `aborted` when the caller's signal fired and `engine-failed`
   * when the server refuses the request or stays unreachable.
   */
  async complete(messages: readonly Message[], tools?: readonly object[]): Promise<ChatResult> {
    const { budget, model, signal } = this.#context;
    const tokensLeft = budget.maxTokens - this.#completionTokens;
    if (this.turnsLeft < 1) return { kind: 'end', reason: 'turn-budget' };
    if (tokensLeft < 1) return { kind: 'end', reason: 'token-budget' };
    const body = JSON.stringify({ model, messages, max_tokens: tokensLeft, ...(tools === undefined ? {} : { tools }) });
    for (let attempt = 0; ; attempt++) {
      try {
        const answer = await this.#post(body, attempt);
        if (answer.kind !== 'retry') return answer;
        if (attempt === MAX_RETRIES) throw this.#failed(answer.cause);
        await sleep(retryDelayMs(attempt, answer.retryAfter), undefined, { signal: this.#signal });
      } catch (cause) {
        if (signal.aborted) throw new HoneError('aborted', 'The episode was aborted.', { cause });
        if (this.#deadline.aborted) return { kind: 'end', reason: 'time-budget' };
        throw cause;
      }
    }
  }

  async #post(
    body: string,
    attempt: number,
  ): Promise<ChatResult | { kind: 'retry'; cause: unknown; retryAfter: string | string[] | undefined }> {
    const { baseUrl, apiKey } = this.#context;
    let status: number;
    let retryAfter: string | string[] | undefined;
    let text: string;
    try {
      const response = await request(`${baseUrl}/chat/completions`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          authorization: `Bearer ${apiKey}`,
          ...(attempt > 0 ? { 'x-stainless-retry-count': String(attempt) } : {}),
        },
        body,
        signal: this.#signal,
        dispatcher: this.#connections,
      });
      status = response.statusCode;
      retryAfter = response.headers['retry-after'];
      text = await response.body.text();
    } catch (cause) {
      if (this.#signal.aborted) throw cause;
      return { kind: 'retry', cause, retryAfter: undefined };
    }
    if (status === 200) return this.#readReply(text);
    if (status === 400 && text.includes('context_length_exceeded')) return { kind: 'end', reason: 'context-length' };
    const refusal = new Error(`the server answered ${status}: ${text.slice(0, 500)}`);
    if (status === 429 || status >= 500) return { kind: 'retry', cause: refusal, retryAfter };
    throw this.#failed(refusal);
  }

  #readReply(text: string): ChatResult {
    let completion: unknown;
    try {
      completion = JSON.parse(text);
    } catch (cause) {
      throw this.#failed(cause);
    }
    const choices: unknown = isRecord(completion) ? completion['choices'] : undefined;
    const choice: unknown = Array.isArray(choices) ? choices[0] : undefined;
    const message = isRecord(choice) ? choice['message'] : undefined;
    if (!isRecord(completion) || !isRecord(message))
      throw this.#failed(new Error('the reply has no choices[0].message'));
    const content = typeof message['content'] === 'string' ? message['content'] : '';
    const usage = completion['usage'];
    const written =
      isRecord(usage) && typeof usage['completion_tokens'] === 'number'
        ? usage['completion_tokens']
        : Math.ceil(text.length / 4);
    this.#turns++;
    this.#completionTokens += written;
    return { kind: 'reply', content, toolCalls: readToolCalls(message['tool_calls']) };
  }

  #failed(cause: unknown): HoneError {
    return new HoneError(
      'engine-failed',
      `The model at ${this.#context.baseUrl} could not answer: ${reasonOf(cause)}.`,
      {
        cure: 'Check that the server is up, serves /chat/completions and accepts the key.',
        cause,
      },
    );
  }
}
