import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import { createEngine, type Engine } from './engine.ts';
import { attention, type RowPlaces } from './attention.ts';
import { embed, gather, linear, rmsnorm, swiglu, type Context } from './operations.ts';
import { roundToBf16 } from './small-model.fixture.ts';
import { Tape, type Value } from './tape.ts';
import type { Norm, Projection } from './weights.ts';

let engine: Engine;
let mark = 0;
const random = createRandom(5);
beforeAll(async () => {
  engine = await createEngine({ build: 'plain', threads: 2 });
  mark = engine.mark();
});
beforeEach(() => engine.release(mark));
afterAll(() => engine.close());

const uniform = (count: number, spread = 1): Float32Array =>
  Float32Array.from({ length: count }, () => (random.next() - 0.5) * 2 * spread);
const zeros = (count: number): number => engine.allocF32(new Float32Array(count));
const toValue = (values: Float32Array, width: number): Value => ({
  pointer: engine.allocF32(values),
  rows: values.length / width,
  width,
  gradient: 0,
});

/** Packs f32 weights [out][in] as the kernels read them, without rounding. */
function project(weights: Float32Array, inputs: number, bias: Float32Array): Projection {
  const outputs = weights.length / inputs;
  const panels = new Float32Array(Math.ceil(outputs / 8) * 8 * inputs);
  const columns = new Float32Array(weights.length);
  for (const [index, weight] of weights.entries()) {
    const row = Math.floor(index / inputs);
    const column = index % inputs;
    panels[Math.floor(row / 8) * inputs * 8 + column * 8 + (row % 8)] = weight;
    columns[Math.floor(column / 8) * outputs * 8 + row * 8 + (column % 8)] = weight;
  }
  return {
    inputs,
    outputs,
    panels: engine.allocF32(panels),
    bias: engine.allocF32(bias),
    columns: engine.allocF32(columns),
    columnRows: outputs,
    firstColumnRow: 0,
    gradient: zeros(weights.length),
    biasGradient: zeros(bias.length),
  };
}

const toNorm = (weights: Float32Array): Norm => ({ weight: engine.allocF32(weights), gradient: zeros(weights.length) });

/**
 * Checks the gradient of sum(c * output) for random c, in every input, along a random direction. The step of 1/64 leaves
 * a third-order error, and f32 outputs add noise of about 1e-7 / step: both far below 2e-3 of |gradient| |direction|.
 * `build` runs the operation on the given inputs and says where each input's gradient ends up.
 */
function check(
  inputs: readonly Float32Array[],
  build: (context: Context, values: readonly Float32Array[]) => { output: Value; gradients: () => readonly number[] },
): void {
  const tape = new Tape();
  const { output, gradients } = build({ engine, tape }, inputs);
  const size = output.rows * output.width;
  const c = uniform(size);
  output.gradient = engine.allocF32(c);
  tape.backward();
  const analytic = gradients().map((pointer, index) => engine.f32(pointer, inputs[index]?.length ?? 0).slice());
  const lossAt = (values: readonly Float32Array[]): number => {
    const start = engine.mark();
    const moved = build({ engine, tape: new Tape() }, values).output;
    const loss = engine.f32(moved.pointer, size).reduce((sum, x, index) => sum + x * (c[index] ?? 0), 0);
    engine.release(start);
    return loss;
  };
  for (const [place, values] of inputs.entries()) {
    const direction = values.map(() => (random.next() < 0.5 ? -1 : 1) / 64);
    const move = (sign: number): Float32Array[] =>
      inputs.map((other, index) => (index === place ? other.map((x, at) => x + sign * (direction[at] ?? 0)) : other));
    const difference = (lossAt(move(1)) - lossAt(move(-1))) / 2;
    const gradient = analytic[place] ?? values;
    const derivative = gradient.reduce((sum, x, index) => sum + x * (direction[index] ?? 0), 0);
    const scale = Math.hypot(...gradient) * Math.hypot(...direction);
    expect(scale).toBeGreaterThan(0);
    expect(Math.abs(difference - derivative) / scale, `input ${place}`).toBeLessThan(2e-3);
  }
}

describe('central differences agree for', () => {
  it.each([0, 1])('a linear map with bias, with %s residuals', (residuals) => {
    const [rows, inputs, outputs] = [7, 16, 24];
    const residual = residuals === 0 ? [] : [uniform(rows * outputs)];
    check(
      [uniform(rows * inputs), uniform(outputs * inputs), uniform(outputs), ...residual],
      (context, [x, w, b, r]) => {
        const input = toValue(x ?? new Float32Array(0), inputs);
        const projection = project(w ?? new Float32Array(0), inputs, b ?? new Float32Array(0));
        const rest = r === undefined ? undefined : toValue(r, outputs);
        const output = linear(context, input, projection, rest);
        return {
          output,
          gradients: () => [
            input.gradient,
            projection.gradient,
            projection.biasGradient,
            ...(rest === undefined ? [] : [rest.gradient]),
          ],
        };
      },
    );
  });

  it('a norm whose input is used twice', () =>
    check([uniform(5 * 16), uniform(16)], (context, [x, w]) => {
      const input = toValue(x ?? new Float32Array(0), 16);
      const norm = toNorm(w ?? new Float32Array(0));
      const zero = project(new Float32Array(16 * 16), 16, new Float32Array(16));
      const first = rmsnorm(context, input, { norm, epsilon: 1e-5 });
      const output = linear(
        context,
        first,
        project(identity(16), 16, new Float32Array(16)),
        linear(context, input, zero, input),
      );
      return { output, gradients: () => [input.gradient, norm.gradient] };
    }));

  it('swiglu', () =>
    check([uniform(5 * 32, 3)], (context, [x]) => {
      const input = toValue(x ?? new Float32Array(0), 32);
      return { output: swiglu(context, input), gradients: () => [input.gradient] };
    }));

  it('gathered rows', () =>
    check([uniform(6 * 8)], (context, [x]) => {
      const input = toValue(x ?? new Float32Array(0), 8);
      return {
        output: gather(context, input, { pointer: engine.allocI32([1, 4, 5]), count: 3 }),
        gradients: () => [input.gradient],
      };
    }));

  it.each([
    ['with head norms', 4, 2, 16, true],
    ['without, one key head for all', 3, 1, 24, false],
    ['without, a key head each', 2, 2, 8, false],
  ] as const)('attention %s', (_, heads, kvHeads, headDim, hasNorm) => {
    const lengths = [19, 10];
    const total = 29;
    const queryWidth = heads * headDim;
    const width = queryWidth + 2 * kvHeads * headDim;
    const keyFloats = (24 + 16) * kvHeads * headDim;
    const half = headDim / 2;
    const angles = Float32Array.from({ length: 24 * half }, (_unused, index) => index * 0.37);
    check(
      [uniform(total * width), uniform(headDim), uniform(headDim)].slice(0, hasNorm ? 3 : 1),
      (context, [x, qn, kn]) => {
        const qkv = toValue(x ?? new Float32Array(0), width);
        const norms = [qn, kn].map((weights) => (weights === undefined ? undefined : toNorm(weights)));
        const rows: RowPlaces = {
          count: total,
          positions: engine.allocI32(lengths.flatMap((length) => [...Array(length).keys()])),
          offsets: engine.allocI32(
            lengths.flatMap((length, index) => Array.from({ length }, () => index * 24 * kvHeads * headDim)),
          ),
        };
        const output = attention(context, {
          shape: {
            heads,
            kvHeads,
            headDim,
            epsilon: 1e-5,
            queryNorm: norms[0],
            keyNorm: norms[1],
            rope: { cosines: engine.allocF32(angles.map(Math.cos)), sines: engine.allocF32(angles.map(Math.sin)) },
          },
          query: qkv,
          queryRows: rows,
          keyValue: qkv,
          keyColumn: queryWidth,
          keyRows: rows,
          keys: engine.allocFloats(keyFloats),
          values: engine.allocFloats(keyFloats),
          sequences: { table: engine.allocI32([0, 19, 0, 19, 19, 10, 19, 10]), count: 2 },
        });
        return {
          output,
          gradients: () => [qkv.gradient, ...norms.flatMap((norm) => (norm === undefined ? [] : [norm.gradient]))],
        };
      },
    );
  });
});

it('an embedding adds each row to its token, repeated tokens in order', () => {
  const tape = new Tape();
  const table = engine.alloc(4 * 8 * 2);
  const values = uniform(4 * 8).map(roundToBf16);
  engine.run('round_bf16', 32, 32, table, engine.allocF32(values));
  const gradient = zeros(32);
  const x = embed({ engine, tape }, { table, gradient, tokens: engine.allocI32([2, 0, 2]), rows: 3, width: 8 });
  expect([...engine.f32(x.pointer, 24)]).toEqual([
    ...values.slice(16, 24),
    ...values.slice(0, 8),
    ...values.slice(16, 24),
  ]);
  x.gradient = engine.allocF32(Float32Array.from({ length: 24 }, (_, index) => index));
  tape.backward();
  const eight = [...Array(8).keys()];
  expect([...engine.f32(gradient, 32)]).toEqual([
    ...eight.map((c) => 8 + c),
    ...eight.map(() => 0),
    ...eight.map((c) => c + 16 + c),
    ...eight.map(() => 0),
  ]);
});

function identity(width: number): Float32Array {
  return Float32Array.from({ length: width * width }, (_, index) =>
    Math.floor(index / width) === index % width ? 1 : 0,
  );
}
