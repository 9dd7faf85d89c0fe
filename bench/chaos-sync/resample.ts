/**
 * Samples a finished generation again, in this process, from weights that are known to be the published ones, and compares every
 * token and log-probability bit for bit. Owns the order of things that a replica went through: the reply's versions, each switched to
 * exactly where the reply says, and a fresh cache wherever it went on on another replica.
 */
import type { PolicyVersion } from '../../src/domain/ids.ts';
import type { Sampling } from '../../src/domain/policy.ts';
import type { VersionSpan } from '../../src/domain/rollout.ts';
import { parseModelConfig } from '../../src/model/config.ts';
import { createEngine, type Engine } from '../../src/model/engine.ts';
import { Sampler } from '../../src/model/sampler.ts';

export interface FinishedGeneration {
  readonly request: string;
  readonly prompt: readonly number[];
  readonly sampling: Sampling;
  readonly seed: number;
  readonly tokens: readonly number[];
  readonly logprobs: Float32Array;
  readonly versions: readonly VersionSpan[];
  /** Positions at which it went on on another replica, ascending. */
  readonly resumedAt: readonly number[];
}

export interface ResampleOptions {
  readonly configJson: unknown;
  /** Served bytes of a version. */
  readonly weightsOf: (version: PolicyVersion) => ReadonlyMap<string, Uint8Array>;
}

/** What differs first, in words; undefined = every bit is the same. */
export async function resample(generation: FinishedGeneration, options: ResampleOptions): Promise<string | undefined> {
  const drawn: { id: number; logprob: number }[] = [];
  const pieces = piecesOf(generation);
  for (const piece of pieces) {
    await using engine = await openEngine();
    drawPiece(engine.engine, { generation, piece, drawn, options });
  }
  for (const [place, id] of generation.tokens.entries()) {
    const again = drawn[place];
    const logprob = generation.logprobs[place] ?? Number.NaN;
    if (again === undefined) return `position ${place} is not drawn again`;
    if (again.id !== id) return `position ${place} is token ${id}, drawn again ${again.id}`;
    if (!Object.is(Math.fround(again.logprob), Math.fround(logprob)))
      return `the log-probability at position ${place} is ${logprob}, drawn again ${again.logprob}`;
  }
  return drawn.length === generation.tokens.length
    ? undefined
    : `${drawn.length} tokens instead of ${generation.tokens.length}`;
}

interface Piece {
  readonly start: number;
  readonly spans: readonly VersionSpan[];
}

/** What one replica drew without a break, in the versions that it served meanwhile. */
function piecesOf({ tokens, versions, resumedAt }: FinishedGeneration): Piece[] {
  const starts = [...new Set([0, ...resumedAt])]
    .filter((at) => at < tokens.length)
    .toSorted((one, other) => one - other);
  return starts.map((start, index) => {
    const end = starts[index + 1] ?? tokens.length;
    const spans = versions
      .filter((span) => span.start < end && span.end > start)
      .map((span) => ({ ...span, start: Math.max(span.start, start), end: Math.min(span.end, end) }));
    return { start, spans };
  });
}

function drawPiece(
  engine: Engine,
  {
    generation,
    piece,
    drawn,
    options,
  }: {
    generation: FinishedGeneration;
    piece: Piece;
    drawn: { id: number; logprob: number }[];
    options: ResampleOptions;
  },
): void {
  const [first] = piece.spans;
  if (first === undefined) return;
  const { prompt, sampling, seed, tokens } = generation;
  const sampler = Sampler.create(engine, parseModelConfig(options.configJson), options.weightsOf(first.version), {
    version: first.version,
    slots: 1,
  });
  const before = tokens.slice(0, piece.start);
  let finished = false;
  const ticket = sampler.submit({
    tokens: Int32Array.from([...prompt, ...before]),
    sampling: { ...sampling, maxTokens: sampling.maxTokens - piece.start },
    seed,
    drawnBefore: piece.start,
    onToken: (id, { logprob }) => drawn.push({ id, logprob }),
    onFinish: () => (finished = true),
  });
  for (const span of piece.spans) {
    if (span.version !== sampler.version) {
      for (const [name, bytes] of options.weightsOf(span.version)) sampler.stage(name, bytes);
      sampler.commit(span.version);
    }
    while (drawn.length < span.end && !finished) sampler.step();
  }
  sampler.abort(ticket);
}

async function openEngine(): Promise<{ readonly engine: Engine } & AsyncDisposable> {
  const engine = await createEngine({ build: 'auto', threads: 1 });
  return { engine, [Symbol.asyncDispose]: () => engine.close() };
}
