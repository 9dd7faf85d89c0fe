/**
 * A turn's reply in OpenAI's two wire forms: one JSON object, or server-sent events. Invariant: both forms carry the
 * same content, calls and finish reason; a stream never sends text that might turn out to be a tool call.
 */
import type { ServerResponse } from 'node:http';

import type { ChatError } from './chat-request.ts';
import type { Reply } from './session.ts';
import { settledContentLength } from './tool-calls.ts';

export interface ReplyIdentity {
  /** Session id: part of the completion's id. */
  readonly session: string;
  readonly model: string;
  readonly createdSeconds: number;
}

const completionId = (identity: ReplyIdentity, turn: number | string): string => `chatcmpl-${identity.session}-${turn}`;

function usage(reply: Reply): object {
  return {
    prompt_tokens: reply.promptTokens,
    completion_tokens: reply.completionTokens,
    total_tokens: reply.promptTokens + reply.completionTokens,
  };
}

function toolCalls(
  identity: ReplyIdentity,
  reply: Reply,
): { id: string; type: 'function'; function: { name: string; arguments: string } }[] {
  return reply.calls.map((call, index) => ({
    id: `call_${identity.session}_${reply.turn}_${index}`,
    type: 'function',
    function: { name: call.name, arguments: call.arguments },
  }));
}

export function completionJson(identity: ReplyIdentity, reply: Reply): string {
  const calls = toolCalls(identity, reply);
  return JSON.stringify({
    id: completionId(identity, reply.turn),
    object: 'chat.completion',
    created: identity.createdSeconds,
    model: identity.model,
    choices: [
      {
        index: 0,
        message:
          calls.length === 0
            ? { role: 'assistant', content: reply.content }
            : { role: 'assistant', content: reply.content.length === 0 ? null : reply.content, tool_calls: calls },
        logprobs: null,
        finish_reason: reply.finishReason,
      },
    ],
    usage: usage(reply),
  });
}

export function errorJson(error: ChatError): string {
  const type = error.status >= 500 ? 'server_error' : 'invalid_request_error';
  return JSON.stringify({ error: { message: error.message, type, code: error.code, param: null } });
}

/** Sends a reply as it is written. Headers go out with the first text, so that an early failure still has its status. */
export class ReplyStream {
  readonly #response: ServerResponse;
  readonly #identity: ReplyIdentity;
  readonly #parseTools: boolean;
  #text = '';
  #sentLength = 0;

  constructor(response: ServerResponse, identity: ReplyIdentity, options: { parseTools: boolean }) {
    this.#response = response;
    this.#identity = identity;
    this.#parseTools = options.parseTools;
  }

  push(text: string): void {
    this.#text += text;
    this.#sendContent(this.#parseTools ? settledContentLength(this.#text) : this.#text.length);
  }

  finish(reply: Reply, options: { includeUsage: boolean }): void {
    this.#text = reply.content;
    this.#sendContent(reply.content.length);
    this.#open();
    for (const [index, call] of toolCalls(this.#identity, reply).entries())
      this.#chunk({ tool_calls: [{ index, ...call }] }, null);
    this.#chunk({}, reply.finishReason);
    if (options.includeUsage) this.#event({ ...this.#frame(), choices: [], usage: usage(reply) });
    this.#response.end('data: [DONE]\n\n');
  }

  /** False when nothing has been sent yet and the error can still go out with its own status. */
  fail(error: ChatError): boolean {
    if (!this.#response.headersSent) return false;
    this.#response.end(`data: ${errorJson(error)}\n\n`);
    return true;
  }

  #sendContent(length: number): void {
    if (length <= this.#sentLength) return;
    this.#open();
    this.#chunk({ content: this.#text.slice(this.#sentLength, length) }, null);
    this.#sentLength = length;
  }

  #open(): void {
    if (this.#response.headersSent) return;
    this.#response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' });
    this.#chunk({ role: 'assistant', content: '' }, null);
  }

  #frame(): object {
    // The turn's number is not known before it is served, so a stream's id comes from the session alone.
    return {
      id: completionId(this.#identity, 'stream'),
      object: 'chat.completion.chunk',
      created: this.#identity.createdSeconds,
      model: this.#identity.model,
    };
  }

  #chunk(delta: object, finishReason: string | null): void {
    this.#event({ ...this.#frame(), choices: [{ index: 0, delta, logprobs: null, finish_reason: finishReason }] });
  }

  #event(event: object): void {
    this.#response.write(`data: ${JSON.stringify(event)}\n\n`);
  }
}
