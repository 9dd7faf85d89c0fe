/**
 * The decoder's operations over `Value`s: each runs its kernels forward and, given a tape, records its backward.
 * The forward of an operation is the same with and without a tape, bit for bit.
 */
import type { Engine } from './engine.ts';
import { allocValue, openGradient, type Tape, type Value } from './tape.ts';
import type { Norm, Projection } from './weights.ts';

export interface Context {
  readonly engine: Engine;
  readonly tape: Tape | undefined;
}

const BLOCK_ROWS = 64;

/** c = a b (+ bias) (+ addend) for b in panels: splits the product over blocks of rows and, when there are few rows, over groups of panels too. */
export function multiply(
  engine: Engine,
  operands: {
    to: number;
    a: number;
    b: number;
    rows: number;
    columns: number;
    depth: number;
    lda: number;
    ldc: number;
    panelStride: number;
    addend: number;
    bias: number;
  },
): void {
  const { to, a, b, rows, columns, depth, lda, ldc, panelStride, addend, bias } = operands;
  const panels = Math.ceil(columns / 8);
  const blocks = Math.ceil(rows / BLOCK_ROWS);
  const groups = Math.min(panels, Math.ceil((engine.threads === 1 ? 1 : engine.threads * 4) / blocks));
  const groupPanels = Math.ceil(panels / groups);
  engine.run(
    'matmul',
    blocks * Math.ceil(panels / groupPanels),
    1,
    to,
    a,
    b,
    rows,
    columns,
    depth,
    lda,
    ldc,
    panelStride,
    BLOCK_ROWS,
    groupPanels,
    addend,
    bias,
  );
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
    engine.run(
      'matmul_weight',
      inputs / 8,
      1,
      projection.gradient,
      dy,
      x.pointer,
      x.rows,
      outputs,
      inputs,
      outputs,
      inputs,
    );
    if (projection.bias !== 0)
      engine.run('bias_gradient', outputs / 4, 4, projection.biasGradient, dy, x.rows, outputs);
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
    normBackward(engine, {
      to: pointer,
      ldTo: x.width,
      dy: y.gradient,
      lddy: x.width,
      x: x.pointer,
      ldx: x.width,
      rows: x.rows,
      width: x.width,
      heads: 1,
      norm,
      epsilon,
      holdsSum,
    });
  });
  return y;
}

export interface NormBackward {
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

/** dx and dw of a norm over rows or heads. */
export function normBackward(engine: Engine, o: NormBackward): void {
  const inverses = engine.allocFloats(o.rows * o.heads);
  engine.run(
    'rmsnorm_backward',
    o.rows * o.heads,
    16,
    o.to,
    o.ldTo,
    o.dy,
    o.lddy,
    o.x,
    o.ldx,
    o.norm.weight,
    o.width,
    o.heads,
    o.epsilon,
    o.holdsSum ? 1 : 0,
    inverses,
  );
  engine.run(
    'rmsnorm_weight',
    o.width / 4,
    4,
    o.norm.gradient,
    o.dy,
    o.lddy,
    o.x,
    o.ldx,
    inverses,
    o.rows,
    o.width,
    o.heads,
  );
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
export function embed(
  context: Context,
  options: { table: number; gradient: number; tokens: number; rows: number; width: number },
): Value {
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
