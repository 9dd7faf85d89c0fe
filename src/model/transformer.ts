/**
 * The decoder, written once for sampling and training: rows of tokens in, logits of the rows that are wanted out.
 * All layers compute keys and values of all rows; in the last layer everything else is computed for wanted rows only.
 * Invariant: a row's logits depend on its own sequence's tokens and the weights, never on what else is in the batch.
 */
import { attention, type RowPlaces } from './attention.ts';
import type { ModelConfig } from './config.ts';
import { embed, gather, linear, rmsnorm, swiglu, type Context } from './operations.ts';
import type { Value } from './tape.ts';
import type { PackedWeights, RopeTable } from './weights.ts';

export interface ForwardInput {
  readonly config: ModelConfig;
  readonly weights: PackedWeights;
  readonly rope: RopeTable;
  /** Address of one i32 token a row. */
  readonly tokens: number;
  readonly rows: RowPlaces;
  /** `index` is the address of one i32 a wanted row: its place among `rows`. */
  readonly wanted: RowPlaces & { readonly index: number };
  /** Addresses of each layer's cache. */
  readonly keys: (layer: number) => number;
  readonly values: (layer: number) => number;
  /** Sequence tables for the backward pass, over all rows and over wanted rows. */
  readonly sequences: { readonly all: number; readonly wanted: number; readonly count: number };
}

/** Logits, one row a wanted row. Without a tape the memory of each layer is given back on the way. */
export function forward(context: Context, input: ForwardInput): Value {
  const { engine, tape } = context;
  const { config, weights, rows, wanted } = input;
  const epsilon = config.rmsNormEpsilon;
  let x = embed(context, {
    table: weights.embedding,
    gradient: weights.embeddingGradient,
    tokens: input.tokens,
    rows: rows.count,
    width: config.hiddenSize,
  });
  for (const [layer, w] of weights.layers.entries()) {
    const isLast = layer === config.layers - 1;
    const mark = engine.mark();
    const h = rmsnorm(context, x, { norm: w.inputNorm, epsilon });
    const shared = {
      shape: { ...config, epsilon, queryNorm: w.queryNorm, keyNorm: w.keyNorm, rope: input.rope },
      keyRows: rows,
      keys: input.keys(layer),
      values: input.values(layer),
    };
    let mixed: Value;
    if (isLast) {
      const index = { pointer: wanted.index, count: wanted.count };
      const keyValue = linear(context, h, w.keyValue);
      const query = linear(context, gather(context, h, index), w.query);
      mixed = attention(context, {
        ...shared,
        query,
        queryRows: wanted,
        keyValue,
        keyColumn: 0,
        sequences: { table: input.sequences.wanted, count: input.sequences.count },
      });
      x = gather(context, x, index);
    } else {
      const qkv = linear(context, h, w.queryKeyValue);
      mixed = attention(context, {
        ...shared,
        query: qkv,
        queryRows: rows,
        keyValue: qkv,
        keyColumn: w.query.outputs,
        sequences: { table: input.sequences.all, count: input.sequences.count },
      });
    }
    x = linear(context, mixed, w.output, x);
    x = linear(
      context,
      swiglu(context, linear(context, rmsnorm(context, x, { norm: w.postNorm, epsilon }), w.gateUp)),
      w.down,
      x,
    );
    if (tape === undefined && !isLast) engine.release(mark);
  }
  return linear(context, rmsnorm(context, x, { norm: weights.finalNorm, epsilon }), weights.head);
}
