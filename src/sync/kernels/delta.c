/*
 * The hot loops of the delta codec, one wasm module, one instance a thread: checksums, the scan for changed elements, and the
 * packing and unpacking of what it finds. All memory is static: two chunks of a tensor, one block of changes, hash states.
 * Invariant: no kernel writes outside of its static arrays whatever the numbers in a blob say; a blob that cannot be right gives -1.
 */
#include <wasm_simd128.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL(type, name) __attribute__((export_name(#name))) type name
#define INLINE static inline __attribute__((always_inline))

/* The sizes that the other side of the calls knows too. */
enum { CHUNK = 262144, BLOCK = 65536, GROUP = 64, DENSE = 163840, MAX_WIDTH = 8, PLANES_AT_ONCE = 2 * BLOCK };

typedef u16 __attribute__((may_alias, aligned(1))) loose16;
typedef u32 __attribute__((may_alias, aligned(1))) loose32;
typedef u64 __attribute__((may_alias, aligned(1))) loose64;

static _Alignas(64) u8 chunk_a[CHUNK + GROUP];
static _Alignas(64) u8 chunk_b[CHUNK + GROUP];
/* Encoding: distances between changes, the first is unused. Decoding: positions of changes after the first. */
static _Alignas(64) u32 places[BLOCK];
static _Alignas(64) u8 high_gaps[PLANES_AT_ONCE + GROUP];
static _Alignas(64) u8 low_gaps[BLOCK * 4 + GROUP];
/* Values of changes, plane by plane: sparse planes lie BLOCK bytes apart, dense ones DENSE bytes. */
static _Alignas(64) u8 values[MAX_WIDTH][BLOCK];
static _Alignas(64) u8 dense[MAX_WIDTH][DENSE];
static _Alignas(64) u8 scratch[CHUNK];
static u32 lengths[33];
static _Alignas(64) u8 digest[16];

KERNEL(void *, address)(int which) {
  switch (which) {
    case 0: return chunk_a;
    case 1: return chunk_b;
    case 2: return places;
    case 3: return high_gaps;
    case 4: return low_gaps;
    case 5: return values;
    case 6: return dense;
    case 7: return lengths;
    case 8: return digest;
    default: return scratch;
  }
}

/* ---- xxh3, 128 bits, seed 0, streaming ---- */

#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 0x9E3779B185EBCA87ULL
#define PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define PRIME64_3 0x165667B19E3779F9ULL
#define PRIME64_4 0x85EBCA77C2B2AE63ULL
#define PRIME64_5 0x27D4EB2F165667C5ULL
#define MIX_1 0x165667919E3779F9ULL
#define MIX_2 0x9FB21C651E98DF25ULL

enum { STRIPE = 64, STRIPES_A_BLOCK = 16, SECRET = 192, SHORT = 240 };

static const _Alignas(64) u8 secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71,
    0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3,
    0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8,
    0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa,
    0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b,
    0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95,
    0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

typedef struct {
  _Alignas(64) u64 sums[8];
  u8 head[256];       /* the first bytes, for inputs that stay short */
  u8 last[STRIPE];    /* the stripe that was summed last */
  u8 pending[STRIPE]; /* not summed yet: whether a stripe is the last one shows only when more comes */
  u32 pending_bytes;
  u32 stripes; /* within the current block */
  u64 total;
} hash_state;

static hash_state hashes[2];

INLINE void copy_bytes(u8 *to, const u8 *from, u32 n) {
  for (u32 i = 0; i < n; i++) to[i] = from[i];
}
INLINE u64 read64(const u8 *p) { return *(const loose64 *)p; }
INLINE u64 read32(const u8 *p) { return *(const loose32 *)p; }
INLINE u32 swap32(u32 x) { return __builtin_bswap32(x); }

typedef struct {
  u64 low, high;
} pair;

/* 64 x 64 -> 128 bits. */
INLINE pair multiply(u64 a, u64 b) {
  u64 ll = (a & 0xffffffff) * (b & 0xffffffff), hl = (a >> 32) * (b & 0xffffffff);
  u64 lh = (a & 0xffffffff) * (b >> 32), hh = (a >> 32) * (b >> 32);
  u64 cross = (ll >> 32) + (hl & 0xffffffff) + lh;
  return (pair){(cross << 32) | (ll & 0xffffffff), (hl >> 32) + (cross >> 32) + hh};
}
INLINE u64 fold(u64 a, u64 b) {
  pair product = multiply(a, b);
  return product.low ^ product.high;
}
INLINE u64 avalanche(u64 h) {
  h ^= h >> 37;
  h *= MIX_1;
  return h ^ (h >> 32);
}
INLINE u64 avalanche64(u64 h) {
  h ^= h >> 33;
  h *= PRIME64_2;
  h ^= h >> 29;
  h *= PRIME64_3;
  return h ^ (h >> 32);
}

INLINE void sum_stripes(hash_state *h, const u8 *data, u32 count) {
  v128_t s0 = wasm_v128_load(&h->sums[0]), s1 = wasm_v128_load(&h->sums[2]);
  v128_t s2 = wasm_v128_load(&h->sums[4]), s3 = wasm_v128_load(&h->sums[6]);
  u32 stripes = h->stripes;
#define SUM(s, at)                                                                                                    \
  {                                                                                                                   \
    v128_t d = wasm_v128_load(data + at);                                                                             \
    v128_t k = wasm_v128_xor(d, wasm_v128_load(key + at));                                                            \
    v128_t odd = wasm_i32x4_shuffle(k, k, 1, 3, 1, 3);                                                                \
    v128_t even = wasm_i32x4_shuffle(k, k, 0, 2, 0, 2);                                                               \
    s = wasm_i64x2_add(s, wasm_i64x2_add(wasm_u64x2_extmul_low_u32x4(even, odd), wasm_i64x2_shuffle(d, d, 1, 0)));    \
  }
  for (; count > 0; count--, data += STRIPE) {
    const u8 *key = secret + 8 * stripes;
    SUM(s0, 0)
    SUM(s1, 16)
    SUM(s2, 32)
    SUM(s3, 48)
    if (++stripes == STRIPES_A_BLOCK) {
      stripes = 0;
      const v128_t prime = wasm_i64x2_splat(PRIME32_1);
#define SCRAMBLE(s, at)                                                                                               \
  s = wasm_i64x2_mul(wasm_v128_xor(wasm_v128_xor(s, wasm_u64x2_shr(s, 47)), wasm_v128_load(secret + 128 + at)), prime);
      SCRAMBLE(s0, 0)
      SCRAMBLE(s1, 16)
      SCRAMBLE(s2, 32)
      SCRAMBLE(s3, 48)
    }
  }
  h->stripes = stripes;
  wasm_v128_store(&h->sums[0], s0);
  wasm_v128_store(&h->sums[2], s1);
  wasm_v128_store(&h->sums[4], s2);
  wasm_v128_store(&h->sums[6], s3);
}

KERNEL(void, hash_reset)(int which) {
  hash_state *h = &hashes[which & 1];
  h->sums[0] = PRIME32_3;
  h->sums[1] = PRIME64_1;
  h->sums[2] = PRIME64_2;
  h->sums[3] = PRIME64_3;
  h->sums[4] = PRIME64_4;
  h->sums[5] = PRIME32_2;
  h->sums[6] = PRIME64_5;
  h->sums[7] = PRIME32_1;
  h->pending_bytes = 0;
  h->stripes = 0;
  h->total = 0;
}

KERNEL(void, hash_update)(int which, const u8 *data, u32 count) {
  hash_state *h = &hashes[which & 1];
  if (count == 0) return;
  if (h->total < sizeof h->head) {
    u32 room = sizeof h->head - (u32)h->total;
    copy_bytes(h->head + h->total, data, count < room ? count : room);
  }
  h->total += count;
  u32 free = STRIPE - h->pending_bytes;
  if (count <= free) {
    copy_bytes(h->pending + h->pending_bytes, data, count);
    h->pending_bytes += count;
    return;
  }
  if (h->pending_bytes > 0) {
    copy_bytes(h->pending + h->pending_bytes, data, free);
    data += free;
    count -= free;
    sum_stripes(h, h->pending, 1);
    copy_bytes(h->last, h->pending, STRIPE);
  }
  u32 stripes = (count - 1) / STRIPE;
  if (stripes > 0) {
    sum_stripes(h, data, stripes);
    data += stripes * STRIPE;
    count -= stripes * STRIPE;
    copy_bytes(h->last, data - STRIPE, STRIPE);
  }
  copy_bytes(h->pending, data, count);
  h->pending_bytes = count;
}

INLINE u64 mix16(const u8 *in, const u8 *key) { return fold(read64(in) ^ read64(key), read64(in + 8) ^ read64(key + 8)); }
INLINE pair mix32(pair sum, const u8 *one, const u8 *two, const u8 *key) {
  sum.low = (sum.low + mix16(one, key)) ^ (read64(two) + read64(two + 8));
  sum.high = (sum.high + mix16(two, key + 16)) ^ (read64(one) + read64(one + 8));
  return sum;
}
INLINE pair finish_mixed(pair sum, u64 n) {
  pair out = {avalanche(sum.low + sum.high), 0};
  out.high = 0 - avalanche(sum.low * PRIME64_1 + sum.high * PRIME64_4 + n * PRIME64_2);
  return out;
}
INLINE u64 merge(const u64 *sums, const u8 *key, u64 start) {
  for (int i = 0; i < 4; i++) start += fold(sums[2 * i] ^ read64(key + 16 * i), sums[2 * i + 1] ^ read64(key + 16 * i + 8));
  return avalanche(start);
}

static pair short_digest(const u8 *in, u32 n) {
  if (n == 0)
    return (pair){avalanche64(read64(secret + 64) ^ read64(secret + 72)), avalanche64(read64(secret + 80) ^ read64(secret + 88))};
  if (n <= 3) {
    u32 low = ((u32)in[0] << 16) | ((u32)in[n >> 1] << 24) | in[n - 1] | (n << 8);
    u32 turned = swap32(low);
    u32 high = (turned << 13) | (turned >> 19);
    return (pair){avalanche64(low ^ (read32(secret) ^ read32(secret + 4))),
                  avalanche64(high ^ (read32(secret + 8) ^ read32(secret + 12)))};
  }
  if (n <= 8) {
    u64 input = read32(in) + (read32(in + n - 4) << 32);
    pair m = multiply(input ^ (read64(secret + 16) ^ read64(secret + 24)), PRIME64_1 + ((u64)n << 2));
    m.high += m.low << 1;
    m.low ^= m.high >> 3;
    m.low ^= m.low >> 35;
    m.low *= MIX_2;
    m.low ^= m.low >> 28;
    m.high = avalanche(m.high);
    return m;
  }
  if (n <= 16) {
    u64 low = read64(in), high = read64(in + n - 8);
    pair m = multiply(low ^ high ^ (read64(secret + 32) ^ read64(secret + 40)), PRIME64_1);
    m.low += (u64)(n - 1) << 54;
    high ^= read64(secret + 48) ^ read64(secret + 56);
    m.high += high + (high & 0xffffffff) * (u64)(PRIME32_2 - 1);
    m.low ^= __builtin_bswap64(m.high);
    pair out = multiply(m.low, PRIME64_2);
    out.high += m.high * PRIME64_2;
    return (pair){avalanche(out.low), avalanche(out.high)};
  }
  pair sum = {n * PRIME64_1, 0};
  if (n <= 128) {
    for (int i = (int)(n - 1) / 32; i >= 0; i--) sum = mix32(sum, in + 16 * i, in + n - 16 * (i + 1), secret + 32 * i);
    return finish_mixed(sum, n);
  }
  for (u32 i = 32; i < 160; i += 32) sum = mix32(sum, in + i - 32, in + i - 16, secret + i - 32);
  sum = (pair){avalanche(sum.low), avalanche(sum.high)};
  for (u32 i = 160; i <= n; i += 32) sum = mix32(sum, in + i - 32, in + i - 16, secret + 3 + i - 160);
  sum = mix32(sum, in + n - 16, in + n - 32, secret + 103);
  return finish_mixed(sum, n);
}

/* Leaves the digest as its hexadecimal form reads: high half first, most significant byte first. */
KERNEL(void, hash_digest)(int which) {
  hash_state *h = &hashes[which & 1];
  pair out;
  if (h->total <= SHORT) {
    out = short_digest(h->head, (u32)h->total);
  } else {
    u8 stripe[STRIPE];
    u32 old = STRIPE - h->pending_bytes;
    copy_bytes(stripe, h->last + h->pending_bytes, old);
    copy_bytes(stripe + old, h->pending, h->pending_bytes);
    u64 sums[8];
    for (int i = 0; i < 8; i++) sums[i] = h->sums[i];
    for (int i = 0; i < 8; i++) {
      u64 data = read64(stripe + 8 * i), key = data ^ read64(secret + 121 + 8 * i);
      sums[i ^ 1] += data;
      sums[i] += (key & 0xffffffff) * (key >> 32);
    }
    out.low = merge(sums, secret + 11, h->total * PRIME64_1);
    out.high = merge(sums, secret + 117, ~(h->total * PRIME64_2));
  }
  *(loose64 *)digest = __builtin_bswap64(out.high);
  *(loose64 *)(digest + 8) = __builtin_bswap64(out.low);
}

/* ---- adler32 ---- */

KERNEL(u32, adler)(u32 state, const u8 *data, u32 count) {
  u32 a = state & 0xffff, b = state >> 16;
  const v128_t high = wasm_i16x8_const(16, 15, 14, 13, 12, 11, 10, 9), low = wasm_i16x8_const(8, 7, 6, 5, 4, 3, 2, 1);
  while (count > 0) {
    /* 5552 bytes are the most whose sums fit 32 bits; 5536 is the largest multiple of 16 below. */
    u32 part = count < 5536 ? count : 5536, vectors = part / 16;
    v128_t sums = wasm_i32x4_const(0, 0, 0, 0), before = sums, weighted = sums;
    for (u32 i = 0; i < vectors; i++, data += 16) {
      v128_t bytes = wasm_v128_load(data);
      before = wasm_i32x4_add(before, sums);
      sums = wasm_i32x4_add(sums, wasm_u32x4_extadd_pairwise_u16x8(wasm_u16x8_extadd_pairwise_u8x16(bytes)));
      weighted = wasm_i32x4_add(weighted, wasm_i32x4_dot_i16x8(wasm_u16x8_extend_low_u8x16(bytes), high));
      weighted = wasm_i32x4_add(weighted, wasm_i32x4_dot_i16x8(wasm_u16x8_extend_high_u8x16(bytes), low));
    }
#define LANES(v)                                                                                                      \
  ((u64)(u32)wasm_i32x4_extract_lane(v, 0) + (u32)wasm_i32x4_extract_lane(v, 1) + (u32)wasm_i32x4_extract_lane(v, 2) + \
   (u32)wasm_i32x4_extract_lane(v, 3))
    u64 wide_b = b + (u64)a * 16 * vectors + 16 * LANES(before) + LANES(weighted), wide_a = a + LANES(sums);
    for (u32 i = vectors * 16; i < part; i++) wide_b += wide_a += *data++;
    a = (u32)(wide_a % 65521);
    b = (u32)(wide_b % 65521);
    count -= part;
  }
  return (b << 16) | a;
}

/* ---- finding changes ---- */

/* One bit for each element of a 64-byte group that differs. */
INLINE u64 differing(int width, const u8 *a, const u8 *b) {
  v128_t d0 = wasm_v128_xor(wasm_v128_load(a), wasm_v128_load(b));
  v128_t d1 = wasm_v128_xor(wasm_v128_load(a + 16), wasm_v128_load(b + 16));
  v128_t d2 = wasm_v128_xor(wasm_v128_load(a + 32), wasm_v128_load(b + 32));
  v128_t d3 = wasm_v128_xor(wasm_v128_load(a + 48), wasm_v128_load(b + 48));
  if (!wasm_v128_any_true(wasm_v128_or(wasm_v128_or(d0, d1), wasm_v128_or(d2, d3)))) return 0;
  const v128_t zero = wasm_i32x4_const(0, 0, 0, 0);
  if (width == 1)
    return (u64)wasm_i8x16_bitmask(wasm_i8x16_ne(d0, zero)) | (u64)wasm_i8x16_bitmask(wasm_i8x16_ne(d1, zero)) << 16 |
           (u64)wasm_i8x16_bitmask(wasm_i8x16_ne(d2, zero)) << 32 | (u64)wasm_i8x16_bitmask(wasm_i8x16_ne(d3, zero)) << 48;
  if (width == 2)
    return (u64)wasm_i8x16_bitmask(wasm_i8x16_narrow_i16x8(wasm_i16x8_ne(d0, zero), wasm_i16x8_ne(d1, zero))) |
           (u64)wasm_i8x16_bitmask(wasm_i8x16_narrow_i16x8(wasm_i16x8_ne(d2, zero), wasm_i16x8_ne(d3, zero))) << 16;
  if (width == 4)
    return wasm_i8x16_bitmask(
        wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(wasm_i32x4_ne(d0, zero), wasm_i32x4_ne(d1, zero)),
                                wasm_i16x8_narrow_i32x4(wasm_i32x4_ne(d2, zero), wasm_i32x4_ne(d3, zero))));
  return wasm_i64x2_bitmask(wasm_i64x2_ne(d0, zero)) | wasm_i64x2_bitmask(wasm_i64x2_ne(d1, zero)) << 2 |
         wasm_i64x2_bitmask(wasm_i64x2_ne(d2, zero)) << 4 | wasm_i64x2_bitmask(wasm_i64x2_ne(d3, zero)) << 6;
}

/* The block being gathered. */
static u32 changes;
static i64 first, previous;

KERNEL(void, block_reset)(void) { changes = 0; }
KERNEL(u32, block_changes)(void) { return changes; }
KERNEL(double, block_first)(void) { return (double)first; }
KERNEL(double, block_span)(void) { return (double)(previous - first + 1); }

INLINE u32 scan_width(int width, i64 base, u32 begin, u32 end) {
  u32 n = changes;
  i64 before = previous;
  u32 at = begin;
  for (; at < end && n <= BLOCK - GROUP; at += GROUP) {
    u64 mask = differing(width, chunk_a + at, chunk_b + at);
    while (mask != 0) {
      u32 byte = at + (u32)__builtin_ctzll(mask) * (u32)width;
      mask &= mask - 1;
      i64 position = base + byte / (u32)width;
      if (n == 0) first = before = position;
      places[n] = (u32)(position - before);
      before = position;
      const u8 *a = chunk_a + byte, *b = chunk_b + byte;
      if (width == 1) {
        values[0][n] = *a ^ *b;
      } else if (width == 2) {
        u32 value = *(const loose16 *)a ^ *(const loose16 *)b;
        values[0][n] = (u8)value;
        values[1][n] = (u8)(value >> 8);
      } else {
        for (int i = 0; i < width; i++) values[i][n] = a[i] ^ b[i];
      }
      n++;
    }
  }
  changes = n;
  previous = before;
  return at < end ? at : end;
}

/*
 * Appends the changed elements of bytes [begin, end) of the two chunks to the block; `base` is the element that the chunks
 * begin with, `begin` a multiple of 64. Returns where it stopped: at `end`, or earlier when the block is full. Bytes from `end`
 * to the next multiple of 64 must be equal in both chunks.
 */
KERNEL(u32, scan)(int width, double base, u32 begin, u32 end) {
  i64 start = (i64)base;
  switch (width) {
    case 1: return scan_width(1, start, begin, end);
    case 2: return scan_width(2, start, begin, end);
    case 4: return scan_width(4, start, begin, end);
    default: return scan_width(8, start, begin, end);
  }
}

INLINE u32 count_width(int width, u32 count) {
  u32 n = 0;
  for (u32 at = 0; at < count; at += GROUP) n += (u32)__builtin_popcountll(differing(width, chunk_a + at, chunk_b + at));
  return n;
}

/* How many elements of the first `count` bytes differ; the same rule for the bytes behind. */
KERNEL(u32, count_changes)(int width, u32 count) {
  switch (width) {
    case 1: return count_width(1, count);
    case 2: return count_width(2, count);
    case 4: return count_width(4, count);
    default: return count_width(8, count);
  }
}

/* chunk_a becomes its XOR with chunk_b; returns whether any byte of chunk_b was not 0. */
KERNEL(int, xor_chunks)(u32 count) {
  v128_t any = wasm_i32x4_const(0, 0, 0, 0);
  for (u32 at = 0; at < count; at += 16) {
    v128_t other = wasm_v128_load(chunk_b + at);
    any = wasm_v128_or(any, other);
    wasm_v128_store(chunk_a + at, wasm_v128_xor(wasm_v128_load(chunk_a + at), other));
  }
  return wasm_v128_any_true(any);
}

/* ---- gaps of a block ---- */

/* How many gaps have each bit length: what the choice of the shift needs. */
KERNEL(void, gap_lengths)(void) {
  for (int i = 0; i < 33; i++) lengths[i] = 0;
  for (u32 i = 1; i < changes; i++) {
    u32 gap = places[i] - 1;
    lengths[gap == 0 ? 0 : 32 - __builtin_clz(gap)]++;
  }
}

/* Writes gap >> shift as bytes (255 = 255 and more to come) and the low bits, packed. Returns the bytes, -1 = no room. */
KERNEL(int, pack_gaps)(u32 shift) {
  u32 n = 0, held = 0;
  u64 bits = 0;
  u8 *low = low_gaps;
  for (u32 i = 1; i < changes; i++) {
    u32 gap = places[i] - 1, high = gap >> shift;
    if (high / 255 >= PLANES_AT_ONCE - n) return -1;
    for (; high >= 255; high -= 255) high_gaps[n++] = 255;
    high_gaps[n++] = (u8)high;
    bits |= (u64)(gap & ((1U << shift) - 1)) << held;
    held += shift;
    if (held >= 32) {
      *(loose32 *)low = (u32)bits;
      low += 4;
      bits >>= 32;
      held -= 32;
    }
  }
  *(loose32 *)low = (u32)bits;
  return (int)n;
}

/* The opposite: `places` = distances from the block's first element. 0 = right: all bytes used, the last change at span - 1. */
KERNEL(int, unpack_gaps)(u32 shift, u32 count, u32 bytes, u32 span) {
  if (count == 0 || count > BLOCK || bytes > PLANES_AT_ONCE || shift > 31) return -1;
  u32 n = 0, held = 0;
  u64 bits = 0, position = 0;
  const u8 *low = low_gaps;
  u32 mask = (1U << shift) - 1;
  places[0] = 0;
  for (u32 i = 1; i < count; i++) {
    u64 high = 0;
    u32 byte;
    do {
      if (n == bytes) return -1;
      byte = high_gaps[n++];
      high += byte;
    } while (byte == 255);
    if (held < shift) {
      bits |= (u64) * (const loose32 *)low << held;
      low += 4;
      held += 32;
    }
    position += (high << shift) + ((u32)bits & mask) + 1;
    bits >>= shift;
    held -= shift;
    if (position >= span) return -1;
    places[i] = (u32)position;
  }
  return n == bytes && position + 1 == span ? 0 : -1;
}

INLINE u32 scatter_width(int width, i64 offset, u32 from, u32 count, u32 elements) {
  u32 i = from;
  for (; i < count; i++) {
    i64 element = offset + places[i];
    if (element >= elements) break;
    if (element < 0) continue;
    u8 *at = chunk_a + (u32)element * (u32)width;
    if (width == 1) {
      *at ^= values[0][i];
    } else if (width == 2) {
      *(loose16 *)at ^= (u16)(values[0][i] | values[1][i] << 8);
    } else {
      for (int k = 0; k < width; k++) at[k] ^= values[k][i];
    }
  }
  return i;
}

/*
 * Applies the unpacked changes from number `from` on to chunk_a, which holds `elements`; `offset` is the block's first element
 * seen from the chunk's. Returns the number of the first change that lies behind the chunk.
 */
KERNEL(u32, scatter)(int width, double offset, u32 from, u32 count, u32 elements) {
  if (count > BLOCK || elements > CHUNK / (u32)width) return from;
  i64 shifted = (i64)offset;
  switch (width) {
    case 1: return scatter_width(1, shifted, from, count, elements);
    case 2: return scatter_width(2, shifted, from, count, elements);
    case 4: return scatter_width(4, shifted, from, count, elements);
    default: return scatter_width(8, shifted, from, count, elements);
  }
}

/* ---- dense blocks ---- */

/* Planes of all elements from the first to the last change, 0 where nothing changed. The span is at most DENSE. */
KERNEL(void, spread)(int width) {
  u32 span = (u32)(previous - first + 1);
  if (span > DENSE) return;
  for (int k = 0; k < width; k++)
    for (u32 i = 0; i < span; i += 16) wasm_v128_store(dense[k] + i, wasm_i32x4_const(0, 0, 0, 0));
  u32 at = 0;
  for (u32 i = 0; i < changes; i++) {
    if (i > 0) at += places[i];
    for (int k = 0; k < width; k++) dense[k][at] = values[k][i];
  }
}

/* Applies elements [from, from + count) of a dense block to chunk_a, beginning with its element `target`. */
KERNEL(void, merge_dense)(int width, u32 from, u32 count, u32 target) {
  if (from > DENSE || count > DENSE - from) return;
  if (target > CHUNK / (u32)width || count > CHUNK / (u32)width - target) return;
  u8 *at = chunk_a + target * (u32)width;
  if (width == 1) {
    for (u32 i = 0; i < count; i++) at[i] ^= dense[0][from + i];
  } else if (width == 2) {
    for (u32 i = 0; i < count; i++) ((loose16 *)at)[i] ^= (u16)(dense[0][from + i] | dense[1][from + i] << 8);
  } else {
    for (u32 i = 0; i < count; i++)
      for (int k = 0; k < width; k++) at[i * (u32)width + (u32)k] ^= dense[k][from + i];
  }
}

/* ---- lists of bytes ---- */

/*
 * Lists the bytes of [begin, end), at most BLOCK of them, that differ: their positions from `base` on in `places`, the bytes of
 * chunk_b in the first plane. The bytes behind `end`: as in `scan`. Returns how many.
 */
KERNEL(u32, list_bytes)(u32 base, u32 begin, u32 end) {
  if (end > CHUNK || begin > end || end - begin > BLOCK) return 0;
  u32 n = 0;
  for (u32 at = begin; at < end; at += GROUP) {
    u64 mask = differing(1, chunk_a + at, chunk_b + at);
    while (mask != 0) {
      u32 byte = at + (u32)__builtin_ctzll(mask);
      mask &= mask - 1;
      places[n] = base + byte;
      values[0][n++] = chunk_b[byte];
    }
  }
  return n;
}

/*
 * Puts listed bytes from number `from` to `count` into chunk_a, which begins at byte `base` and has `size` bytes. `before` is the
 * position put last, -1 at the start. Returns the number of the first that lies behind the chunk; -1 = positions do not rise.
 */
KERNEL(int, put_bytes)(u32 from, u32 count, double base, u32 size, double before) {
  if (count > BLOCK || size > CHUNK) return -1;
  i64 last = (i64)before, start = (i64)base;
  u32 i = from;
  for (; i < count; i++) {
    i64 position = places[i];
    if (position <= last || position < start) return -1;
    if (position - start >= size) break;
    last = position;
    chunk_a[position - start] = values[0][i];
  }
  return (int)i;
}
