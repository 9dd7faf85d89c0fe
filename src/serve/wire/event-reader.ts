/**
 * Events of a reply out of bytes as they come from a socket, cut anywhere. It owns the framing of server-sent events (comments and
 * other fields are skipped) and checks each event's shape. Invariant: the events do not depend on how the bytes were cut.
 */
import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { policyVersion, type PolicyVersion } from '../../domain/ids.ts';
import { schemaProblem } from '../../domain/schema-problem.ts';
import { decodeBase64, decodeFloat32, decodeInt32 } from './base64-array.ts';
import type { GenerateWireEvent } from './generate-wire.ts';
import { decodeKeptRows } from './kept-set-code.ts';

const VERSION = z
  .int()
  .min(0)
  .transform((version) => policyVersion(version));

const EVENT = z.discriminatedUnion('type', [
  z.object({
    type: z.literal('tokens'),
    ids: z.string(),
    logprobs: z.string(),
    kept: z.string().optional(),
    version: VERSION,
  }),
  z.object({
    type: z.literal('end'),
    finish: z.enum(['stop', 'length', 'abort']),
    versionStart: VERSION,
    versionEnd: VERSION,
    tokens: z.int().min(0),
    cachedTokens: z.int().min(0),
    keptObject: z.string().optional(),
  }),
  z.object({ type: z.literal('error'), code: z.string(), message: z.string() }),
]);

export interface EventReaderOptions {
  /** An event that passes this is refused, so that a stream without line ends cannot fill the memory. */
  readonly maxEventBytes?: number;
}

const NEWLINE = 0x0a;
/** Rounding of a sum of exponentials may pass 0. */
const MOST_LOGPROB = 1e-6;

export class EventReader {
  readonly #maxEventBytes: number;
  /** The start of a line whose end has not come. */
  #line: Uint8Array[] = [];
  #lineBytes = 0;
  /** Values of the `data` fields of the event that is being read. */
  #data: string[] = [];
  #dataBytes = 0;

  constructor({ maxEventBytes = 64 * 1024 * 1024 }: EventReaderOptions = {}) {
    this.#maxEventBytes = maxEventBytes;
  }

  /** Nothing of an unfinished event is held: a stream that ends here was not cut inside one. */
  get isBetweenEvents(): boolean {
    return this.#lineBytes === 0 && this.#data.length === 0;
  }

  /** The events that these bytes complete. Throws `engine-failed` on an event that is none; the stream is of no use afterwards. */
  push(bytes: Uint8Array): GenerateWireEvent[] {
    const events: GenerateWireEvent[] = [];
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let start = 0;
    for (;;) {
      const end = buffer.indexOf(NEWLINE, start);
      if (end < 0) break;
      const line = this.#takeLine(buffer.subarray(start, end));
      start = end + 1;
      if (line !== '') this.#field(line);
      else if (this.#data.length > 0) {
        events.push(parseEvent(this.#data.join('\n')));
        this.#data = [];
        this.#dataBytes = 0;
      }
    }
    if (start < buffer.length) {
      // A copy: the caller may use its buffer again.
      this.#line.push(Uint8Array.prototype.slice.call(buffer, start));
      this.#lineBytes += buffer.length - start;
    }
    if (this.#lineBytes + this.#dataBytes > this.#maxEventBytes)
      throw malformed(`an event passes ${this.#maxEventBytes} bytes`);
    return events;
  }

  #takeLine(last: Buffer): string {
    const whole = this.#lineBytes === 0 ? last : Buffer.concat([...this.#line, last]);
    this.#line = [];
    this.#lineBytes = 0;
    const text = whole.toString('utf8');
    return text.endsWith('\r') ? text.slice(0, -1) : text;
  }

  #field(line: string): void {
    if (!line.startsWith('data:')) return;
    const value = line.slice(line.charCodeAt(5) === 0x20 ? 6 : 5);
    this.#data.push(value);
    this.#dataBytes += value.length + 1;
  }
}

/** The tokens of one event as arrays. */
export interface DrawnTokens {
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  /** One row a token; undefined when the kept sets are sent elsewhere. */
  readonly kept: readonly Int32Array[] | undefined;
  readonly version: PolicyVersion;
}

/** Throws `engine-failed` unless each token has a log-probability, and a kept row with its id in it. */
export function decodeTokensEvent(event: Extract<GenerateWireEvent, { type: 'tokens' }>): DrawnTokens {
  const ids = fromReply(() => decodeInt32('ids', event.ids));
  const logprobs = fromReply(() => decodeFloat32('logprobs', event.logprobs));
  const text = event.kept;
  const kept =
    text === undefined
      ? undefined
      : decodeKeptRows(
          fromReply(() => decodeBase64('kept', text)),
          ids.length,
        );
  if (ids.length === 0) throw malformed('a tokens event has no token');
  if (logprobs.length !== ids.length || (kept !== undefined && kept.length !== ids.length))
    throw malformed(
      `${ids.length} ids come with ${logprobs.length} log-probabilities and ${kept?.length ?? 0} kept rows`,
    );
  // Infinity and NaN would come out at the end of a whole rollout, as a fault of whoever trains on it.
  const wrong = logprobs.find((logprob) => !(logprob <= MOST_LOGPROB && Number.isFinite(logprob)));
  if (wrong !== undefined) throw malformed(`a log-probability is ${wrong}`);
  if (kept !== undefined)
    for (const [index, row] of kept.entries())
      if (!holds(row, ids[index] ?? -1)) throw malformed(`id ${ids[index]} was drawn and is not in its kept row`);
  return { ids, logprobs, kept, version: event.version };
}

function parseEvent(text: string): GenerateWireEvent {
  const json = fromReply((): unknown => JSON.parse(text));
  const drawn = readTokens(json);
  if (drawn !== undefined) return drawn;
  const checked = EVENT.safeParse(json);
  if (!checked.success) {
    const [issue] = checked.error.issues;
    throw malformed(
      issue === undefined ? 'an event is none' : `event.${issue.path.join('.')} ${schemaProblem(issue, json)}`,
    );
  }
  const { data } = checked;
  switch (data.type) {
    case 'tokens': {
      const { kept, ...rest } = data;
      return { ...rest, ...(kept === undefined ? {} : { kept }) };
    }
    case 'end': {
      const { keptObject, ...rest } = data;
      return { ...rest, ...(keptObject === undefined ? {} : { keptObject }) };
    }
    case 'error':
      return data;
    default:
      return data satisfies never;
  }
}

/** As the schema reads them: nearly all events are these, one a token. What looks any other way is the schema's to judge. */
function readTokens(json: unknown): GenerateWireEvent | undefined {
  if (typeof json !== 'object' || json === null || !('type' in json) || json.type !== 'tokens') return undefined;
  // Any key may be read of an object; each is checked below.
  const { ids, logprobs, kept, version } = json as Readonly<Record<string, unknown>>;
  if (typeof ids !== 'string' || typeof logprobs !== 'string' || !Number.isSafeInteger(version)) return undefined;
  const whole = Number(version);
  if (whole < 0) return undefined;
  const event = { type: 'tokens', ids, logprobs, version: policyVersion(whole) } as const;
  if (kept === undefined) return event;
  return typeof kept === 'string' ? { ...event, kept } : undefined;
}

function holds(row: Int32Array, id: number): boolean {
  let low = 0;
  let high = row.length - 1;
  while (low <= high) {
    const middle = (low + high) >>> 1;
    const found = row[middle] ?? 0;
    if (found === id) return true;
    if (found < id) low = middle + 1;
    else high = middle - 1;
  }
  return false;
}

function fromReply<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw malformed(reasonOf(error));
  }
}

function malformed(what: string): HoneError {
  return new HoneError('engine-failed', `The stream of a reply is damaged: ${what.replace(/\.$/u, '')}.`, {
    cure: 'Ask again from the tokens that came before; if it happens again, replace the replica.',
  });
}
