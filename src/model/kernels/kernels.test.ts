import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { createRandom, type Random } from '../../domain/ids.ts';
import type { KernelName } from '../engine-worker.ts';
import { createEngine, type Build, type Engine } from '../engine.ts';
import { createReferenceKernels } from './reference.ts';

/** What a kernel writes: a byte address, how many 4-byte words, and whether they are integers. */
interface Output {
  readonly pointer: number;
  readonly count: number;
  readonly kind?: 'f32' | 'i32';
}

describe.each(['plain', 'fma'] as const)('kernels of the %s build against the reference', (build: Build) => {
  let engine: Engine;
  let random: Random;
  beforeAll(async () => {
    engine = await createEngine({ build, threads: 2 });
  });
  afterAll(() => engine.close());

  const floats = (count: number, spread = 1): number =>
    engine.allocF32(Float32Array.from({ length: count }, () => (random.next() - 0.5) * 2 * spread));
  const below = (count: number, bound: number): number =>
    engine.allocI32(Array.from({ length: count }, () => random.below(bound)));
  const bf16 = (count: number): number => {
    const pointer = engine.alloc(count * 2);
    engine.run('round_bf16', count, 64, pointer, floats(count));
    return pointer;
  };

  /** Runs the wasm kernel, then the reference from the same start, and compares all outputs. */
  function compare(
    kernel: KernelName,
    items: number,
    outputs: readonly Output[],
    args: readonly number[],
    tolerance = 2e-5,
  ): void {
    const read = ({ pointer, count, kind }: Output): number[] => [
      ...(kind === 'i32' ? engine.i32(pointer, count) : engine.f32(pointer, count)),
    ];
    const before = outputs.map(({ pointer, count }) => engine.bytes(pointer, count * 4).slice());
    engine.run(kernel, items, 1, ...args);
    const got = outputs.map(read);
    for (const [index, { pointer, count }] of outputs.entries())
      engine.bytes(pointer, count * 4).set(before[index] ?? []);
    createReferenceKernels(engine.bytes(0, 0).buffer)[kernel](0, items, ...args);
    for (const [index, output] of outputs.entries()) {
      const expected = read(output);
      const size = Math.max(1e-3, ...expected.map(Math.abs));
      const worst = Math.max(...expected.map((value, place) => Math.abs(value - (got[index]?.[place] ?? Number.NaN))));
      expect(worst / size, `${kernel}, output ${index}`).toBeLessThan(tolerance);
    }
  }

  /** Each case on its own memory, with sizes that leave tails in every tile. */
  const each = (body: (sizes: { rows: number; width: number; heads: number; group: number }) => void): void =>
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 21 }),
        fc.integer({ min: 1, max: 5 }),
        fc.constantFrom(1, 2, 3),
        fc.constantFrom(1, 2, 3, 4, 5),
        fc.nat(),
        (rows, eights, heads, group, seed) => {
          random = createRandom(seed);
          const mark = engine.mark();
          body({ rows, width: eights * 8, heads, group });
          engine.release(mark);
        },
      ),
      { numRuns: 12, seed: 7 },
    );

  it('packs, expands and rounds weights', () =>
    each(({ rows, width }) => {
      const w = bf16(rows * width);
      const out = floats((rows + 8 + 3) * width * 2);
      compare(
        'pack_rows',
        Math.ceil(rows / 8),
        [{ pointer: out, count: Math.ceil(rows / 8) * 8 * width }],
        [out, w, rows, width],
        1e-12,
      );
      compare(
        'pack_columns',
        width / 8,
        [{ pointer: out, count: (rows + 3) * width }],
        [out, w, rows, width, rows + 3, 2],
        1e-12,
      );
      compare('expand', rows * width, [{ pointer: out, count: rows * width }], [out, w], 1e-12);
      compare('round_bf16', rows * 8, [{ pointer: out, count: rows * 4, kind: 'i32' }], [out, floats(rows * 8)], 1e-12);
    }));

  it('multiplies matrices', () =>
    each(({ rows, width, heads, group }) => {
      const outputs = width + heads;
      const panels = Math.ceil(outputs / 8);
      const a = floats(rows * width);
      const b = floats(panels * width * 8);
      const c = floats(rows * outputs);
      const items = Math.ceil(rows / 8) * Math.ceil(panels / group);
      for (const [addend, bias] of [
        [0, 0],
        [c, 0],
        [c, floats(outputs + 8)],
      ] as const)
        compare(
          'matmul',
          items,
          [{ pointer: c, count: rows * outputs }],
          [c, a, b, rows, outputs, width, width, outputs, width * 8, 8, group, addend, bias],
        );
      const dw = floats(outputs * width);
      compare(
        'matmul_weight',
        width / 8,
        [{ pointer: dw, count: outputs * width }],
        [dw, floats(rows * outputs), a, rows, outputs, width, outputs, width],
      );
      const db = floats(width);
      compare('bias_gradient', width / 4, [{ pointer: db, count: width }], [db, a, rows, width]);
    }));

  it('sums a weight gradient over more rows than one block', () => {
    random = createRandom(3);
    const dw = floats(5 * 8);
    compare(
      'matmul_weight',
      1,
      [{ pointer: dw, count: 5 * 8 }],
      [dw, floats(600 * 5), floats(600 * 8), 600, 5, 8, 5, 8],
    );
  });

  it('looks up, gathers and scatters rows', () =>
    each(({ rows, width }) => {
      const x = floats(rows * width);
      const tokens = below(rows, 5);
      compare('embed', rows, [{ pointer: x, count: rows * width }], [x, bf16(5 * width), tokens, width], 1e-12);
      const table = floats(5 * width);
      compare('embed_gradient', width / 4, [{ pointer: table, count: 5 * width }], [table, x, tokens, rows, width]);
      const index = engine.allocI32(Array.from({ length: rows }, (_, place) => rows - 1 - place));
      const to = floats(rows * width);
      compare('gather', rows, [{ pointer: to, count: rows * width }], [to, x, index, width], 1e-12);
      compare('scatter_add', rows, [{ pointer: to, count: rows * width }], [to, x, index, width]);
    }));

  it('normalises rows and heads, forward and backward', () =>
    each(({ rows, width, heads }) => {
      const ld = heads * width;
      const [x, dy, dx, y] = [floats(rows * ld), floats(rows * ld), floats(rows * ld), floats(rows * ld)];
      const [w, dw, inverses] = [floats(width), floats(width), floats(rows * heads)];
      compare('rmsnorm', rows * heads, [{ pointer: y, count: rows * ld }], [y, x, w, width, 1e-5]);
      for (const accumulate of [0, 1])
        compare(
          'rmsnorm_backward',
          rows * heads,
          [
            { pointer: dx, count: rows * ld },
            { pointer: inverses, count: rows * heads },
          ],
          [dx, ld, dy, ld, x, ld, w, width, heads, 1e-5, accumulate, inverses],
          1e-4,
        );
      compare(
        'rmsnorm_weight',
        width / 4,
        [{ pointer: dw, count: width }],
        [dw, dy, ld, x, ld, inverses, rows, width, heads],
      );
    }));

  it('computes swiglu, forward and backward, large values included', () =>
    each(({ rows, width }) => {
      const gu = floats(rows * width * 2, 120);
      const h = floats(rows * width);
      const dgu = floats(rows * width * 2);
      compare('swiglu', rows, [{ pointer: h, count: rows * width }], [h, gu, width]);
      compare('swiglu_backward', rows, [{ pointer: dgu, count: rows * width * 2 }], [dgu, h, gu, width]);
    }));

  it('rotates and attends, forward and backward', () =>
    each(({ rows, width, heads: kvHeads, group }) => {
      const heads = kvHeads * group;
      const [queryWidth, keyWidth, context] = [heads * width, kvHeads * width, 48];
      const cosines = floats((context * width) / 2);
      const sines = floats((context * width) / 2);
      // Two sequences: `rows` rows from position 0, and one row more than that. Queries: all rows of both.
      const lengths = [rows, rows + 1];
      const total = rows * 2 + 1;
      const positions = engine.allocI32(lengths.flatMap((length) => Array.from({ length }, (_, place) => place)));
      const padded = Math.ceil((rows + 1) / 8) * 8;
      const offsets = engine.allocI32(
        lengths.flatMap((length, sequence) => Array.from({ length }, () => sequence * padded * keyWidth)),
      );
      const qkv = floats(total * (queryWidth + 2 * keyWidth));
      const ld = queryWidth + 2 * keyWidth;
      const [q, keys, values] = [
        floats(total * queryWidth),
        floats(2 * padded * keyWidth),
        floats(2 * padded * keyWidth),
      ];
      for (const norm of [0, floats(width)]) {
        compare(
          'rope_query',
          total,
          [{ pointer: q, count: total * queryWidth }],
          [q, qkv, ld, positions, cosines, sines, heads, width, norm, 1e-5],
        );
        compare(
          'rope_cache',
          total,
          [
            { pointer: keys, count: 2 * padded * keyWidth },
            { pointer: values, count: 2 * padded * keyWidth },
          ],
          [keys, values, offsets, qkv + queryWidth * 4, ld, positions, cosines, sines, kvHeads, width, norm, 1e-5],
        );
      }
      const scale = 2 / Math.sqrt(width);
      const out = floats(total * queryWidth);
      const stats = floats(total * heads * 2);
      compare(
        'attention',
        total,
        [
          { pointer: out, count: total * queryWidth },
          { pointer: stats, count: total * heads * 2 },
        ],
        [out, q, keys, values, offsets, positions, heads, kvHeads, width, scale, stats],
      );
      const table = engine.allocI32([0, rows, 0, rows, rows, rows + 1, rows, rows + 1]);
      const dq = floats(total * queryWidth);
      const dkv = floats(total * 2 * keyWidth);
      compare(
        'attention_backward',
        2 * kvHeads,
        [
          { pointer: dq, count: total * queryWidth },
          { pointer: dkv, count: total * 2 * keyWidth },
        ],
        [
          dq,
          dkv,
          2 * keyWidth,
          floats(total * queryWidth),
          out,
          q,
          keys,
          values,
          offsets,
          positions,
          table,
          heads,
          kvHeads,
          width,
          scale,
          stats,
        ],
        1e-4,
      );
      compare(
        'rope_backward',
        total,
        [{ pointer: dq, count: total * queryWidth }],
        [dq, queryWidth, q, queryWidth, positions, cosines, sines, heads, width],
      );
    }));

  const keptRows = (rows: number, vocabulary: number, targets: number): { ids: number; offsets: number } => {
    const ids: number[] = [];
    const offsets = [0];
    for (let m = 0; m < rows; m++) {
      // Every third row is the full vocabulary: an empty list.
      const target = engine.i32(targets, rows)[m] ?? 0;
      for (let id = 0; m % 3 !== 0 && id < vocabulary; id++) if (id === target || random.next() < 0.3) ids.push(id);
      offsets.push(ids.length);
    }
    return { ids: engine.allocI32(ids), offsets: engine.allocI32(offsets) };
  };

  it('computes log-probabilities, entropies and their gradients', () =>
    each(({ rows, width, heads }) => {
      const vocabulary = width + heads;
      const logits = floats(rows * vocabulary, 6);
      const targets = below(rows, vocabulary);
      const inverse = engine.allocF32(Float32Array.from({ length: rows }, () => 0.5 + random.next()));
      const kept = keptRows(rows, vocabulary, targets);
      const [logprobs, entropies, dLogits] = [floats(rows), floats(rows), floats(rows * vocabulary)];
      compare(
        'head_logprob',
        rows,
        [
          { pointer: logprobs, count: rows },
          { pointer: entropies, count: rows },
        ],
        [logprobs, entropies, logits, vocabulary, targets, inverse, kept.ids, kept.offsets],
      );
      compare(
        'head_gradient',
        rows,
        [{ pointer: dLogits, count: rows * vocabulary }],
        [dLogits, logits, vocabulary, targets, inverse, kept.ids, kept.offsets, floats(rows), floats(rows)],
      );
    }));

  it('samples', () =>
    each(({ rows, width, heads, group }) => {
      const vocabulary = width * 4 + heads;
      const logits = floats(rows * vocabulary, 4);
      const settings = engine.alloc(rows * 64);
      for (let m = 0; m < rows; m++)
        engine
          .f64(settings, rows * 8)
          .set(
            [
              0.5 + random.next(),
              random.below(3) * group,
              random.next() < 0.3 ? 1 : random.next(),
              random.below(2) * 0.1,
              m % 5 === 4 ? 1 : 0,
              random.below(1e9),
              m,
            ],
            m * 8,
          );
      const [ids, logprobs, counts, kept] = [below(rows, 1), floats(rows), below(rows, 1), below(rows * vocabulary, 1)];
      compare(
        'sample',
        rows,
        [
          { pointer: ids, count: rows, kind: 'i32' },
          { pointer: logprobs, count: rows },
          { pointer: counts, count: rows, kind: 'i32' },
          { pointer: kept, count: rows * vocabulary, kind: 'i32' },
        ],
        [ids, logprobs, counts, kept, logits, vocabulary, settings],
      );
    }));

  it('sums squares, takes and steps AdamW', () =>
    each(({ rows, width }) => {
      const n = rows * width * 16;
      const partials = engine.alloc(Math.ceil(n / 4096) * 8);
      const [x, y, m, g] = [floats(n), floats(n), floats(n), floats(n)];
      engine.run('sum_squares', Math.ceil(n / 4096), 1, partials, x, n);
      const got = engine.f64(partials, Math.ceil(n / 4096)).slice();
      createReferenceKernels(engine.bytes(0, 0).buffer).sum_squares(0, got.length, partials, x, n);
      expect([...got]).toEqual([...engine.f64(partials, got.length)]);
      compare(
        'take',
        n / 4,
        [
          { pointer: y, count: n },
          { pointer: x, count: n },
        ],
        [y, x],
        1e-6,
      );
      const v = engine.allocF32(engine.f32(m, n).map((value) => value * value));
      const served = engine.alloc(n * 2);
      compare(
        'adamw',
        n,
        [
          { pointer: y, count: n },
          { pointer: m, count: n },
          { pointer: v, count: n },
          { pointer: g, count: n },
        ],
        [y, m, v, g, served, 1e-2, 0.9, 0.99, 1e-8, 0.1, 0.5, 3, 9],
      );
    }));

  it('runs the peak chains to their fixed point', () => {
    random = createRandom(1);
    const out = floats(4);
    compare('peak', 200_000, [{ pointer: out, count: 4 }], [out], 1e-3);
  });
});
