/**
 * Causal attention as an operation: rotates queries and keys (after their optional norms), writes keys and values into
 * a cache, and attends over it. Sampler and trainer differ only in whose cache it is and in the recorded backward.
 * Invariant: a query row's result is a function of its own sequence's rows.
 */
import { normBackward, type Context } from './operations.ts';
import { allocValue, openGradient, type Value } from './tape.ts';
import type { Norm, RopeTable } from './weights.ts';

/** i32 addresses, one entry a row: the position, and the float offset of the row's sequence in the cache. */
export interface RowPlaces {
  readonly count: number;
  readonly positions: number;
  readonly offsets: number;
}

export interface AttentionShape {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly epsilon: number;
  readonly queryNorm: Norm | undefined;
  readonly keyNorm: Norm | undefined;
  readonly rope: RopeTable;
}

export interface AttentionInput {
  readonly shape: AttentionShape;
  /** Raw queries: a value whose rows begin with them. */
  readonly query: Value;
  readonly queryRows: RowPlaces;
  /** Raw keys and values side by side, from column `keyColumn` of this value on. */
  readonly keyValue: Value;
  readonly keyColumn: number;
  readonly keyRows: RowPlaces;
  /** The layer's cache; keys of `keyRows` are written into it. */
  readonly keys: number;
  readonly values: number;
  /** For the backward pass: (first query row, query rows, first key row, positions) a sequence. */
  readonly sequences: { readonly table: number; readonly count: number };
}

/** Causal attention of the query rows over the cache. */
export function attention(context: Context, input: AttentionInput): Value {
  const { engine, tape } = context;
  const { shape, query, queryRows, keyValue, keyRows, keys, values } = input;
  const { heads, kvHeads, headDim, epsilon, queryNorm, keyNorm, rope } = shape;
  const queryWidth = heads * headDim;
  const scale = 1 / Math.sqrt(headDim);
  const rawKeys = keyValue.pointer + input.keyColumn * 4;
  const q = allocValue(engine, queryRows.count, queryWidth);
  engine.run(
    'rope_cache',
    keyRows.count,
    8,
    keys,
    values,
    keyRows.offsets,
    rawKeys,
    keyValue.width,
    keyRows.positions,
    rope.cosines,
    rope.sines,
    kvHeads,
    headDim,
    keyNorm?.weight ?? 0,
    epsilon,
  );
  engine.run(
    'rope_query',
    queryRows.count,
    8,
    q.pointer,
    query.pointer,
    query.width,
    queryRows.positions,
    rope.cosines,
    rope.sines,
    heads,
    headDim,
    queryNorm?.weight ?? 0,
    epsilon,
  );
  const out = allocValue(engine, queryRows.count, queryWidth);
  const stats = tape === undefined ? 0 : engine.allocFloats(queryRows.count * heads * 2);
  engine.run(
    'attention',
    queryRows.count,
    4,
    out.pointer,
    q.pointer,
    keys,
    values,
    queryRows.offsets,
    queryRows.positions,
    heads,
    kvHeads,
    headDim,
    scale,
    stats,
  );
  tape?.record(() => {
    const dq = engine.allocFloats(queryRows.count * queryWidth);
    const dkv = openGradient(engine, keyValue).pointer;
    const dk = dkv + input.keyColumn * 4;
    const { table, count } = input.sequences;
    engine.run(
      'attention_backward',
      count * kvHeads,
      1,
      dq,
      dk,
      keyValue.width,
      out.gradient,
      out.pointer,
      q.pointer,
      keys,
      values,
      queryRows.offsets,
      queryRows.positions,
      table,
      heads,
      kvHeads,
      headDim,
      scale,
      stats,
    );
    const dQuery = query === keyValue ? dkv : openGradient(engine, query).pointer;
    const back = (to: number, ldTo: number, from: number, ldFrom: number, places: RowPlaces, count: number): void =>
      engine.run(
        'rope_backward',
        places.count,
        16,
        to,
        ldTo,
        from,
        ldFrom,
        places.positions,
        rope.cosines,
        rope.sines,
        count,
        headDim,
      );
    if (queryNorm === undefined) back(dQuery, query.width, dq, queryWidth, queryRows, heads);
    else {
      back(dq, queryWidth, dq, queryWidth, queryRows, heads);
      normBackward(engine, {
        to: dQuery,
        ldTo: query.width,
        dy: dq,
        lddy: queryWidth,
        x: query.pointer,
        ldx: query.width,
        rows: queryRows.count,
        width: headDim,
        heads,
        norm: queryNorm,
        epsilon,
        holdsSum: false,
      });
    }
    if (keyNorm === undefined) back(dk, keyValue.width, dk, keyValue.width, keyRows, kvHeads);
    else {
      const keyWidth = kvHeads * headDim;
      const turned = engine.allocFloats(keyRows.count * keyWidth);
      back(turned, keyWidth, dk, keyValue.width, keyRows, kvHeads);
      normBackward(engine, {
        to: dk,
        ldTo: keyValue.width,
        dy: turned,
        lddy: keyWidth,
        x: rawKeys,
        ldx: keyValue.width,
        rows: keyRows.count,
        width: headDim,
        heads: kvHeads,
        norm: keyNorm,
        epsilon,
        holdsSum: false,
      });
    }
  });
  return out;
}
