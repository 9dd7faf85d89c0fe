/*
 * Every hot loop of the engine, compiled to wasm twice (see build.ts): with separate multiply and add, and with the
 * relaxed fused multiply-add (-DFUSED). One file, so that one compiler call makes one module. A kernel works on items
 * [begin, end) of its output and nothing else. Invariant: each output element is one sum in one fixed order, a function
 * of its own row alone; so neither threads, nor the batch, nor the chunking of a prompt can change a bit.
 */
#include <wasm_simd128.h>

typedef v128_t f32x4;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL(name) __attribute__((export_name(#name))) void name
#define INLINE static inline __attribute__((always_inline))
#define ROLLED _Pragma("clang loop unroll(disable)")
#define UNROLLED _Pragma("clang loop unroll(full)")

#define load(p) wasm_v128_load(p)
#define store(p, v) wasm_v128_store(p, v)
#define splat(x) wasm_f32x4_splat(x)
#define broadcast(p) wasm_v128_load32_splat(p)
#define add(a, b) wasm_f32x4_add(a, b)
#define sub(a, b) wasm_f32x4_sub(a, b)
#define mul(a, b) wasm_f32x4_mul(a, b)
#ifdef FUSED
#define multiply_add(a, b, c) __builtin_wasm_relaxed_madd_f32x4(a, b, c)
#else
#define multiply_add(a, b, c) add(mul(a, b), c)
#endif

INLINE float lane_sum(f32x4 v) {
  return (wasm_f32x4_extract_lane(v, 0) + wasm_f32x4_extract_lane(v, 1)) +
         (wasm_f32x4_extract_lane(v, 2) + wasm_f32x4_extract_lane(v, 3));
}
INLINE float lane_max(f32x4 v) {
  float a = wasm_f32x4_extract_lane(v, 0), b = wasm_f32x4_extract_lane(v, 1);
  float c = wasm_f32x4_extract_lane(v, 2), d = wasm_f32x4_extract_lane(v, 3);
  a = a > b ? a : b;
  c = c > d ? c : d;
  return a > c ? a : c;
}
/* Lanes whose index is below n, for n in 1..4 and more. */
INLINE f32x4 lanes_below(int n) { return wasm_i32x4_lt(wasm_i32x4_const(0, 1, 2, 3), wasm_i32x4_splat(n)); }

/* e^x by 2^n e^r, |r| <= ln2/2, a polynomial of degree 7. e^0 is exactly 1; below -87 the result is exactly 0. */
INLINE f32x4 vector_exp(f32x4 x) {
  f32x4 alive = wasm_f32x4_gt(x, splat(-87.0f));
  f32x4 c = wasm_f32x4_pmin(splat(88.0f), wasm_f32x4_pmax(splat(-87.0f), x));
  f32x4 n = wasm_f32x4_nearest(mul(c, splat(1.44269504088896341f)));
  f32x4 r = multiply_add(n, splat(-0.693359375f), c);
  r = multiply_add(n, splat(2.12194440e-4f), r);
  f32x4 y = splat(1.9841270e-4f);
  y = multiply_add(y, r, splat(1.3888889e-3f));
  y = multiply_add(y, r, splat(8.3333333e-3f));
  y = multiply_add(y, r, splat(4.1666667e-2f));
  y = multiply_add(y, r, splat(1.6666667e-1f));
  y = multiply_add(y, r, splat(0.5f));
  y = multiply_add(y, mul(r, r), add(r, splat(1.0f)));
  f32x4 scale = wasm_i32x4_shl(wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(127)), 23);
  return wasm_v128_and(mul(y, scale), alive);
}

/* ln x for a finite x > 0, by the series of atanh; ln 1 is exactly 0. */
static double natural_log(double x) {
  union { double value; u64 bits; } w = {x};
  int exponent = (int)(w.bits >> 52) - 1023;
  w.bits = (w.bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
  if (w.value > 1.4142135623730951) {
    w.value *= 0.5;
    exponent++;
  }
  double s = (w.value - 1.0) / (w.value + 1.0), q = s * s, sum = 0;
  for (int k = 19; k >= 1; k -= 2) sum = sum * q + 1.0 / k;
  return exponent * 0.6931471805599453 + 2.0 * s * sum;
}

/* ---------------------------------------------------------------- the one multiply-add loop ---- */

/*
 * acc[r][v] += sum over k of a_r[k * a_step] * b[k * b_step + (v / 2) * b_gap + (v % 2) * 4 ..+4], in the order of k.
 * R rows and V vectors are constants at each use; V8 keeps 4 x 2 accumulators in registers and spills more.
 */
INLINE void tile_rows(const int R, const int V, f32x4 *acc, const float *const *rows, long a_step, const float *b, long b_step,
                      long b_gap, long count) {
  const float *a[4];
  UNROLLED for (int r = 0; r < R; r++) a[r] = rows[r];
  ROLLED for (long k = 0; k < count; k++) {
    f32x4 bv[8];
    UNROLLED for (int v = 0; v < V; v++) bv[v] = load(b + (v / 2) * b_gap + (v % 2) * 4);
    UNROLLED for (int r = 0; r < R; r++) {
      f32x4 x = broadcast(a[r]);
      UNROLLED for (int v = 0; v < V; v++) acc[r * V + v] = multiply_add(x, bv[v], acc[r * V + v]);
      a[r] += a_step;
    }
    b += b_step;
  }
}

/* The same sum where the four rows of `a` lie side by side: a[k * a_step + r]. */
INLINE void tile_columns(f32x4 *acc, const float *a, long a_step, const float *b, long b_step, long count) {
  ROLLED for (long k = 0; k < count; k++) {
    f32x4 b0 = load(b), b1 = load(b + 4);
    UNROLLED for (int r = 0; r < 4; r++) {
      f32x4 x = broadcast(a + r);
      acc[r * 2] = multiply_add(x, b0, acc[r * 2]);
      acc[r * 2 + 1] = multiply_add(x, b1, acc[r * 2 + 1]);
    }
    a += a_step;
    b += b_step;
  }
}

/* ---------------------------------------------------------------- weights ---- */

INLINE float widen(u16 bits) {
  union { u32 bits; float value; } w = {(u32)bits << 16};
  return w.value;
}

/* Items are panels of 8 rows of w[rows][columns] (bf16): panel[column][8], so that y = x w^T reads it in order. */
KERNEL(pack_rows)(int begin, int end, float *panels, const u16 *w, int rows, int columns) {
  for (int p = begin; p < end; p++)
    for (int r = 0; r < 8; r++) {
      float *to = panels + (long)p * columns * 8 + r;
      int row = p * 8 + r;
      if (row < rows)
        for (int c = 0; c < columns; c++) to[c * 8] = widen(w[(long)row * columns + c]);
      else
        for (int c = 0; c < columns; c++) to[c * 8] = 0;
    }
}

/* Items are panels of 8 columns: panel[row][8] for x = y w; `panel_rows` rows a panel, these from `first_row` on. */
KERNEL(pack_columns)(int begin, int end, float *panels, const u16 *w, int rows, int columns, int panel_rows, int first_row) {
  for (int p = begin; p < end; p++)
    for (int row = 0; row < rows; row++) {
      float *to = panels + ((long)p * panel_rows + first_row + row) * 8;
      for (int c = 0; c < 8; c++) to[c] = p * 8 + c < columns ? widen(w[(long)row * columns + p * 8 + c]) : 0;
    }
}

KERNEL(expand)(int begin, int end, float *to, const u16 *from) {
  for (int i = begin; i < end; i++) to[i] = widen(from[i]);
}

/* ---------------------------------------------------------------- matrix products ---- */

/*
 * c[m][n] = sum over k of a[m][k] * b(k, n), with b in panels of 8 columns (panel_stride floats each); then + bias[n],
 * then + addend[m][n] (which may be c itself). An item is a block of rows times a group of panels.
 */
KERNEL(matmul)(int begin, int end, float *c, const float *a, const float *b, int rows, int columns, int depth, int lda, int ldc,
               int panel_stride, int block_rows, int group_panels, const float *addend, const float *bias) {
  int panels = (columns + 7) / 8, groups = (panels + group_panels - 1) / group_panels;
  for (int item = begin; item < end; item++) {
    int row0 = item / groups * block_rows, row1 = row0 + block_rows < rows ? row0 + block_rows : rows;
    int panel0 = item % groups * group_panels, panel1 = panel0 + group_panels < panels ? panel0 + group_panels : panels;
    for (int p = panel0; p < panel1; p++) {
      const float *bp = b + (long)p * panel_stride;
      int width = columns - p * 8 < 8 ? columns - p * 8 : 8;
      for (int m = row0; m < row1; m += 4) {
        int height = row1 - m < 4 ? row1 - m : 4;
        const float *first = a + (long)m * lda;
        const float *rows4[4] = {first, height > 1 ? first + lda : first, height > 2 ? first + 2 * lda : first,
                                 height > 3 ? first + 3 * lda : first};
        f32x4 acc[8];
        UNROLLED for (int i = 0; i < 8; i++) acc[i] = splat(0);
        tile_rows(4, 2, acc, rows4, 1, bp, 8, 8, depth);
        float *to = c + (long)m * ldc + p * 8;
        if (width == 8) {
          if (bias) {
            f32x4 b0 = load(bias + p * 8), b1 = load(bias + p * 8 + 4);
            UNROLLED for (int r = 0; r < 4; r++) acc[r * 2] = add(acc[r * 2], b0), acc[r * 2 + 1] = add(acc[r * 2 + 1], b1);
          }
          UNROLLED for (int r = 0; r < 4; r++) if (r < height) {
            float *at = to + r * ldc;
            if (addend) {
              const float *old = addend + (at - c);
              acc[r * 2] = add(load(old), acc[r * 2]), acc[r * 2 + 1] = add(load(old + 4), acc[r * 2 + 1]);
            }
            store(at, acc[r * 2]);
            store(at + 4, acc[r * 2 + 1]);
          }
        } else {
          float tail[32];
          UNROLLED for (int i = 0; i < 8; i++) store(tail + i * 4, acc[i]);
          for (int r = 0; r < height; r++)
            for (int n = 0; n < width; n++) {
              float value = tail[r * 8 + n];
              if (bias) value = value + bias[p * 8 + n];
              to[r * ldc + n] = addend ? addend[to - c + r * ldc + n] + value : value;
            }
        }
      }
    }
  }
}

/*
 * dw[n][k] += sum over rows m of dy[m][n] * x[m][k], one row after the other onto the old value: calling it for rows
 * 0..9 and then 10..19 gives the bits of one call. Items are panels of 8 columns of dw; columns divide by 8.
 */
KERNEL(matmul_weight)(int begin, int end, float *dw, const float *dy, const float *x, int rows, int outputs, int columns, int lddy,
                      int ldx) {
  enum { BLOCK = 256 };
  float panel[BLOCK * 8] __attribute__((aligned(16)));
  for (int m0 = 0; m0 < rows; m0 += BLOCK) {
    int count = rows - m0 < BLOCK ? rows - m0 : BLOCK;
    for (int p = begin; p < end; p++) {
      for (int m = 0; m < count; m++) {
        const float *from = x + (long)(m0 + m) * ldx + p * 8;
        store(panel + m * 8, load(from));
        store(panel + m * 8 + 4, load(from + 4));
      }
      for (int n = 0; n < outputs; n += 4) {
        int height = outputs - n < 4 ? outputs - n : 4;
        float *to = dw + (long)n * columns + p * 8;
        f32x4 acc[8];
        UNROLLED for (int r = 0; r < 4; r++) {
          acc[r * 2] = r < height ? load(to + r * columns) : splat(0);
          acc[r * 2 + 1] = r < height ? load(to + r * columns + 4) : splat(0);
        }
        tile_columns(acc, dy + (long)m0 * lddy + n, lddy, panel, 8, count);
        UNROLLED for (int r = 0; r < 4; r++) if (r < height) {
          store(to + r * columns, acc[r * 2]);
          store(to + r * columns + 4, acc[r * 2 + 1]);
        }
      }
    }
  }
}

/* db[n] += dy[m][n], rows in order. Items are vectors of 4 columns. */
KERNEL(bias_gradient)(int begin, int end, float *db, const float *dy, int rows, int lddy) {
  for (int i = begin; i < end; i++) {
    f32x4 sum = load(db + i * 4);
    for (int m = 0; m < rows; m++) sum = add(sum, load(dy + (long)m * lddy + i * 4));
    store(db + i * 4, sum);
  }
}

/* ---------------------------------------------------------------- rows ---- */

KERNEL(embed)(int begin, int end, float *x, const u16 *table, const int *tokens, int width) {
  for (int m = begin; m < end; m++)
    for (int c = 0; c < width; c++) x[(long)m * width + c] = widen(table[(long)tokens[m] * width + c]);
}

/* d_table[token of row m] += dx[m], rows in order. Items are vectors of 4 columns. */
KERNEL(embed_gradient)(int begin, int end, float *d_table, const float *dx, const int *tokens, int rows, int width) {
  for (int m = 0; m < rows; m++) {
    float *to = d_table + (long)tokens[m] * width;
    const float *from = dx + (long)m * width;
    for (int i = begin; i < end; i++) store(to + i * 4, add(load(to + i * 4), load(from + i * 4)));
  }
}

KERNEL(gather)(int begin, int end, float *to, const float *from, const int *index, int width) {
  for (int m = begin; m < end; m++)
    for (int c = 0; c < width; c += 4) store(to + (long)m * width + c, load(from + (long)index[m] * width + c));
}

/* to[index[m]] += from[m]; the indices are distinct. */
KERNEL(scatter_add)(int begin, int end, float *to, const float *from, const int *index, int width) {
  for (int m = begin; m < end; m++) {
    float *at = to + (long)index[m] * width;
    for (int c = 0; c < width; c += 4) store(at + c, add(load(at + c), load(from + (long)m * width + c)));
  }
}

INLINE float inverse_rms(const float *x, int width, float epsilon) {
  f32x4 sum = splat(0);
  for (int c = 0; c < width; c += 4) {
    f32x4 v = load(x + c);
    sum = multiply_add(v, v, sum);
  }
  return 1.0f / __builtin_sqrtf(lane_sum(sum) / (float)width + epsilon);
}

KERNEL(rmsnorm)(int begin, int end, float *y, const float *x, const float *w, int width, float epsilon) {
  for (int m = begin; m < end; m++) {
    const float *from = x + (long)m * width;
    float *to = y + (long)m * width;
    f32x4 inverse = splat(inverse_rms(from, width, epsilon));
    for (int c = 0; c < width; c += 4) store(to + c, mul(mul(load(from + c), inverse), load(w + c)));
  }
}

/*
 * Items are (row, head) pairs, `heads` vectors of `width` in each row. Writes 1/rms of each to `inverses`.
 * dx = inverse * (dy w - x inverse^2 mean(dy w x)), stored or added.
 */
KERNEL(rmsnorm_backward)(int begin, int end, float *dx, int lddx, const float *dy, int lddy, const float *x, int ldx, const float *w,
                         int width, int heads, float epsilon, int accumulate, float *inverses) {
  for (int i = begin; i < end; i++) {
    int m = i / heads, h = i % heads;
    const float *xi = x + (long)m * ldx + h * width, *dyi = dy + (long)m * lddy + h * width;
    float *to = dx + (long)m * lddx + h * width;
    float inverse = inverse_rms(xi, width, epsilon);
    f32x4 dot = splat(0);
    for (int c = 0; c < width; c += 4) dot = multiply_add(mul(load(dyi + c), load(w + c)), load(xi + c), dot);
    f32x4 factor = splat(-inverse * inverse * (lane_sum(dot) / (float)width)), scale = splat(inverse);
    for (int c = 0; c < width; c += 4) {
      f32x4 value = mul(scale, multiply_add(load(xi + c), factor, mul(load(dyi + c), load(w + c))));
      store(to + c, accumulate ? add(load(to + c), value) : value);
    }
    inverses[i] = inverse;
  }
}

/* dw[c] += dy x / rms over rows and heads in order. Items are vectors of 4 columns. */
KERNEL(rmsnorm_weight)(int begin, int end, float *dw, const float *dy, int lddy, const float *x, int ldx, const float *inverses,
                       int rows, int width, int heads) {
  for (int v = begin; v < end; v++) {
    f32x4 sum = load(dw + v * 4);
    for (int m = 0; m < rows; m++)
      for (int h = 0; h < heads; h++) {
        long at = h * width + v * 4;
        f32x4 normed = mul(load(x + (long)m * ldx + at), splat(inverses[m * heads + h]));
        sum = multiply_add(load(dy + (long)m * lddy + at), normed, sum);
      }
    store(dw + v * 4, sum);
  }
}

/* h = silu(gate) * up, with gate and up side by side in each row of `gu`. */
KERNEL(swiglu)(int begin, int end, float *h, const float *gu, int width) {
  for (int m = begin; m < end; m++) {
    const float *g = gu + (long)m * 2 * width, *u = g + width;
    float *to = h + (long)m * width;
    for (int c = 0; c < width; c += 4) {
      f32x4 x = load(g + c);
      f32x4 gate = wasm_f32x4_div(x, add(splat(1), vector_exp(wasm_f32x4_neg(x))));
      store(to + c, mul(gate, load(u + c)));
    }
  }
}

KERNEL(swiglu_backward)(int begin, int end, float *dgu, const float *dh, const float *gu, int width) {
  for (int m = begin; m < end; m++) {
    const float *g = gu + (long)m * 2 * width, *u = g + width, *from = dh + (long)m * width;
    float *dg = dgu + (long)m * 2 * width, *du = dg + width;
    for (int c = 0; c < width; c += 4) {
      f32x4 x = load(g + c), d = load(from + c);
      f32x4 sigmoid = wasm_f32x4_div(splat(1), add(splat(1), vector_exp(wasm_f32x4_neg(x))));
      f32x4 gate = mul(x, sigmoid);
      store(du + c, mul(d, gate));
      /* silu' = sigmoid + gate (1 - sigmoid) */
      store(dg + c, mul(mul(d, load(u + c)), multiply_add(gate, sub(splat(1), sigmoid), sigmoid)));
    }
  }
}

/* ---------------------------------------------------------------- positions and the cache ---- */

/*
 * The cache of one sequence and layer: keys as [position / 8][kv head][channel][8 positions], values as
 * [position][kv head][channel]. Both take kv_heads * head_width floats a position, so one float offset serves both.
 */

/* One head vector: optional RMS norm, then the half-split rotation by the angles of its position. */
INLINE void rotate(float *to, long to_step, const float *x, const float *cosines, const float *sines, int width, const float *norm,
                   float epsilon) {
  int half = width / 2;
  float inverse = norm ? inverse_rms(x, width, epsilon) : 1.0f;
  for (int i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    if (norm) a = a * inverse * norm[i], b = b * inverse * norm[i + half];
    to[i * to_step] = a * cosines[i] - b * sines[i];
    to[(i + half) * to_step] = b * cosines[i] + a * sines[i];
  }
}

KERNEL(rope_query)(int begin, int end, float *q, const float *x, int ldx, const int *positions, const float *cosines,
                   const float *sines, int heads, int width, const float *norm, float epsilon) {
  for (int m = begin; m < end; m++)
    for (int h = 0; h < heads; h++) {
      long angle = (long)positions[m] * (width / 2);
      rotate(q + ((long)m * heads + h) * width, 1, x + (long)m * ldx + h * width, cosines + angle, sines + angle, width, norm, epsilon);
    }
}

/* Writes each row's rotated keys and plain values into the cache at its sequence's offset and its position. */
KERNEL(rope_cache)(int begin, int end, float *keys, float *values, const int *offsets, const float *x, int ldx, const int *positions,
                   const float *cosines, const float *sines, int heads, int width, const float *norm, float epsilon) {
  for (int m = begin; m < end; m++) {
    int t = positions[m];
    long angle = (long)t * (width / 2);
    for (int h = 0; h < heads; h++) {
      float *key = keys + offsets[m] + ((long)(t / 8) * heads + h) * width * 8 + t % 8;
      rotate(key, 8, x + (long)m * ldx + h * width, cosines + angle, sines + angle, width, norm, epsilon);
    }
    const float *from = x + (long)m * ldx + heads * width;
    float *to = values + offsets[m] + (long)t * heads * width;
    for (int c = 0; c < heads * width; c += 4) store(to + c, load(from + c));
  }
}

/* The gradient before the rotation: rotation by the opposite angle. Reading and writing the same buffer is fine. */
KERNEL(rope_backward)(int begin, int end, float *dx, int lddx, const float *dy, int lddy, const int *positions, const float *cosines,
                      const float *sines, int heads, int width) {
  int half = width / 2;
  for (int m = begin; m < end; m++) {
    const float *c = cosines + (long)positions[m] * half, *s = sines + (long)positions[m] * half;
    for (int h = 0; h < heads; h++) {
      const float *from = dy + (long)m * lddy + h * width;
      float *to = dx + (long)m * lddx + h * width;
      for (int i = 0; i < half; i++) {
        float a = from[i], b = from[i + half];
        to[i] = a * c[i] + b * s[i];
        to[i + half] = b * c[i] - a * s[i];
      }
    }
  }
}

/* ---------------------------------------------------------------- attention ---- */

/* scores[r][t] = scale * (q_r . key_t) for the panels that hold `keys` positions; each a sum over channels in order. */
INLINE void score_panels(const int R, const int P, float *scores, long lds, const float *const *q, const float *key, long panel_gap,
                         int width, int panel, float scale) {
  f32x4 acc[8];
  UNROLLED for (int i = 0; i < R * P * 2; i++) acc[i] = splat(0);
  tile_rows(R, P * 2, acc, q, 1, key + panel * panel_gap, 8, panel_gap, width);
  UNROLLED for (int r = 0; r < R; r++)
    UNROLLED for (int v = 0; v < P * 2; v++) store(scores + r * lds + panel * 8 + v * 4, mul(acc[r * P * 2 + v], splat(scale)));
}
INLINE void score_rows(const int R, float *scores, long lds, const float *const *q, const float *key, long panel_gap, int width,
                       int panels, float scale) {
  const int P = 4 / R;
  int panel = 0;
  for (; panel + P <= panels; panel += P) score_panels(R, P, scores, lds, q, key, panel_gap, width, panel, scale);
  if (P > 1)
    for (; panel < panels; panel++) score_panels(R, 1, scores, lds, q, key, panel_gap, width, panel, scale);
}

/* In place: e^(s - max) over the first n scores, 0 in the other lanes of the last vector. Returns 1 / sum. */
INLINE float softmax_row(float *s, int n, float *maximum) {
  f32x4 lowest = splat(-3.0e38f), top = lowest, sum = splat(0);
  for (int i = 0; i < n; i += 4) top = wasm_f32x4_pmax(top, wasm_v128_bitselect(load(s + i), lowest, lanes_below(n - i)));
  float peak = lane_max(top);
  for (int i = 0; i < n; i += 4) {
    f32x4 masked = wasm_v128_bitselect(sub(load(s + i), splat(peak)), lowest, lanes_below(n - i));
    f32x4 e = vector_exp(masked);
    sum = add(sum, e);
    store(s + i, e);
  }
  *maximum = peak;
  return 1.0f / lane_sum(sum);
}

/* out_r[channels] = inverse_r * sum over positions in order of p_r[t] value_t, V vectors of channels at a time. */
INLINE void mix_values(const int R, const int V, float *const *out, const float *p, long ldp, const int *limits, int common,
                       const float *value, long ld_value, const float *inverses) {
  f32x4 acc[8];
  const float *rows[4];
  UNROLLED for (int i = 0; i < R * V; i++) acc[i] = splat(0);
  UNROLLED for (int r = 0; r < R; r++) rows[r] = p + r * ldp;
  tile_rows(R, V, acc, rows, 1, value, ld_value, 8, common);
  UNROLLED for (int r = 0; r < R; r++) {
    for (int t = common; t < limits[r]; t++)
      UNROLLED for (int v = 0; v < V; v++)
        acc[r * V + v] = multiply_add(broadcast(p + r * ldp + t), load(value + t * ld_value + v * 4), acc[r * V + v]);
    UNROLLED for (int v = 0; v < V; v++) store(out[r] + v * 4, mul(acc[r * V + v], splat(inverses[r])));
  }
}

/* R queries that share a key head: `limits` positions visible to each. */
INLINE void attend(const int R, float *const *out, const float *const *q, const int *limits, const float *key, const float *value,
                   int kv_heads, int width, float scale, float *scores, long lds, float *const *stats) {
  int longest = 0, common = 1 << 30;
  float inverses[4];
  UNROLLED for (int r = 0; r < R; r++) {
    longest = limits[r] > longest ? limits[r] : longest;
    common = limits[r] < common ? limits[r] : common;
  }
  score_rows(R, scores, lds, q, key, (long)kv_heads * width * 8, width, (longest + 7) / 8, scale);
  UNROLLED for (int r = 0; r < R; r++) {
    float maximum;
    inverses[r] = softmax_row(scores + r * lds, limits[r], &maximum);
    if (stats[r]) stats[r][0] = maximum, stats[r][1] = inverses[r];
  }
  const int V = 8 / R;
  int c = 0;
  for (; c + V * 4 <= width; c += V * 4) {
    float *to[4];
    UNROLLED for (int r = 0; r < R; r++) to[r] = out[r] + c;
    mix_values(R, V, to, scores, lds, limits, common, value + c, (long)kv_heads * width, inverses);
  }
  for (; c < width; c += 8) {
    float *to[4];
    UNROLLED for (int r = 0; r < R; r++) to[r] = out[r] + c;
    mix_values(R, 2, to, scores, lds, limits, common, value + c, (long)kv_heads * width, inverses);
  }
}

/*
 * Items are query rows. Row m sees positions 0..positions[m] of the cache at offsets[m]. Up to four (row, head) pairs
 * on one key head go together, which shares loads and changes no sum. `stats`, when given, gets (max, 1/sum) for each.
 */
KERNEL(attention)(int begin, int end, float *out, const float *q, const float *keys, const float *values, const int *offsets,
                  const int *positions, int heads, int kv_heads, int width, float scale, float *stats) {
  int group = heads / kv_heads, longest = 0;
  for (int m = begin; m < end; m++) longest = positions[m] > longest ? positions[m] : longest;
  long lds = (longest + 8) / 8 * 8 + 8;
  float scores[lds * 4] __attribute__((aligned(16)));
  float spare[512] __attribute__((aligned(16)));
  int together = group >= 4 ? 1 : 4 / group;
  for (int m = begin; m < end;) {
    int run = 1;
    while (run < together && m + run < end && offsets[m + run] == offsets[m]) run++;
    for (int kv = 0; kv < kv_heads; kv++) {
      const float *key = keys + offsets[m] + (long)kv * width * 8, *value = values + offsets[m] + (long)kv * width;
      int queries = run * group;
      for (int first = 0; first < queries; first += 4) {
        const float *qs[4];
        float *to[4], *st[4];
        int limits[4], count = queries - first < 4 ? queries - first : 4;
        for (int i = 0; i < 4; i++) {
          int at = first + (i < count ? i : 0), row = m + at / group, head = kv * group + at % group;
          long place = (long)row * heads + head;
          qs[i] = q + place * width;
          to[i] = i < count ? out + place * width : spare;
          st[i] = i < count && stats ? stats + place * 2 : 0;
          limits[i] = positions[row] + 1;
        }
        if (count == 1) attend(1, to, qs, limits, key, value, kv_heads, width, scale, scores, lds, st);
        else if (count == 2) attend(2, to, qs, limits, key, value, kv_heads, width, scale, scores, lds, st);
        else attend(4, to, qs, limits, key, value, kv_heads, width, scale, scores, lds, st);
      }
    }
    m += run;
  }
}

/* to[j][channels] += sum over the block's rows of p[row][j] * x[row][channels], rows in order. */
INLINE void add_outer(float *to, const float *p, long ldp, const float *x, long ldx, int rows, int keys, int width) {
  for (int j = 0; j < keys; j += 4)
    for (int c = 0; c < width; c += 8) {
      f32x4 acc[8];
      UNROLLED for (int r = 0; r < 4; r++) {
        acc[r * 2] = load(to + (long)(j + r) * width + c);
        acc[r * 2 + 1] = load(to + (long)(j + r) * width + c + 4);
      }
      tile_columns(acc, p + j, ldp, x + c, ldx, rows);
      UNROLLED for (int r = 0; r < 4; r++) {
        store(to + (long)(j + r) * width + c, acc[r * 2]);
        store(to + (long)(j + r) * width + c + 4, acc[r * 2 + 1]);
      }
    }
}

/*
 * Items are (sequence, key head) pairs. `table` has four numbers a sequence: first query row, query rows, first row of
 * dk/dv, positions. Recomputes the probabilities in blocks of 16 query rows; dq, dk and dv are stored, not added.
 * dk is before the inverse rotation. Sums run over heads of the group, then blocks, then rows: a function of the sequence.
 */
KERNEL(attention_backward)(int begin, int end, float *dq, float *dkv, int lddkv, const float *d_out, const float *out, const float *q,
                           const float *keys, const float *values, const int *offsets, const int *positions, const int *table,
                           int heads, int kv_heads, int width, float scale, const float *stats) {
  enum { BLOCK = 16 };
  int group = heads / kv_heads;
  long ldq = (long)heads * width;
  for (int item = begin; item < end; item++) {
    int sequence = item / kv_heads, kv = item % kv_heads;
    const int *entry = table + sequence * 4;
    int first_row = entry[0], row_count = entry[1], first_kv = entry[2], length = entry[3];
    long padded = (length + 7) / 8 * 8, gap = (long)kv_heads * width * 8, ld_value = (long)kv_heads * width;
    float key_rows[padded * width] __attribute__((aligned(16))), value_panels[padded * width] __attribute__((aligned(16)));
    float dk[padded * width] __attribute__((aligned(16))), dv[padded * width] __attribute__((aligned(16)));
    float p[BLOCK * padded] __attribute__((aligned(16))), ds[BLOCK * padded] __attribute__((aligned(16)));
    for (long i = 0; i < padded * width; i++) dk[i] = dv[i] = 0;
    const float *key = 0;
    if (row_count > 0) {
      long offset = offsets[first_row];
      const float *value = values + offset + (long)kv * width;
      key = keys + offset + (long)kv * width * 8;
      for (int t = 0; t < padded; t++)
        for (int c = 0; c < width; c++) {
          int real = t < length;
          key_rows[(long)t * width + c] = real ? key[(t / 8) * gap + c * 8 + t % 8] : 0;
          value_panels[(long)(t / 8) * width * 8 + c * 8 + t % 8] = real ? value[t * ld_value + c] : 0;
        }
    }
    for (int h = kv * group; h < (kv + 1) * group; h++)
      for (int r0 = 0; r0 < row_count; r0 += BLOCK) {
        int rows = row_count - r0 < BLOCK ? row_count - r0 : BLOCK, row = first_row + r0;
        int visible = positions[row + rows - 1] + 1, panels = (visible + 7) / 8;
        const float *qb = q + (row * ldq + h * width), *db = d_out + (row * ldq + h * width), *ob = out + (row * ldq + h * width);
        for (int r = 0; r < rows; r += 4) {
          const float *qs[4], *ds4[4];
          float *p4 = p + r * padded, *s4 = ds + r * padded;
          for (int i = 0; i < 4; i++) {
            int at = r + i < rows ? r + i : r;
            qs[i] = qb + at * ldq;
            ds4[i] = db + at * ldq;
          }
          score_rows(4, p4, padded, qs, key, gap, width, panels, scale);
          score_rows(4, s4, padded, ds4, value_panels, (long)width * 8, width, panels, 1.0f);
          for (int i = 0; i < 4 && r + i < rows; i++) {
            int m = row + r + i, limit = positions[m] + 1;
            f32x4 dot = splat(0), peak = splat(stats[((long)m * heads + h) * 2]), inverse = splat(stats[((long)m * heads + h) * 2 + 1]);
            for (int c = 0; c < width; c += 4) dot = multiply_add(load(ds4[i] + c), load(ob + (r + i) * ldq + c), dot);
            f32x4 total = splat(lane_sum(dot));
            float *pr = p4 + i * padded, *sr = s4 + i * padded;
            for (int t = 0; t < panels * 8; t += 4) {
              f32x4 mask = lanes_below(limit - t);
              f32x4 e = mul(vector_exp(wasm_v128_bitselect(sub(load(pr + t), peak), splat(-3.0e38f), mask)), inverse);
              store(pr + t, e);
              store(sr + t, wasm_v128_and(mask, mul(mul(e, sub(load(sr + t), total)), splat(scale))));
            }
          }
          const float *rows4[4] = {s4, s4 + padded, s4 + 2 * padded, s4 + 3 * padded};
          for (int c = 0; c < width; c += 8) {
            f32x4 acc[8];
            UNROLLED for (int i = 0; i < 8; i++) acc[i] = splat(0);
            tile_rows(4, 2, acc, rows4, 1, key_rows + c, width, 8, visible);
            for (int i = 0; i < 4 && r + i < rows; i++) {
              float *to = dq + ((row + r + i) * ldq + h * width) + c;
              store(to, acc[i * 2]);
              store(to + 4, acc[i * 2 + 1]);
            }
          }
        }
        add_outer(dv, p, padded, db, ldq, rows, panels * 8, width);
        add_outer(dk, ds, padded, qb, ldq, rows, panels * 8, width);
      }
    for (int t = 0; t < length; t++) {
      float *to_k = dkv + (long)(first_kv + t) * lddkv + kv * width, *to_v = to_k + (long)kv_heads * width;
      for (int c = 0; c < width; c += 4) {
        store(to_k + c, load(dk + (long)t * width + c));
        store(to_v + c, load(dv + (long)t * width + c));
      }
    }
  }
}

/* ---------------------------------------------------------------- log-probabilities ---- */

/* Sum of e^y and of y e^y, y = x / temperature - max, over a kept row (ids ascending) or the whole vocabulary (ids = 0). */
typedef struct { float maximum; double log_sum; float inverse_sum; double mean; } Normal;

INLINE f32x4 pick4(const float *x, const int *ids, int i, int n) {
  if (!ids) {
    if (n - i >= 4) return load(x + i);
    return wasm_f32x4_make(x[i], n - i > 1 ? x[i + 1] : 0, n - i > 2 ? x[i + 2] : 0, 0);
  }
  return wasm_f32x4_make(x[ids[i]], n - i > 1 ? x[ids[i + 1]] : 0, n - i > 2 ? x[ids[i + 2]] : 0, n - i > 3 ? x[ids[i + 3]] : 0);
}

static Normal normalise(const float *x, const int *ids, int n, float inverse_temperature, int want_mean) {
  f32x4 lowest = splat(-3.0e38f), top = lowest, sum = splat(0), weighted = splat(0), scale = splat(inverse_temperature);
  for (int i = 0; i < n; i += 4) top = wasm_f32x4_pmax(top, wasm_v128_bitselect(mul(pick4(x, ids, i, n), scale), lowest, lanes_below(n - i)));
  Normal result;
  result.maximum = lane_max(top);
  f32x4 peak = splat(result.maximum);
  for (int i = 0; i < n; i += 4) {
    f32x4 y = wasm_v128_bitselect(sub(mul(pick4(x, ids, i, n), scale), peak), lowest, lanes_below(n - i));
    f32x4 e = vector_exp(y);
    sum = add(sum, e);
    if (want_mean) weighted = multiply_add(e, y, weighted);
  }
  float total = lane_sum(sum);
  result.inverse_sum = 1.0f / total;
  result.log_sum = natural_log(total);
  result.mean = want_mean ? (double)lane_sum(weighted) / total : 0;
  return result;
}

INLINE float log_probability(const float *x, int id, float inverse_temperature, Normal n) {
  return (float)((double)(x[id] * inverse_temperature - n.maximum) - n.log_sum);
}

/* Items are rows of logits. Row m is kept[offsets[m]..offsets[m + 1]), or the whole vocabulary when that is empty. */
KERNEL(head_logprob)(int begin, int end, float *logprobs, float *entropies, const float *logits, int vocabulary, const int *targets,
                     const float *inverse_temperatures, const int *kept, const int *offsets) {
  for (int m = begin; m < end; m++) {
    const float *x = logits + (long)m * vocabulary;
    float scale = inverse_temperatures[m];
    Normal full = normalise(x, 0, vocabulary, scale, 1);
    int count = offsets[m + 1] - offsets[m];
    Normal row = count ? normalise(x, kept + offsets[m], count, scale, 0) : full;
    logprobs[m] = log_probability(x, targets[m], scale, row);
    entropies[m] = (float)(full.log_sum - full.mean);
  }
}

/* d_logits from dLoss/d(log-probability) and dLoss/d(entropy); exactly 0 outside the kept row when the latter is 0. */
KERNEL(head_gradient)(int begin, int end, float *d_logits, const float *logits, int vocabulary, const int *targets,
                      const float *inverse_temperatures, const int *kept, const int *offsets, const float *d_logprobs,
                      const float *d_entropies) {
  for (int m = begin; m < end; m++) {
    const float *x = logits + (long)m * vocabulary;
    float *to = d_logits + (long)m * vocabulary;
    float scale = inverse_temperatures[m], dl = d_logprobs[m], dh = d_entropies[m];
    __builtin_memset(to, 0, (unsigned long)vocabulary * 4);
    if (dh != 0) {
      Normal full = normalise(x, 0, vocabulary, scale, 1);
      f32x4 factor = splat(-dh * scale * full.inverse_sum), peak = splat(full.maximum), shift = splat((float)-full.mean);
      for (int i = 0; i < vocabulary; i += 4) {
        f32x4 y = sub(mul(pick4(x, 0, i, vocabulary), splat(scale)), peak);
        f32x4 value = mul(mul(vector_exp(y), add(y, shift)), factor); /* -p (ln p + H), ln p + H = y - mean */
        if (vocabulary - i >= 4) store(to + i, value);
        else {
          float tail[4];
          store(tail, value);
          for (int j = 0; i + j < vocabulary; j++) to[i + j] = tail[j];
        }
      }
    }
    if (dl != 0) {
      const int *ids = kept + offsets[m];
      int count = offsets[m + 1] - offsets[m];
      if (!count) ids = 0, count = vocabulary;
      Normal row = normalise(x, ids, count, scale, 0);
      f32x4 factor = splat(-dl * scale), peak = splat(row.maximum), inverse = splat(row.inverse_sum);
      for (int i = 0; i < count; i += 4) {
        f32x4 p = mul(vector_exp(sub(mul(pick4(x, ids, i, count), splat(scale)), peak)), inverse);
        float value[4];
        if (!ids && count - i >= 4) {
          store(to + i, add(load(to + i), mul(p, factor)));
          continue;
        }
        store(value, mul(p, factor));
        for (int j = 0; j < 4 && i + j < count; j++) to[ids ? ids[i + j] : i + j] += value[j];
      }
      to[targets[m]] += dl * scale;
    }
  }
}

/* ---------------------------------------------------------------- sampling ---- */

INLINE u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* A heap of keys, the largest on top. A key orders by probability, then by falling id. */
INLINE void sink(u64 *heap, int n, int at) {
  u64 key = heap[at];
  for (;;) {
    int child = 2 * at + 1;
    if (child >= n) break;
    if (child + 1 < n && heap[child + 1] > heap[child]) child++;
    if (heap[child] <= key) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = key;
}
INLINE u64 order_key(float p, int id) {
  union { float value; u32 bits; } w = {p};
  return (u64)w.bits << 32 | (0xffffffffu - (u32)id);
}

/* Probabilities by their leading bits: sign, exponent and four bits of the fraction. 1 falls into the last bucket. */
enum { BUCKETS = (0x3f800000 >> 19) + 1 };
INLINE int bucket_of(float p) {
  union { float value; u32 bits; } w = {p};
  return (int)(w.bits >> 19);
}

/* The lowest key of the shortest prefix, by falling key, that has `wanted` members or a mass of at least `mass`. */
static u64 cut(const float *p, int n, const double *masses, const int *counts, int wanted, double mass, u64 *heap) {
  u64 lowest = 0;
  double reached = 0;
  int taken = 0;
  for (int b = BUCKETS - 1; b >= 0; b--) {
    if (counts[b] == 0) continue;
    if (taken + counts[b] < wanted && reached + masses[b] < mass) {
      taken += counts[b];
      reached += masses[b];
      continue;
    }
    int size = 0;
    for (int i = 0; i < n; i++)
      if (bucket_of(p[i]) == b) heap[size++] = order_key(p[i], i);
    for (int i = size / 2 - 1; i >= 0; i--) sink(heap, size, i);
    while (size > 0 && taken < wanted && reached < mass) {
      union { u32 bits; float value; } w = {(u32)(heap[0] >> 32)};
      lowest = heap[0];
      reached += w.value;
      taken++;
      heap[0] = heap[--size];
      sink(heap, size, 0);
    }
    if (taken >= wanted || reached >= mass) return lowest;
  }
  return 0;
}

/*
 * Items are rows of logits. `settings` has 8 numbers a row: 1/temperature, top-k (0 = off), top-p, min-p, greedy, seed,
 * index of the token. Temperature, then top-k, then top-p over what top-k left (kept while the mass before is below p),
 * then min-p against the largest. Writes the kept row (ids ascending), the drawn id and its log-probability over that row;
 * the id is -1 when the logits are not finite. The draw depends on (seed, index) alone.
 */
KERNEL(sample)(int begin, int end, int *ids, float *logprobs, int *counts, int *kept, const float *logits, int vocabulary,
               const double *settings) {
  float p[vocabulary];
  u64 heap[vocabulary];
  for (int m = begin; m < end; m++) {
    const float *x = logits + (long)m * vocabulary;
    const double *set = settings + m * 8;
    int *row = kept + (long)m * vocabulary;
    float scale = (float)set[0];
    int top_k = (int)set[1];
    double top_p = set[2], min_p = set[3];
    f32x4 top = splat(-0x1.fffffep127f), finite4 = wasm_i32x4_splat(-1);
    for (int i = 0; i < vocabulary; i += 4) {
      f32x4 value = wasm_v128_bitselect(pick4(x, 0, i, vocabulary), splat(-0x1.fffffep127f), lanes_below(vocabulary - i));
      finite4 = wasm_v128_and(finite4, wasm_f32x4_eq(sub(value, value), splat(0)));
      top = wasm_f32x4_pmax(top, value);
    }
    float highest = lane_max(top);
    int best = 0, finite = wasm_i32x4_all_true(finite4);
    while (finite && x[best] != highest) best++;
    if (!finite) {
      ids[m] = -1;
      counts[m] = 0;
      continue;
    }
    if (set[4] != 0) {
      row[0] = ids[m] = best;
      counts[m] = 1;
      logprobs[m] = 0;
      continue;
    }
    f32x4 peak = splat(x[best] * scale);
    for (int i = 0; i < vocabulary; i += 4) {
      f32x4 e = vector_exp(sub(mul(pick4(x, 0, i, vocabulary), splat(scale)), peak));
      if (vocabulary - i >= 4) store(p + i, e);
      else {
        float tail[4];
        store(tail, e);
        for (int j = 0; i + j < vocabulary; j++) p[i + j] = tail[j];
      }
    }
    u64 lowest = 0; /* keys at or above it are kept */
    int has_top_k = top_k > 0 && top_k < vocabulary;
    if (has_top_k || top_p < 1) {
      double masses[BUCKETS], total = 0;
      int members[BUCKETS];
      for (int b = 0; b < BUCKETS; b++) masses[b] = 0, members[b] = 0;
      for (int i = 0; i < vocabulary; i++) {
        int b = bucket_of(p[i]);
        masses[b] += p[i];
        members[b]++;
      }
      if (has_top_k) lowest = cut(p, vocabulary, masses, members, top_k, 1e300, heap);
      if (top_p < 1) {
        for (int i = 0; i < vocabulary; i++)
          if (order_key(p[i], i) >= lowest) total += p[i];
        u64 key = cut(p, vocabulary, masses, members, vocabulary, top_p * total, heap);
        if (key > lowest) lowest = key;
      }
    }
    int count = 0;
    double mass = 0;
    for (int i = 0; i < vocabulary; i++)
      if (order_key(p[i], i) >= lowest && p[i] >= min_p) {
        row[count++] = i;
        mass += p[i];
      }
    u64 state = mix(((u64)(u32)set[5] << 32 | (u32)set[6]) + 0x9e3779b97f4a7c15ull);
    double target = (double)(mix(state + 0x9e3779b97f4a7c15ull) >> 11) * 0x1p-53 * mass, reached = 0;
    int drawn = best;
    for (int i = 0; i < count; i++) {
      reached += p[row[i]];
      if (reached > target) {
        drawn = row[i];
        break;
      }
    }
    ids[m] = drawn;
    counts[m] = count;
    logprobs[m] = log_probability(x, drawn, scale, normalise(x, row, count, scale, 0));
  }
}

/* ---------------------------------------------------------------- optimizer ---- */

/* Items are blocks of 4,096 gradients; partial sums of squares in f64. A sum that is not finite tells of any bad one. */
KERNEL(sum_squares)(int begin, int end, double *partials, const float *x, int n) {
  for (int i = begin; i < end; i++) {
    double sum = 0;
    int last = (i + 1) * 4096 < n ? (i + 1) * 4096 : n;
    for (int j = i * 4096; j < last; j++) sum += (double)x[j] * x[j];
    partials[i] = sum;
  }
}

/* to += from, then from = 0. Items are vectors of 4. */
KERNEL(take)(int begin, int end, float *to, float *from) {
  for (int i = begin * 4; i < end * 4; i += 4) {
    store(to + i, add(load(to + i), load(from + i)));
    store(from + i, splat(0));
  }
}

INLINE u16 narrow(float value) {
  union { float value; u32 bits; } w = {value};
  return (u16)((w.bits + 0x7fffu + ((w.bits >> 16) & 1)) >> 16);
}
/* bf16, round to nearest even; the values are finite. */
KERNEL(round_bf16)(int begin, int end, u16 *to, const float *from) {
  for (int i = begin; i < end; i++) to[i] = narrow(from[i]);
}

/* AdamW with decoupled decay, one element an item: takes and clears the gradient, refreshes the served bf16 copy. */
KERNEL(adamw)(int begin, int end, float *w, float *m, float *v, float *g, u16 *served, float rate, float beta1, float beta2,
              float epsilon, float decay, float gradient_scale, float inverse_bias1, float inverse_bias2) {
  for (int i = begin; i < end; i++) {
    float d = g[i] * gradient_scale;
    float m1 = beta1 * m[i] + (1.0f - beta1) * d;
    float v1 = beta2 * v[i] + (1.0f - beta2) * d * d;
    float update = m1 * inverse_bias1 / (__builtin_sqrtf(v1 * inverse_bias2) + epsilon) + decay * w[i];
    float next = w[i] - rate * update;
    m[i] = m1;
    v[i] = v1;
    w[i] = next;
    g[i] = 0;
    served[i] = narrow(next);
  }
}

/* ---------------------------------------------------------------- measuring ---- */

/* Ten independent multiply-add chains in registers: 80 flop an item. The peak that benchmarks divide by. */
KERNEL(peak)(int begin, int end, float *out) {
  f32x4 a = splat(0.999f), b = splat(1e-3f), c[10];
  UNROLLED for (int i = 0; i < 10; i++) c[i] = splat((float)i);
  ROLLED for (int i = begin; i < end; i++) {
    UNROLLED for (int j = 0; j < 10; j++) c[j] = multiply_add(c[j], a, b);
  }
  UNROLLED for (int i = 1; i < 10; i++) c[0] = add(c[0], c[i]);
  if (begin == 0) store(out, c[0]);
}
