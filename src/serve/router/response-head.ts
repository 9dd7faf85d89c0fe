/**
 * Heads of HTTP/1.1 answers as a replica writes them, and nothing else that HTTP would allow. Invariant: a head that two readers
 * could frame differently (two lengths, a length and chunks, folded lines, bare line ends, interim answers) is an error, so that no
 * byte of one answer can ever pass for the beginning of another.
 */
import { HoneError } from '../../domain/errors.ts';

export const MOST_HEAD_BYTES = 16 * 1024;

export interface ResponseHead {
  readonly status: number;
  /** Names in lower case; of names that come twice, the first. */
  readonly headers: ReadonlyMap<string, string>;
  readonly body: { readonly kind: 'chunked' } | { readonly kind: 'length'; readonly sizeBytes: number };
  readonly isKeptAlive: boolean;
}

const STATUS_LINE = /^HTTP\/1\.1 ([2-5]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/u;
const NAME = /^[!#$%&'*+.^_`|~\w-]+$/u;
// A value may hold anything visible; control characters, line ends among them, it may not.
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/u;
const SIZE = /^\d{1,12}$/u;

/** Reads the lines before the empty one. Throws `engine-failed` for what a replica would not write. */
export function parseResponseHead(text: string): ResponseHead {
  const lines = text.split('\r\n');
  const status = Number(STATUS_LINE.exec(lines[0] ?? '')?.[1]);
  if (Number.isNaN(status)) throw malformed(`its first line is ${JSON.stringify((lines[0] ?? '').slice(0, 80))}`);
  if (status === 204 || status === 304) throw malformed(`status ${status} has no body`);
  const headers = new Map<string, string>();
  for (let index = 1; index < lines.length; index++) {
    const line = lines[index] ?? '';
    const colon = line.indexOf(':');
    const name = line.slice(0, Math.max(0, colon)).toLowerCase();
    const value = line.slice(colon + 1).trim();
    if (!NAME.test(name) || !VALUE.test(value))
      throw malformed(`a header line is ${JSON.stringify(line.slice(0, 80))}`);
    if (!headers.has(name)) headers.set(name, value);
    else if (name === 'content-length' || name === 'transfer-encoding' || name === 'connection')
      throw malformed(`${name} comes twice`);
  }
  const coding = headers.get('transfer-encoding');
  const size = headers.get('content-length');
  const isKeptAlive = (headers.get('connection') ?? 'keep-alive').toLowerCase() === 'keep-alive';
  if (coding !== undefined) {
    if (size !== undefined) throw malformed('it has both a length and a transfer coding');
    if (coding !== 'chunked') throw malformed(`its transfer coding is ${JSON.stringify(coding.slice(0, 80))}`);
    return { status, headers, body: { kind: 'chunked' }, isKeptAlive };
  }
  if (size === undefined) throw malformed('it has neither a length nor chunks');
  if (!SIZE.test(size)) throw malformed(`its length is ${JSON.stringify(size.slice(0, 80))}`);
  return { status, headers, body: { kind: 'length', sizeBytes: Number(size) }, isKeptAlive };
}

export function malformed(what: string): HoneError {
  return new HoneError('engine-failed', `The answer is not one that a replica writes: ${what}.`, {
    cure: 'Look at what listens at the replica’s URL.',
  });
}
