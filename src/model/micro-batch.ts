/**
 * Sequences as concatenated rows, without padding: which rows there are, which are wanted, where each lies in the
 * attention cache. A sequence has rows up to its last wanted position; row p - 1 predicts the token at position p.
 */
import { HoneError } from '../domain/errors.ts';
import type { ModelConfig } from './config.ts';
import type { Engine } from './engine.ts';
import type { RowPlaces } from './attention.ts';

export interface SequenceInput {
  readonly tokens: Int32Array;
  /** Ascending, from 1 on; the log-probability of tokens[p] given tokens[0..p) is wanted. */
  readonly positions: Int32Array;
  /** One row a position, ids ascending, the token among them; absent = the full vocabulary. */
  readonly kept?: { readonly ids: Int32Array; readonly offsets: Int32Array };
  readonly temperature: number;
  /**
   * Forward pass only: ids to score in place of tokens[p], one a position. Positions may then repeat, so that several
   * candidates for one place are scored at once.
   */
  readonly targets?: Int32Array;
}

/** Byte addresses of the arrays that kernels read. */
export interface Batch {
  readonly tokens: number;
  readonly rows: RowPlaces;
  readonly wanted: RowPlaces & { readonly index: number };
  readonly sequences: { readonly all: number; readonly wanted: number; readonly count: number };
  /** Floats of one layer's keys, and of its values. */
  readonly cacheFloats: number;
  readonly targets: number;
  readonly inverseTemperatures: number;
  readonly kept: number;
  /** One more than wanted rows; an empty row means the full vocabulary. */
  readonly keptOffsets: number;
}

/** Rows that a sequence takes. */
function rowCount({ positions }: SequenceInput): number {
  return positions[positions.length - 1] ?? 0;
}

/** Consecutive runs of sequences with at most `maxTokens` rows each; a longer sequence stands alone. */
export function splitMicroBatches(sequences: readonly SequenceInput[], maxTokens: number): SequenceInput[][] {
  const parts: SequenceInput[][] = [];
  let rows = 0;
  for (const sequence of sequences) {
    const last = parts.at(-1);
    if (last === undefined || rows + rowCount(sequence) > maxTokens) {
      parts.push([sequence]);
      rows = rowCount(sequence);
    } else {
      last.push(sequence);
      rows += rowCount(sequence);
    }
  }
  return parts;
}

function fail(what: string, cure: string): never {
  throw new HoneError('invalid-rollout', `A sequence cannot be trained: ${what}.`, { cure });
}

/** Throws `invalid-rollout` unless the sequence can be computed: positions, ids, kept rows, temperature, length. */
export function checkSequence(config: ModelConfig, engine: Engine, sequence: SequenceInput): void {
  const { tokens, positions, kept, temperature } = sequence;
  const length = rowCount(sequence);
  if (!(temperature > 0)) fail(`its temperature is ${temperature}`, 'Sample at a temperature above 0.');
  if (length > config.contextLength)
    fail(
      `it has ${length} tokens and the context is ${config.contextLength}`,
      'Shorten it or use a model with a longer context.',
    );
  // attention_backward keeps four head matrices and two blocks of 16 score rows on its stack.
  const scratchBytes = (Math.ceil(length / 8) * 8 + 8) * (4 * config.headDim + 32) * 4;
  if (scratchBytes > engine.stackBytes - 65536)
    fail(`its ${length} tokens are more than the backward pass can hold`, 'Shorten it.');
  let previous = 0;
  for (const position of positions) {
    if (
      position < previous ||
      (position === previous && sequence.targets === undefined) ||
      position < 1 ||
      position >= tokens.length
    )
      fail(`position ${position} is out of order or range`, 'Positions ascend from 1 and lie within the tokens.');
    previous = position;
  }
  for (let index = 0; index <= length && index < tokens.length; index++) {
    const token = tokens[index] ?? -1;
    if (token < 0 || token >= config.vocabSize)
      fail(`token ${token} is not in the vocabulary of ${config.vocabSize}`, 'Use the tokenizer of this model.');
  }
  for (const target of sequence.targets ?? [])
    if (target < 0 || target >= config.vocabSize)
      fail(`target ${target} is not in the vocabulary of ${config.vocabSize}`, 'Use the tokenizer of this model.');
  if (sequence.targets !== undefined && sequence.targets.length !== positions.length)
    fail(`it has ${sequence.targets.length} targets for ${positions.length} positions`, 'Give one target a position.');
  if (kept === undefined) return;
  if (kept.offsets.length !== positions.length + 1)
    fail(
      `it has ${kept.offsets.length - 1} kept rows for ${positions.length} positions`,
      'Give one kept row a position.',
    );
  for (let row = 0; row < positions.length; row++) {
    const token = sequence.targets?.[row] ?? tokens[positions[row] ?? 0];
    let holds = false;
    for (let index = kept.offsets[row] ?? 0; index < (kept.offsets[row + 1] ?? 0); index++) {
      const id = kept.ids[index] ?? -1;
      if (id < 0 || id >= config.vocabSize)
        fail(`kept id ${id} is not in the vocabulary of ${config.vocabSize}`, 'Use the tokenizer of this model.');
      if (id === token) holds = true;
    }
    if (!holds)
      fail(
        `token ${token} at position ${positions[row]} is not in its kept row`,
        'Replay the recorded kept rows; never recompute them.',
      );
  }
}

/** Lays the sequences out in engine memory; the caller releases it. */
export function buildBatch(engine: Engine, config: ModelConfig, sequences: readonly SequenceInput[]): Batch {
  const positionFloats = config.kvHeads * config.headDim;
  const total = sequences.reduce((sum, sequence) => sum + rowCount(sequence), 0);
  const wantedTotal = sequences.reduce((sum, { positions }) => sum + positions.length, 0);
  const tokens = new Int32Array(total);
  const rowPositions = new Int32Array(total);
  const rowOffsets = new Int32Array(total);
  const wantedIndex = new Int32Array(wantedTotal);
  const wantedPositions = new Int32Array(wantedTotal);
  const wantedOffsets = new Int32Array(wantedTotal);
  const targets = new Int32Array(wantedTotal);
  const inverseTemperatures = new Float32Array(wantedTotal);
  const keptOffsets = new Int32Array(wantedTotal + 1);
  const kept = new Int32Array(sequences.reduce((sum, sequence) => sum + (sequence.kept?.ids.length ?? 0), 0));
  const all: number[] = [];
  const onlyWanted: number[] = [];
  let row = 0;
  let wanted = 0;
  let cachePositions = 0;
  let keptCount = 0;
  for (const sequence of sequences) {
    const length = rowCount(sequence);
    if (length === 0) continue;
    all.push(row, length, row, length);
    onlyWanted.push(wanted, sequence.positions.length, row, length);
    const offset = cachePositions * positionFloats;
    tokens.set(sequence.tokens.subarray(0, length), row);
    rowOffsets.fill(offset, row, row + length);
    for (let position = 0; position < length; position++) rowPositions[row + position] = position;
    for (const [index, position] of sequence.positions.entries()) {
      wantedIndex[wanted] = row + position - 1;
      wantedPositions[wanted] = position - 1;
      wantedOffsets[wanted] = offset;
      targets[wanted] = sequence.targets?.[index] ?? sequence.tokens[position] ?? 0;
      inverseTemperatures[wanted] = 1 / sequence.temperature;
      if (sequence.kept !== undefined) {
        const ids = sequence.kept.ids.subarray(sequence.kept.offsets[index], sequence.kept.offsets[index + 1]);
        kept.set(ids, keptCount);
        keptCount += ids.length;
      }
      wanted++;
      keptOffsets[wanted] = keptCount;
    }
    row += length;
    cachePositions += Math.ceil(length / 8) * 8;
  }
  const positions = engine.allocI32(rowPositions);
  const offsets = engine.allocI32(rowOffsets);
  return {
    tokens: engine.allocI32(tokens),
    rows: { count: total, positions, offsets },
    wanted: {
      count: wantedTotal,
      index: engine.allocI32(wantedIndex),
      positions: engine.allocI32(wantedPositions),
      offsets: engine.allocI32(wantedOffsets),
    },
    sequences: { all: engine.allocI32(all), wanted: engine.allocI32(onlyWanted), count: all.length / 4 },
    cacheFloats: cachePositions * positionFloats,
    targets: engine.allocI32(targets),
    inverseTemperatures: engine.allocF32(inverseTemperatures),
    kept: engine.allocI32(kept),
    keptOffsets: engine.allocI32(keptOffsets),
  };
}
