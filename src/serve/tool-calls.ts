/**
 * Tool calls as the Hermes and Qwen families write them: <tool_call>{"name", "arguments"}</tool_call>.
 * Owns reading them out of sampled text and the key by which an echoed call is known again: name and canonical
 * arguments, never the call's id. Text that does not read cleanly stays text.
 */

export interface ToolCall {
  readonly name: string;
  /** A JSON object as text, as the OpenAI format wants it. */
  readonly arguments: string;
}

const TOOL_CALL_OPEN = '<tool_call>';
const TOOL_CALL_CLOSE = '</tool_call>';

/** JSON with the keys of every object in order: equal values give equal text. */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).sort(([left], [right]) => (left < right ? -1 : 1));
    return `{${entries.map(([key, item]) => `${JSON.stringify(key)}:${canonicalJson(item)}`).join(',')}}`;
  }
  return JSON.stringify(value) ?? 'null';
}

/** The canonical text of a call's arguments; arguments that are not JSON stand for themselves. */
export function canonicalArguments(text: string): string {
  try {
    return canonicalJson(JSON.parse(text));
  } catch {
    return text;
  }
}

function parseCall(body: string): ToolCall | undefined {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch {
    return undefined;
  }
  if (typeof value !== 'object' || value === null || !('name' in value) || typeof value.name !== 'string')
    return undefined;
  const callArguments = 'arguments' in value ? value.arguments : {};
  if (typeof callArguments !== 'object' || callArguments === null || Array.isArray(callArguments)) return undefined;
  return { name: value.name, arguments: JSON.stringify(callArguments) };
}

/**
 * Reads the calls out of a reply. The content is the text before the first call, without trailing white space.
 * One unreadable call makes the whole reply plain text, so that the harness sees what was written.
 */
export function parseToolCalls(text: string): { content: string; calls: readonly ToolCall[] } {
  const first = text.indexOf(TOOL_CALL_OPEN);
  if (first < 0) return { content: text, calls: [] };
  const calls: ToolCall[] = [];
  for (let start = first; start >= 0;) {
    const bodyStart = start + TOOL_CALL_OPEN.length;
    const end = text.indexOf(TOOL_CALL_CLOSE, bodyStart);
    const call = end < 0 ? undefined : parseCall(text.slice(bodyStart, end));
    if (call === undefined) return { content: text, calls: [] };
    calls.push(call);
    start = text.indexOf(TOOL_CALL_OPEN, end);
  }
  return { content: text.slice(0, first).trimEnd(), calls };
}

/**
 * How much of a growing text may be sent as content before it is known whether a tool call follows: everything up to
 * the first opening tag, or to white space and the beginning of a tag at the end.
 */
export function settledContentLength(text: string): number {
  const open = text.indexOf(TOOL_CALL_OPEN);
  let end = open >= 0 ? open : text.length;
  if (open < 0)
    for (let length = Math.min(TOOL_CALL_OPEN.length - 1, text.length); length > 0; length--)
      if (text.endsWith(TOOL_CALL_OPEN.slice(0, length))) {
        end = text.length - length;
        break;
      }
  return text.slice(0, end).trimEnd().length;
}
