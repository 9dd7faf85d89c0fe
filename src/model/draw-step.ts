/**
 * One batch of the sampler: rows of prompts and of replies through the model, and one draw for each sequence whose rows are all there.
 * Owns the layout of the batch in the engine's memory, nothing that lasts. Invariant: a draw depends on its own sequence, sampling,
 * seed and number alone, whatever else is in the batch.
 */
import type { CacheSlots, Slot } from './cache-slots.ts';
import type { ModelConfig } from './config.ts';
import type { Engine } from './engine.ts';
import type { SampleRequest } from './sample-request.ts';
import { forward } from './transformer.ts';
import type { PackedWeights, RopeTable } from './weights.ts';

/** A sequence in the cache. */
export interface DrawnSequence {
  readonly slot: Slot;
  readonly request: SampleRequest;
  /** Tokens drawn before this one, besides those that the request names. */
  readonly drawn: number;
}

interface DrawParts {
  readonly engine: Engine;
  readonly config: ModelConfig;
  readonly weights: PackedWeights;
  readonly rope: RopeTable;
  readonly cache: CacheSlots;
  /** Every id: the row of a token that nothing was cut off for. */
  readonly wholeRow: Int32Array;
}

/** One entry a drawing sequence. */
export interface Draws {
  /** -1 where the logits were not finite. */
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
  readonly kept: readonly Int32Array[];
}

/** Rows go in the order of the parts; those that draw, in the order of `drawing`, have all of their rows computed here. */
export function drawStep<S extends DrawnSequence>(
  { engine, config, weights, rope, cache, wholeRow }: DrawParts,
  {
    parts,
    drawing,
  }: { readonly parts: readonly { readonly running: S; readonly rows: number }[]; readonly drawing: readonly S[] },
): Draws {
  const total = parts.reduce((sum, part) => sum + part.rows, 0);
  const tokens = new Int32Array(total);
  const positions = new Int32Array(total);
  const offsets = new Int32Array(total);
  const wantedIndex = new Int32Array(drawing.length);
  const wantedPositions = new Int32Array(drawing.length);
  const wantedOffsets = new Int32Array(drawing.length);
  const settings = new Float64Array(drawing.length * 8);
  let row = 0;
  let wanted = 0;
  for (const { running, rows } of parts) {
    const { slot, request } = running;
    tokens.set(slot.tokens.subarray(slot.rows, slot.rows + rows), row);
    offsets.fill(cache.offset(slot), row, row + rows);
    for (let index = 0; index < rows; index++) positions[row + index] = slot.rows + index;
    row += rows;
    if (running !== drawing[wanted]) continue;
    wantedIndex[wanted] = row - 1;
    wantedPositions[wanted] = slot.length - 1;
    wantedOffsets[wanted] = cache.offset(slot);
    const { temperature, topK, topP, minP, greedy } = request.sampling;
    settings.set(
      [
        1 / temperature,
        topK,
        topP,
        minP,
        greedy ? 1 : 0,
        request.seed >>> 0,
        (request.drawnBefore ?? 0) + running.drawn,
      ],
      wanted * 8,
    );
    wanted++;
  }
  const mark = engine.mark();
  const logits = forward(
    { engine, tape: undefined },
    {
      config,
      weights,
      rope,
      tokens: engine.allocI32(tokens),
      rows: { count: total, positions: engine.allocI32(positions), offsets: engine.allocI32(offsets) },
      wanted: {
        count: wanted,
        index: engine.allocI32(wantedIndex),
        positions: engine.allocI32(wantedPositions),
        offsets: engine.allocI32(wantedOffsets),
      },
      keys: (layer) => cache.keys(layer),
      values: (layer) => cache.values(layer),
      sequences: { all: 0, wanted: 0, count: 0 },
    },
  );
  const vocabulary = config.vocabSize;
  const settingsPointer = engine.alloc(settings.byteLength);
  engine.f64(settingsPointer, settings.length).set(settings);
  const ids = engine.alloc(wanted * 4);
  const logprobs = engine.alloc(wanted * 4);
  const counts = engine.alloc(wanted * 4);
  const kept = engine.alloc(wanted * vocabulary * 4);
  engine.run('sample', wanted, 1, ids, logprobs, counts, kept, logits.pointer, vocabulary, settingsPointer);
  const countView = engine.i32(counts, wanted);
  const draws: Draws = {
    ids: engine.i32(ids, wanted).slice(),
    logprobs: engine.f32(logprobs, wanted).slice(),
    kept: Array.from({ length: wanted }, (_, index) =>
      countView[index] === vocabulary
        ? wholeRow
        : engine.i32(kept + index * vocabulary * 4, countView[index] ?? 0).slice(),
    ),
  };
  engine.release(mark);
  return draws;
}
