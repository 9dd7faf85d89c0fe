/**
 * The decoder's operations over `Value`s: each runs its kernels forward and, given a tape, records its backward.
 * The forward of an operation is the same with and without a tape, bit for bit.
 */
import type { Engine } from './engine.ts';
import { allocValue, openGradient, type Tape, type Value } from './tape.ts';
import type { Norm, Projection, RopeTable } from './weights.ts';

export interface Context {
  readonly engine: Engine;
  readonly tape: Tape | undefined;
}

const BLOCK_ROWS = 64;

/** c = a b (+ bias) (+ addend) for b in panels: splits the product over blocks of rows and, when there are few rows, over groups of panels too. */
export function multiply(
  engine: Engine,
  operands: { to: number; a: number; b: number; rows: number; columns: number; depth: number; lda: number; ldc: number; panelStride: number; addend: number; bias: number },
): void {
  const { to, a, b, rows, columns, depth, lda, ldc, panelStride, addend, bias } = operands;
  const panels = Math.ceil(columns / 8);
  const blocks = Math.ceil(rows / BLOCK_ROWS);
  const groups = Math.min(panels, Math.ceil((engine.threads === 1 ? 1 : engine.threads * 4) / blocks));
  const groupPanels = Math.ceil(panels / groups);
  engine.run('matmul', blocks * Math.ceil(panels / groupPanels), 1, to, a, b, rows, columns, depth, lda, ldc, panelStride, BLOCK_ROWS, groupPanels, addend, bias);
}

/** x w^T + bias, plus `residual` when given; then the sum takes the residual's place, and shares its gradient. */
export function linear(context: Context, x: Value, projection: Projection, residual?: Value): Value {
  const { engine, tape } = context;
  const { inputs, outputs } = projection;
  const reuse = residual !== undefined && tape === undefined;
  const y = reuse ? residual : allocValue(engine, x.rows, outputs);
  multiply(engine, {
    to: y.pointer,
    a: x.pointer,
    b: projection.panels,
    rows: x.rows,
    columns: outputs,
    depth: inputs,
    lda: inputs,
    ldc: outputs,
    panelStride: inputs * 8,
    addend: residual?.pointer ?? 0,
    bias: projection.bias,
  });
  tape?.record(() => {
    const dy = y.gradient;
    if (dy === 0) return;
    engine.run('matmul_weight', inputs / 8, 1, projection.gradient, dy, x.pointer, x.rows, outputs, inputs, outputs, inputs);
    if (projection.bias !== 0) engine.run('bias_gradient', outputs / 4, 4, projection.biasGradient, dy, x.rows, outputs);
    const { pointer, holdsSum } = openGradient(engine, x);
    multiply(engine, {
      to: pointer,
      a: dy,
      b: projection.columns + projection.firstColumnRow * 8 * 4,
      rows: x.rows,
      columns: inputs,
      depth: outputs,
      lda: outputs,
      ldc: inputs,
      panelStride: projection.columnRows * 8,
      addend: holdsSum ? pointer : 0,
      bias: 0,
    });
    if (residual !== undefined) residual.gradient = dy;
  });
  return y;
}

export function rmsnorm(context: Context, x: Value, options: { norm: Norm; epsilon: number }): Value {
  const { engine, tape } = context;
  const { norm, epsilon } = options;
  const y = allocValue(engine, x.rows, x.width);
  engine.run('rmsnorm', x.rows, 16, y.pointer, x.pointer, norm.weight, x.width, epsilon);
  tape?.record(() => {
    const { pointer, holdsSum } = openGradient(engine, x);
    normBackward(engine, { to: pointer, ldTo: x.width, dy: y.gradient, lddy: x.width, x: x.pointer, ldx: x.width, rows: x.rows, width: x.width, heads: 1, norm, epsilon, holdsSum });
  });
  return y;
}

interface NormBackward {
  to: number;
  ldTo: number;
  dy: number;
  lddy: number;
  x: number;
  ldx: number;
  rows: number;
  width: number;
  heads: number;
  norm: Norm;
  epsilon: number;
  holdsSum: boolean;
}

function normBackward(engine: Engine, o: NormBackward): void {
  const inverses = engine.allocFloats(o.rows * o.heads);
  engine.run('rmsnorm_backward', o.rows * o.heads, 16, o.to, o.ldTo, o.dy, o.lddy, o.x, o.ldx, o.norm.weight, o.width, o.heads, o.epsilon, o.holdsSum ? 1 : 0, inverses);
  engine.run('rmsnorm_weight', o.width / 4, 4, o.norm.gradient, o.dy, o.lddy, o.x, o.ldx, inverses, o.rows, o.width, o.heads);
}

export function swiglu(context: Context, gateUp: Value): Value {
  const { engine, tape } = context;
  const width = gateUp.width / 2;
  const y = allocValue(engine, gateUp.rows, width);
  engine.run('swiglu', gateUp.rows, 16, y.pointer, gateUp.pointer, width);
  tape?.record(() => {
    const { pointer } = openGradient(engine, gateUp);
    engine.run('swiglu_backward', gateUp.rows, 16, pointer, y.gradient, gateUp.pointer, width);
  });
  return y;
}

/** Rows of the embedding table. `tokens` is the address of one i32 a row. */
export function embed(context: Context, options: { table: number; gradient: number; tokens: number; rows: number; width: number }): Value {
  const { engine, tape } = context;
  const { table, gradient, tokens, rows, width } = options;
  const x = allocValue(engine, rows, width);
  engine.run('embed', rows, 16, x.pointer, table, tokens, width);
  tape?.record(() => engine.run('embed_gradient', width / 4, 4, gradient, x.gradient, tokens, rows, width));
  return x;
}

/** The rows of x at `index` (one distinct i32 each). */
export function gather(context: Context, x: Value, index: { pointer: number; count: number }): Value {
  const { engine, tape } = context;
  const y = allocValue(engine, index.count, x.width);
  engine.run('gather', index.count, 64, y.pointer, x.pointer, index.pointer, x.width);
  tape?.record(() => {
    const { pointer, holdsSum } = openGradient(engine, x);
    if (!holdsSum) engine.f32(pointer, x.rows * x.width).fill(0);
    engine.run('scatter_add', index.count, 64, pointer, y.gradient, index.pointer, x.width);
  });
  return y;
}

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
  engine.run('rope_cache', keyRows.count, 8, keys, values, keyRows.offsets, rawKeys, keyValue.width, keyRows.positions, rope.cosines, rope.sines, kvHeads, headDim, keyNorm?.weight ?? 0, epsilon);
  engine.run('rope_query', queryRows.count, 8, q.pointer, query.pointer, query.width, queryRows.positions, rope.cosines, rope.sines, heads, headDim, queryNorm?.weight ?? 0, epsilon);
  const out = allocValue(engine, queryRows.count, queryWidth);
  const stats = tape === undefined ? 0 : engine.allocFloats(queryRows.count * heads * 2);
  engine.run('attention', queryRows.count, 4, out.pointer, q.pointer, keys, values, queryRows.offsets, queryRows.positions, heads, kvHeads, headDim, scale, stats);
  tape?.record(() => {
    const dq = engine.allocFloats(queryRows.count * queryWidth);
    const dkv = openGradient(engine, keyValue).pointer;
    const dk = dkv + input.keyColumn * 4;
    const { table, count } = input.sequences;
    engine.run('attention_backward', count * kvHeads, 1, dq, dk, keyValue.width, out.gradient, out.pointer, q.pointer, keys, values, queryRows.offsets, queryRows.positions, table, heads, kvHeads, headDim, scale, stats);
    const dQuery = query === keyValue ? dkv : openGradient(engine, query).pointer;
    const back = (to: number, ldTo: number, from: number, ldFrom: number, places: RowPlaces, count: number): void =>
      engine.run('rope_backward', places.count, 16, to, ldTo, from, ldFrom, places.positions, rope.cosines, rope.sines, count, headDim);
    if (queryNorm === undefined) back(dQuery, query.width, dq, queryWidth, queryRows, heads);
    else {
      back(dq, queryWidth, dq, queryWidth, queryRows, heads);
      normBackward(engine, { to: dQuery, ldTo: query.width, dy: dq, lddy: queryWidth, x: query.pointer, ldx: query.width, rows: queryRows.count, width: headDim, heads, norm: queryNorm, epsilon, holdsSum: false });
    }
    if (keyNorm === undefined) back(dk, keyValue.width, dk, keyValue.width, keyRows, kvHeads);
    else {
      const keyWidth = kvHeads * headDim;
      const turned = engine.allocFloats(keyRows.count * keyWidth);
      back(turned, keyWidth, dk, keyValue.width, keyRows, kvHeads);
      normBackward(engine, { to: dk, ldTo: keyValue.width, dy: turned, lddy: keyWidth, x: rawKeys, ldx: keyValue.width, rows: keyRows.count, width: headDim, heads: kvHeads, norm: keyNorm, epsilon, holdsSum: false });
    }
  });
  return out;
}
