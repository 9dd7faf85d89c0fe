/**
 * A reply while it is drawn, whoever draws it: every token with its log-probability, kept row and version, in the order of the
 * draws. Invariants: a position is written once and told once; versions never go back; what is not whole is refused before any
 * of it is written. Where kept sets come by the store, rows are there only once the reply is whole: then nothing is told before
 * `complete`, and what was drawn in vain is dropped by `clear`, so that a position is still told once and with its row.
 */
import { HoneError } from '../../domain/errors.ts';
import { policyVersion } from '../../domain/ids.ts';
import type { PolicyVersion } from '../../domain/ids.ts';
import type { DrawnToken, Generation, Sampling } from '../../domain/policy.ts';
import type { KeptSets, VersionSpan } from '../../domain/rollout.ts';
import type { DrawnTokens } from '../wire/event-reader.ts';

export class RecordedReply {
  readonly #sampling: Sampling;
  readonly #onToken: ((id: number, drawn: DrawnToken) => void) | undefined;
  readonly #ids: number[] = [];
  readonly #logprobs: number[] = [];
  readonly #kept: Int32Array[] = [];
  readonly #spans: { version: PolicyVersion; start: number; end: number }[] = [];
  #keptIds = 0;
  readonly #isKeptApart: boolean;
  #apart: { readonly id: number; readonly logprob: number; readonly version: PolicyVersion }[] = [];

  constructor(
    sampling: Sampling,
    onToken: ((id: number, drawn: DrawnToken) => void) | undefined,
    { isKeptApart = false }: { isKeptApart?: boolean } = {},
  ) {
    this.#isKeptApart = isKeptApart;
    this.#sampling = sampling;
    this.#onToken = onToken;
  }

  get length(): number {
    return this.#ids.length;
  }

  /** Newest version in the reply; 0 before the first token. */
  get version(): PolicyVersion {
    return this.#spans.at(-1)?.version ?? policyVersion(0);
  }

  /** How the reply ends when nothing more is drawn, such as when its last event was lost; undefined while it goes on. */
  get finish(): 'stop' | 'length' | undefined {
    const last = this.#ids.at(-1);
    if (last !== undefined && this.#sampling.stopIds.includes(last)) return 'stop';
    return this.length >= this.#sampling.maxTokens ? 'length' : undefined;
  }

  /** Throws `engine-failed` when the tokens cannot be this reply's next ones; none of them is written then. */
  append({ ids, logprobs, kept, version }: DrawnTokens): void {
    if (this.#isKeptApart) return this.#appendApart({ ids, logprobs, kept, version });
    if (kept === undefined) throw wrong('its tokens come without kept sets');
    if (version < this.version) throw wrong(`version ${version} drew a token after version ${this.version} did`);
    if (this.length + ids.length > this.#sampling.maxTokens)
      throw wrong(`it has over ${this.#sampling.maxTokens} tokens, which is its limit`);
    for (let index = 0; index < ids.length; index++) {
      const logprob = logprobs[index] ?? Number.NaN;
      if (this.finish !== undefined) throw wrong('it goes on after its stop token');
      if (!Number.isFinite(logprob)) throw wrong(`token ${this.length} has the log-probability ${logprob}`);
      const row = kept[index] ?? new Int32Array();
      const id = ids[index] ?? 0;
      this.#write(id, { logprob, kept: row, version });
    }
  }

  /** Tokens whose rows are still to come. */
  get apartLength(): number {
    return this.#apart.length;
  }

  /** The rows of all tokens are there: they are written, and told. Throws `engine-failed` when they are not these tokens'. */
  complete({ ids: keptIds, offsets }: KeptSets): void {
    const drawn = this.#apart;
    if (offsets.length !== drawn.length + 1)
      throw wrong(`${offsets.length - 1} kept sets are stored for ${drawn.length} tokens`);
    const rows = drawn.map((_, index) => keptIds.slice(offsets[index], offsets[index + 1]));
    for (const [index, { id }] of drawn.entries())
      if (rows[index]?.includes(id) !== true) throw wrong(`id ${id} was drawn and is not in its stored kept set`);
    this.#apart = [];
    for (const [index, { id, logprob, version }] of drawn.entries())
      this.#write(id, { logprob, version, kept: rows[index] ?? new Int32Array() });
  }

  /** Drops tokens whose rows will not come. */
  clear(): void {
    this.#apart = [];
  }

  /** The tokens so far behind a prompt: what another replica goes on from. */
  after(prompt: Int32Array): Int32Array {
    if (this.length === 0) return prompt;
    const whole = new Int32Array(prompt.length + this.length);
    whole.set(prompt);
    whole.set(this.#ids, prompt.length);
    return whole;
  }

  toGeneration(finish: Generation['finish']): Generation {
    const ids = new Int32Array(this.#keptIds);
    const offsets = new Int32Array(this.length + 1);
    let end = 0;
    for (const [index, row] of this.#kept.entries()) {
      ids.set(row, end);
      end += row.length;
      offsets[index + 1] = end;
    }
    return {
      tokens: Int32Array.from(this.#ids),
      logprobs: Float32Array.from(this.#logprobs),
      kept: { ids, offsets },
      versions: this.#spans.map((span): VersionSpan => ({ ...span })),
      finish,
    };
  }

  #appendApart({ ids, logprobs, version }: DrawnTokens): void {
    const before = this.#apart.at(-1);
    if (before !== undefined && version < before.version)
      throw wrong(`version ${version} drew a token after version ${before.version} did`);
    const { maxTokens, stopIds } = this.#sampling;
    if (this.#apart.length + ids.length > maxTokens) throw wrong(`it has over ${maxTokens} tokens, which is its limit`);
    for (const [index, id] of ids.entries()) {
      const logprob = logprobs[index] ?? Number.NaN;
      const last = this.#apart.at(-1)?.id;
      if (last !== undefined && stopIds.includes(last)) throw wrong('it goes on after its stop token');
      if (!Number.isFinite(logprob)) throw wrong(`token ${this.#apart.length} has the log-probability ${logprob}`);
      this.#apart.push({ id, logprob, version });
    }
  }

  #write(id: number, drawn: DrawnToken): void {
    const { version, kept, logprob } = drawn;
    const position = this.#ids.length;
    const span = this.#spans.at(-1);
    if (span?.version === version) span.end = position + 1;
    else this.#spans.push({ version, start: position, end: position + 1 });
    this.#ids.push(id);
    this.#logprobs.push(logprob);
    this.#kept.push(kept);
    this.#keptIds += kept.length;
    this.#onToken?.(id, drawn);
  }
}

function wrong(what: string): HoneError {
  return new HoneError('engine-failed', `A reply cannot be right: ${what}.`, {
    cure: 'Replace the replica that sent it.',
  });
}
