/**
 * An OpenAI chat completion request as the recorder reads it. Invariant: every parameter is used, overridden by the
 * session on purpose (sampling), or refused with a sentence; none is silently ignored.
 */
import type { TemplateMessage, TemplateToolCall } from '../model/chat-template.ts';
import { canonicalArguments } from './tool-calls.ts';

/** A refusal with its HTTP status and OpenAI error code. */
export class ChatError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.name = 'ChatError';
    this.status = status;
    this.code = code;
  }
}

export interface ChatMessage {
  readonly template: TemplateMessage;
  /** Assistant messages only: what identifies the message when a harness echoes it. */
  readonly echoKey: string | undefined;
}

export interface ChatRequest {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly unknown[] | undefined;
  readonly parseTools: boolean;
  readonly stream: boolean;
  readonly includeUsage: boolean;
  /** The client may lower the session's limit. */
  readonly maxTokens: number | undefined;
}

/** The session decides these, whatever the client says. */
const OVERRIDDEN = new Set([
  'model',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'seed',
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
]);
const USED = new Set([
  'messages',
  'tools',
  'tool_choice',
  'stream',
  'stream_options',
  'max_tokens',
  'max_completion_tokens',
]);

/** Parameters that would change what is sampled, with the only values under which they change nothing. */
const NEUTRAL: ReadonlyMap<string, (value: unknown) => boolean> = new Map([
  ['n', (value) => value === 1],
  ['presence_penalty', (value) => value === 0],
  ['frequency_penalty', (value) => value === 0],
  ['repetition_penalty', (value) => value === 1],
  ['logit_bias', (value) => isRecord(value) && Object.keys(value).length === 0],
  ['response_format', (value) => isRecord(value) && value['type'] === 'text'],
  ['stop', (value) => Array.isArray(value) && value.length === 0],
  ['logprobs', (value) => value === false],
  ['top_logprobs', (value) => value === 0],
  ['parallel_tool_calls', (value) => value === true],
]);

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function refuse(message: string, code = 'invalid_request'): never {
  throw new ChatError(400, code, message);
}

/** The key of an assistant message: its text and its calls by name and canonical arguments. */
export function echoKey(content: string, calls: readonly { name: string; arguments: string }[]): string {
  return JSON.stringify([content, ...calls.map((call) => [call.name, canonicalArguments(call.arguments)])]);
}

function readContent(content: unknown, where: string): string {
  if (typeof content === 'string') return content;
  if (content === null || content === undefined) return '';
  if (!Array.isArray(content)) refuse(`${where}.content must be text.`);
  return content
    .map((part: unknown) =>
      isRecord(part) && part['type'] === 'text' && typeof part['text'] === 'string'
        ? part['text']
        : refuse(`${where}.content has a part that is not text; this policy reads text only.`),
    )
    .join('');
}

function parseOrText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function readMessage(message: unknown, index: number): ChatMessage {
  const where = `messages[${index}]`;
  if (!isRecord(message) || typeof message['role'] !== 'string') refuse(`${where} must be an object with a role.`);
  const content = readContent(message['content'], where);
  switch (message['role']) {
    case 'system':
    case 'developer':
      return { template: { role: 'system', content }, echoKey: undefined };
    case 'user':
      return { template: { role: 'user', content }, echoKey: undefined };
    case 'tool':
      return {
        template: {
          role: 'tool',
          content,
          ...(typeof message['tool_call_id'] === 'string' ? { tool_call_id: message['tool_call_id'] } : {}),
        },
        echoKey: undefined,
      };
    case 'assistant': {
      const calls: { name: string; arguments: string }[] = [];
      const listed = message['tool_calls'] ?? [];
      if (!Array.isArray(listed)) refuse(`${where}.tool_calls must be a list.`);
      for (const call of listed as unknown[]) {
        const called = isRecord(call) ? call['function'] : undefined;
        if (!isRecord(called) || typeof called['name'] !== 'string' || typeof called['arguments'] !== 'string')
          refuse(`${where}.tool_calls has an entry without function.name and function.arguments as text.`);
        calls.push({ name: called['name'], arguments: called['arguments'] });
      }
      const toolCalls: TemplateToolCall[] = calls.map((call) => ({
        type: 'function',
        function: { name: call.name, arguments: parseOrText(call.arguments) },
      }));
      return {
        template: { role: 'assistant', content, ...(toolCalls.length > 0 ? { tool_calls: toolCalls } : {}) },
        echoKey: echoKey(content, calls),
      };
    }
    default:
      return refuse(`${where}.role is "${message['role']}"; use system, user, assistant or tool.`);
  }
}

/** Throws a ChatError 400 for anything that the recorder cannot honour. */
export function readChatRequest(body: unknown, { supportsTools }: { supportsTools: boolean }): ChatRequest {
  if (!isRecord(body)) refuse('The body must be a JSON object.');
  for (const [key, value] of Object.entries(body)) {
    if (USED.has(key) || OVERRIDDEN.has(key) || value === null || value === undefined) continue;
    const isNeutral = NEUTRAL.get(key);
    if (isNeutral === undefined)
      refuse(`The parameter "${key}" is not known here; remove it from the request.`, 'unknown_parameter');
    if (!isNeutral(value))
      refuse(
        `The parameter "${key}" would change what is sampled, which the session decides; remove it from the request.`,
        'unsupported_parameter',
      );
  }
  const messages = body['messages'];
  if (!Array.isArray(messages) || messages.length === 0) refuse('messages must be a list with at least one message.');

  const listedTools = body['tools'] ?? [];
  if (!Array.isArray(listedTools)) refuse('tools must be a list.');
  const tools: readonly unknown[] = listedTools;
  if (tools.length > 0 && !supportsTools)
    refuse("The model's chat template does not render tools; remove tools from the request.", 'unsupported_parameter');
  const choice = body['tool_choice'] ?? 'auto';
  if (choice !== 'auto' && choice !== 'none')
    refuse('A forced tool_choice would change what is sampled; use "auto" or "none".', 'unsupported_parameter');

  let maxTokens: number | undefined;
  for (const key of ['max_tokens', 'max_completion_tokens']) {
    const value = body[key];
    if (value === undefined || value === null) continue;
    if (typeof value !== 'number' || !Number.isInteger(value) || value < 1)
      refuse(`${key} must be a whole number of at least 1.`);
    maxTokens = Math.min(maxTokens ?? value, value);
  }
  const streamOptions = body['stream_options'];
  return {
    messages: messages.map(readMessage),
    tools: tools.length > 0 ? tools : undefined,
    parseTools: tools.length > 0 && choice === 'auto',
    stream: body['stream'] === true,
    includeUsage: isRecord(streamOptions) && streamOptions['include_usage'] === true,
    maxTokens,
  };
}
