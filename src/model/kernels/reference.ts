/**
 * The kernels once more, in plain TypeScript over the same memory layout and with the same names and arguments: the
 * oracle of the kernel tests, in one file as kernels.c is, to be read beside it. Sums are taken in f64 and in the
 * obvious order, so results agree to rounding, not to the bit.
 */
import type { Kernel, KernelName } from '../engine-worker.ts';

/** Reads and writes `memory`; arguments are byte addresses as the wasm kernels take them. */
export function createReferenceKernels(memory: ArrayBufferLike): Record<KernelName, Kernel> {
  const f32 = new Float32Array(memory);
  const f64 = new Float64Array(memory);
  const i32 = new Int32Array(memory);
  const u16 = new Uint16Array(memory);
  const get = (pointer: number, index: number): number => f32[pointer / 4 + index] ?? Number.NaN;
  const set = (pointer: number, index: number, value: number): void => void (f32[pointer / 4 + index] = value);
  const add = (pointer: number, index: number, value: number): void => set(pointer, index, get(pointer, index) + value);
  const int = (pointer: number, index: number): number => i32[pointer / 4 + index] ?? 0;
  const word = new Uint32Array(1);
  const wordValue = new Float32Array(word.buffer);
  const widen = (pointer: number, index: number): number => {
    word[0] = (u16[pointer / 2 + index] ?? 0) << 16;
    return wordValue[0] ?? 0;
  };
  const narrow = (pointer: number, index: number, value: number): void => {
    wordValue[0] = value;
    const bits = word[0] ?? 0;
    u16[pointer / 2 + index] = (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
  };
  const sum = (count: number, term: (index: number) => number): number => {
    let total = 0;
    for (let index = 0; index < count; index++) total += term(index);
    return total;
  };
  const each = (begin: number, end: number, body: (index: number) => void): void => {
    for (let index = begin; index < end; index++) body(index);
  };
  const inverseRms = (x: number, at: number, width: number, epsilon: number): number =>
    1 / Math.sqrt(sum(width, (c) => get(x, at + c) ** 2) / width + epsilon);
  const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

  /** The normalised head vector, then its two rotated halves, given to `put`. */
  const rotate = (
    put: (channel: number, value: number) => void,
    o: {
      x: number;
      at: number;
      cosines: number;
      sines: number;
      angle: number;
      width: number;
      norm: number;
      epsilon: number;
    },
  ): void => {
    const half = o.width / 2;
    const inverse = o.norm === 0 ? 1 : inverseRms(o.x, o.at, o.width, o.epsilon);
    const value = (c: number): number => get(o.x, o.at + c) * inverse * (o.norm === 0 ? 1 : get(o.norm, c));
    for (let i = 0; i < half; i++) {
      const cosine = get(o.cosines, o.angle + i);
      const sine = get(o.sines, o.angle + i);
      put(i, value(i) * cosine - value(i + half) * sine);
      put(i + half, value(i + half) * cosine + value(i) * sine);
    }
  };

  /** Attention of one query row and head: probabilities and where the key and value elements lie. */
  const head = (o: {
    m: number;
    h: number;
    q: number;
    keys: number;
    values: number;
    offsets: number;
    positions: number;
    heads: number;
    kvHeads: number;
    width: number;
    scale: number;
  }): {
    p: number[];
    logits: number[];
    key: (t: number, c: number) => number;
    value: (t: number, c: number) => number;
  } => {
    const kv = Math.floor(o.h / (o.heads / o.kvHeads));
    const base = int(o.offsets, o.m);
    const key = (t: number, c: number): number =>
      get(o.keys, base + (Math.floor(t / 8) * o.kvHeads + kv) * o.width * 8 + c * 8 + (t % 8));
    const value = (t: number, c: number): number => get(o.values, base + (t * o.kvHeads + kv) * o.width + c);
    const logits = Array.from(
      { length: int(o.positions, o.m) + 1 },
      (_, t) => o.scale * sum(o.width, (c) => get(o.q, (o.m * o.heads + o.h) * o.width + c) * key(t, c)),
    );
    const top = Math.max(...logits);
    const total = logits.reduce((all, logit) => all + Math.exp(logit - top), 0);
    return { p: logits.map((logit) => Math.exp(logit - top) / total), logits, key, value };
  };

  /** Probabilities over a kept row (or all ids) of one row of logits at a temperature. */
  const distribution = (
    logits: number,
    at: number,
    ids: readonly number[],
    inverseTemperature: number,
  ): Map<number, number> => {
    const scaled = ids.map((id) => get(logits, at + id) * inverseTemperature);
    const top = Math.max(...scaled);
    const total = scaled.reduce((all, x) => all + Math.exp(x - top), 0);
    return new Map(ids.map((id, index) => [id, Math.exp((scaled[index] ?? 0) - top) / total]));
  };
  const allIds = (vocabulary: number): number[] => Array.from({ length: vocabulary }, (_, id) => id);
  const keptRow = (kept: number, offsets: number, m: number, vocabulary: number): number[] => {
    const first = int(offsets, m);
    const count = int(offsets, m + 1) - first;
    return count === 0 ? allIds(vocabulary) : Array.from({ length: count }, (_, index) => int(kept, first + index));
  };
  const entropy = (p: Map<number, number>): number =>
    -[...p.values()].reduce((all, value) => all + (value > 0 ? value * Math.log(value) : 0), 0);

  return {
    pack_rows: (begin, end, panels = 0, w = 0, rows = 0, columns = 0) =>
      each(begin, end, (p) => {
        for (let c = 0; c < columns; c++)
          for (let r = 0; r < 8; r++)
            set(panels, (p * columns + c) * 8 + r, p * 8 + r < rows ? widen(w, (p * 8 + r) * columns + c) : 0);
      }),
    pack_columns: (begin, end, panels = 0, w = 0, rows = 0, columns = 0, panelRows = 0, firstRow = 0) =>
      each(begin, end, (p) => {
        for (let row = 0; row < rows; row++)
          for (let c = 0; c < 8; c++)
            set(
              panels,
              (p * panelRows + firstRow + row) * 8 + c,
              p * 8 + c < columns ? widen(w, row * columns + p * 8 + c) : 0,
            );
      }),
    expand: (begin, end, to = 0, from = 0) => each(begin, end, (i) => set(to, i, widen(from, i))),
    matmul: (
      begin,
      end,
      c = 0,
      a = 0,
      b = 0,
      rows = 0,
      columns = 0,
      depth = 0,
      lda = 0,
      ldc = 0,
      panelStride = 0,
      blockRows = 0,
      groupPanels = 0,
      addend = 0,
      bias = 0,
    ) => {
      const groups = Math.ceil(Math.ceil(columns / 8) / groupPanels);
      each(begin, end, (item) => {
        const row0 = Math.floor(item / groups) * blockRows;
        const column0 = (item % groups) * groupPanels * 8;
        for (let m = row0; m < Math.min(rows, row0 + blockRows); m++)
          for (let n = column0; n < Math.min(columns, column0 + groupPanels * 8); n++) {
            const product = sum(
              depth,
              (k) => get(a, m * lda + k) * get(b, Math.floor(n / 8) * panelStride + k * 8 + (n % 8)),
            );
            set(
              c,
              m * ldc + n,
              product + (bias === 0 ? 0 : get(bias, n)) + (addend === 0 ? 0 : get(addend, m * ldc + n)),
            );
          }
      });
    },
    matmul_weight: (begin, end, dw = 0, dy = 0, x = 0, rows = 0, outputs = 0, columns = 0, lddy = 0, ldx = 0) =>
      each(begin * 8, end * 8, (k) => {
        for (let n = 0; n < outputs; n++)
          add(
            dw,
            n * columns + k,
            sum(rows, (m) => get(dy, m * lddy + n) * get(x, m * ldx + k)),
          );
      }),
    bias_gradient: (begin, end, db = 0, dy = 0, rows = 0, lddy = 0) =>
      each(begin * 4, end * 4, (n) =>
        add(
          db,
          n,
          sum(rows, (m) => get(dy, m * lddy + n)),
        ),
      ),
    embed: (begin, end, x = 0, table = 0, tokens = 0, width = 0) =>
      each(begin, end, (m) => {
        for (let c = 0; c < width; c++) set(x, m * width + c, widen(table, int(tokens, m) * width + c));
      }),
    embed_gradient: (begin, end, dTable = 0, dx = 0, tokens = 0, rows = 0, width = 0) =>
      each(0, rows, (m) => {
        for (let c = begin * 4; c < end * 4; c++) add(dTable, int(tokens, m) * width + c, get(dx, m * width + c));
      }),
    gather: (begin, end, to = 0, from = 0, index = 0, width = 0) =>
      each(begin, end, (m) => {
        for (let c = 0; c < width; c++) set(to, m * width + c, get(from, int(index, m) * width + c));
      }),
    scatter_add: (begin, end, to = 0, from = 0, index = 0, width = 0) =>
      each(begin, end, (m) => {
        for (let c = 0; c < width; c++) add(to, int(index, m) * width + c, get(from, m * width + c));
      }),
    rmsnorm: (begin, end, y = 0, x = 0, w = 0, width = 0, epsilon = 0) =>
      each(begin, end, (m) => {
        const inverse = inverseRms(x, m * width, width, epsilon);
        for (let c = 0; c < width; c++) set(y, m * width + c, get(x, m * width + c) * inverse * get(w, c));
      }),
    rmsnorm_backward: (
      begin,
      end,
      dx = 0,
      lddx = 0,
      dy = 0,
      lddy = 0,
      x = 0,
      ldx = 0,
      w = 0,
      width = 0,
      heads = 0,
      epsilon = 0,
      accumulate = 0,
      inverses = 0,
    ) =>
      each(begin, end, (i) => {
        const m = Math.floor(i / heads);
        const at = (i % heads) * width;
        const inverse = inverseRms(x, m * ldx + at, width, epsilon);
        const mean = sum(width, (c) => get(dy, m * lddy + at + c) * get(w, c) * get(x, m * ldx + at + c)) / width;
        for (let c = 0; c < width; c++) {
          const value =
            inverse * (get(dy, m * lddy + at + c) * get(w, c) - get(x, m * ldx + at + c) * inverse * inverse * mean);
          set(dx, m * lddx + at + c, value + (accumulate === 0 ? 0 : get(dx, m * lddx + at + c)));
        }
        set(inverses, i, inverse);
      }),
    rmsnorm_weight: (
      begin,
      end,
      dw = 0,
      dy = 0,
      lddy = 0,
      x = 0,
      ldx = 0,
      inverses = 0,
      rows = 0,
      width = 0,
      heads = 0,
    ) =>
      each(begin * 4, end * 4, (c) => {
        add(
          dw,
          c,
          sum(rows, (m) =>
            sum(
              heads,
              (h) => get(dy, m * lddy + h * width + c) * get(x, m * ldx + h * width + c) * get(inverses, m * heads + h),
            ),
          ),
        );
      }),
    swiglu: (begin, end, h = 0, gu = 0, width = 0) =>
      each(begin, end, (m) => {
        for (let c = 0; c < width; c++) {
          const gate = get(gu, m * 2 * width + c);
          set(h, m * width + c, gate * sigmoid(gate) * get(gu, m * 2 * width + width + c));
        }
      }),
    swiglu_backward: (begin, end, dgu = 0, dh = 0, gu = 0, width = 0) =>
      each(begin, end, (m) => {
        for (let c = 0; c < width; c++) {
          const gate = get(gu, m * 2 * width + c);
          const s = sigmoid(gate);
          const d = get(dh, m * width + c);
          set(dgu, m * 2 * width + c, d * get(gu, m * 2 * width + width + c) * (s + gate * s * (1 - s)));
          set(dgu, m * 2 * width + width + c, d * gate * s);
        }
      }),
    rope_query: (
      begin,
      end,
      q = 0,
      x = 0,
      ldx = 0,
      positions = 0,
      cosines = 0,
      sines = 0,
      heads = 0,
      width = 0,
      norm = 0,
      epsilon = 0,
    ) =>
      each(begin, end, (m) => {
        for (let h = 0; h < heads; h++)
          rotate((c, value) => set(q, (m * heads + h) * width + c, value), {
            x,
            at: m * ldx + h * width,
            cosines,
            sines,
            angle: (int(positions, m) * width) / 2,
            width,
            norm,
            epsilon,
          });
      }),
    rope_cache: (
      begin,
      end,
      keys = 0,
      values = 0,
      offsets = 0,
      x = 0,
      ldx = 0,
      positions = 0,
      cosines = 0,
      sines = 0,
      heads = 0,
      width = 0,
      norm = 0,
      epsilon = 0,
    ) =>
      each(begin, end, (m) => {
        const t = int(positions, m);
        const base = int(offsets, m);
        for (let h = 0; h < heads; h++) {
          const to = base + (Math.floor(t / 8) * heads + h) * width * 8 + (t % 8);
          rotate((c, value) => set(keys, to + c * 8, value), {
            x,
            at: m * ldx + h * width,
            cosines,
            sines,
            angle: (t * width) / 2,
            width,
            norm,
            epsilon,
          });
        }
        for (let c = 0; c < heads * width; c++)
          set(values, base + t * heads * width + c, get(x, m * ldx + heads * width + c));
      }),
    rope_backward: (
      begin,
      end,
      dx = 0,
      lddx = 0,
      dy = 0,
      lddy = 0,
      positions = 0,
      cosines = 0,
      sines = 0,
      heads = 0,
      width = 0,
    ) =>
      each(begin, end, (m) => {
        const half = width / 2;
        for (let h = 0; h < heads; h++)
          for (let i = 0; i < half; i++) {
            const cosine = get(cosines, int(positions, m) * half + i);
            const sine = get(sines, int(positions, m) * half + i);
            const a = get(dy, m * lddy + h * width + i);
            const b = get(dy, m * lddy + h * width + i + half);
            set(dx, m * lddx + h * width + i, a * cosine + b * sine);
            set(dx, m * lddx + h * width + i + half, b * cosine - a * sine);
          }
      }),
    attention: (
      begin,
      end,
      out = 0,
      q = 0,
      keys = 0,
      values = 0,
      offsets = 0,
      positions = 0,
      heads = 0,
      kvHeads = 0,
      width = 0,
      scale = 0,
      stats = 0,
    ) =>
      each(begin, end, (m) => {
        for (let h = 0; h < heads; h++) {
          const { p, logits, value } = head({
            m,
            h,
            q,
            keys,
            values,
            offsets,
            positions,
            heads,
            kvHeads,
            width,
            scale,
          });
          for (let c = 0; c < width; c++)
            set(
              out,
              (m * heads + h) * width + c,
              sum(p.length, (t) => (p[t] ?? 0) * value(t, c)),
            );
          if (stats === 0) continue;
          const top = Math.max(...logits);
          set(stats, (m * heads + h) * 2, top);
          set(stats, (m * heads + h) * 2 + 1, 1 / logits.reduce((all, logit) => all + Math.exp(logit - top), 0));
        }
      }),
    attention_backward: (
      begin,
      end,
      dq = 0,
      dkv = 0,
      lddkv = 0,
      dOut = 0,
      out = 0,
      q = 0,
      keys = 0,
      values = 0,
      offsets = 0,
      positions = 0,
      table = 0,
      heads = 0,
      kvHeads = 0,
      width = 0,
      scale = 0,
    ) =>
      each(begin, end, (item) => {
        const sequence = Math.floor(item / kvHeads);
        const kv = item % kvHeads;
        const [firstRow, rowCount, firstKv, length] = [0, 1, 2, 3].map((column) =>
          int(table, sequence * 4 + column),
        ) as [number, number, number, number];
        for (let t = 0; t < length; t++)
          for (let c = 0; c < width; c++) {
            set(dkv, (firstKv + t) * lddkv + kv * width + c, 0);
            set(dkv, (firstKv + t) * lddkv + (kvHeads + kv) * width + c, 0);
          }
        const group = heads / kvHeads;
        for (let h = kv * group; h < (kv + 1) * group; h++)
          for (let m = firstRow; m < firstRow + rowCount; m++) {
            const at = (m * heads + h) * width;
            const { p, key, value } = head({ m, h, q, keys, values, offsets, positions, heads, kvHeads, width, scale });
            const total = sum(width, (c) => get(dOut, at + c) * get(out, at + c));
            const ds = p.map(
              (probability, t) => probability * (sum(width, (c) => get(dOut, at + c) * value(t, c)) - total) * scale,
            );
            for (let c = 0; c < width; c++) {
              set(
                dq,
                at + c,
                sum(p.length, (t) => (ds[t] ?? 0) * key(t, c)),
              );
              for (let t = 0; t < p.length; t++) {
                add(dkv, (firstKv + t) * lddkv + kv * width + c, (ds[t] ?? 0) * get(q, at + c));
                add(dkv, (firstKv + t) * lddkv + (kvHeads + kv) * width + c, (p[t] ?? 0) * get(dOut, at + c));
              }
            }
          }
      }),
    head_logprob: (
      begin,
      end,
      logprobs = 0,
      entropies = 0,
      logits = 0,
      vocabulary = 0,
      targets = 0,
      inverseTemperatures = 0,
      kept = 0,
      offsets = 0,
    ) =>
      each(begin, end, (m) => {
        const inverse = get(inverseTemperatures, m);
        const row = distribution(logits, m * vocabulary, keptRow(kept, offsets, m, vocabulary), inverse);
        set(logprobs, m, Math.log(row.get(int(targets, m)) ?? 0));
        set(entropies, m, entropy(distribution(logits, m * vocabulary, allIds(vocabulary), inverse)));
      }),
    head_gradient: (
      begin,
      end,
      dLogits = 0,
      logits = 0,
      vocabulary = 0,
      targets = 0,
      inverseTemperatures = 0,
      kept = 0,
      offsets = 0,
      dLogprobs = 0,
      dEntropies = 0,
    ) =>
      each(begin, end, (m) => {
        const inverse = get(inverseTemperatures, m);
        const row = distribution(logits, m * vocabulary, keptRow(kept, offsets, m, vocabulary), inverse);
        const full = distribution(logits, m * vocabulary, allIds(vocabulary), inverse);
        const h = entropy(full);
        for (let id = 0; id < vocabulary; id++) {
          const p = full.get(id) ?? 0;
          const policy = row.has(id) ? (id === int(targets, m) ? 1 : 0) - (row.get(id) ?? 0) : 0;
          const spread = p > 0 ? -p * (Math.log(p) + h) : 0;
          set(dLogits, m * vocabulary + id, inverse * (get(dLogprobs, m) * policy + get(dEntropies, m) * spread));
        }
      }),
    sample: (begin, end, ids = 0, logprobs = 0, counts = 0, kept = 0, logits = 0, vocabulary = 0, settings = 0) =>
      each(begin, end, (m) => {
        const [inverse, topK, topP, minP, greedy, seed, index] = [0, 1, 2, 3, 4, 5, 6].map(
          (column) => f64[settings / 8 + m * 8 + column],
        ) as [number, number, number, number, number, number, number];
        const x = Array.from({ length: vocabulary }, (_, id) => get(logits, m * vocabulary + id));
        const row =
          greedy === 0 ? keptSet(x, { inverseTemperature: inverse, topK, topP, minP }) : [x.indexOf(Math.max(...x))];
        const p = distribution(logits, m * vocabulary, row, inverse);
        let left = uniform(seed, index);
        const drawn = row.find((id) => (left -= p.get(id) ?? 0) < 0) ?? row.at(-1) ?? 0;
        i32[ids / 4 + m] = drawn;
        i32[counts / 4 + m] = row.length;
        for (const [place, id] of row.entries()) i32[kept / 4 + m * vocabulary + place] = id;
        set(logprobs, m, greedy === 0 ? Math.log(p.get(drawn) ?? 0) : 0);
      }),
    sum_squares: (begin, end, partials = 0, x = 0, n = 0) =>
      each(begin, end, (i) => {
        f64[partials / 8 + i] = sum(Math.min(n, (i + 1) * 4096) - i * 4096, (j) => get(x, i * 4096 + j) ** 2);
      }),
    take: (begin, end, to = 0, from = 0) =>
      each(begin * 4, end * 4, (i) => {
        add(to, i, get(from, i));
        set(from, i, 0);
      }),
    round_bf16: (begin, end, to = 0, from = 0) => each(begin, end, (i) => narrow(to, i, get(from, i))),
    adamw: (
      begin,
      end,
      w = 0,
      m = 0,
      v = 0,
      g = 0,
      served = 0,
      rate = 0,
      beta1 = 0,
      beta2 = 0,
      epsilon = 0,
      decay = 0,
      gradientScale = 0,
      inverseBias1 = 0,
      inverseBias2 = 0,
    ) =>
      each(begin, end, (i) => {
        const d = get(g, i) * gradientScale;
        set(m, i, beta1 * get(m, i) + (1 - beta1) * d);
        set(v, i, beta2 * get(v, i) + (1 - beta2) * d * d);
        const update = (get(m, i) * inverseBias1) / (Math.sqrt(get(v, i) * inverseBias2) + epsilon) + decay * get(w, i);
        set(w, i, get(w, i) - rate * update);
        set(g, i, 0);
        narrow(served, i, get(w, i));
      }),
    peak: (begin, _end, out = 0) => {
      if (begin === 0) for (let lane = 0; lane < 4; lane++) set(out, lane, 10);
    },
  };
}

/**
 * Ids kept, ascending: temperature first, then top-k, then top-p over what top-k left (a token stays while the mass
 * before it, by falling probability and then rising id, is below p), then min-p against the largest. 0 or 1 turn a rule off.
 */
export function keptSet(
  logits: readonly number[],
  rules: { inverseTemperature: number; topK: number; topP: number; minP: number },
): number[] {
  const { inverseTemperature, topK, topP, minP } = rules;
  const top = Math.max(...logits);
  const weights = logits.map((x) => Math.fround(Math.exp((x - top) * inverseTemperature)));
  let order = logits.map((_, id) => id).sort((a, b) => (weights[b] ?? 0) - (weights[a] ?? 0) || a - b);
  if (topK > 0) order = order.slice(0, topK);
  if (topP < 1) {
    const total = order.reduce((all, id) => all + (weights[id] ?? 0), 0);
    let before = 0;
    order = order.filter((id) => {
      const stays = before < topP * total;
      before += weights[id] ?? 0;
      return stays;
    });
  }
  return order.filter((id) => (weights[id] ?? 0) >= minP).sort((a, b) => a - b);
}

/** The draw of (seed, index): splitmix64 twice, 53 bits. */
function uniform(seed: number, index: number): number {
  const mask = (1n << 64n) - 1n;
  const mix = (value: bigint): bigint => {
    let z = value & mask;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & mask;
    return z ^ (z >> 31n);
  };
  const golden = 0x9e3779b97f4a7c15n;
  const state = mix(((BigInt(seed) << 32n) | BigInt(index)) + golden);
  return Number(mix(state + golden) >> 11n) / 2 ** 53;
}
