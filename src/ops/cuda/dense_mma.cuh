// The tensor cores' product of 16 rows x 8 columns over 16 inputs, and the decoders that make its operands: BF16 pairs
// straight from packed codes.
//
// Of such a product lane 4 g + l (g < 8, l < 4) holds, of the weights, four inputs each of rows g and g + 8 in pairs
// a0 (row g), a1 (row g + 8), a2 (row g), a3 (row g + 8); of the inputs the same four of column g as b0 (against a0 and
// a1) and b1 (a2, a3); of the sums rows g (c0, c1) and g + 8 (c2, c3), columns 2 l and 2 l + 1. Which four inputs those
// are is free, as long as both sides agree: each format takes four that lie together in its packing.
#pragma once

#include <cstdint>

#include "numeric/int_lanes.h"
#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda::dense {

// d = c + product.
__device__ inline void mma_onto(float (&d)[4], const float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ inline uint32_t subtract_pairs(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

// Powers of two and small integers as pairs of BF16.
constexpr uint32_t bf16_pair(uint32_t bits) {
  return bits << 16 | bits;
}
constexpr uint32_t power_pair(int exponent) {
  return bf16_pair(static_cast<uint32_t>(exponent + 127) << 7);
}

// E4M3 codes in bits 8 to 15 of each half. Their exponent and mantissa at the end of BF16's exponent and the start of
// its mantissa are code * 2^-120, subnormal codes too.
__device__ inline uint32_t e4m3_small_pair(uint32_t codes) {
  return (codes & 0x80008000) | (codes >> 4 & 0x07f007f0);
}
// In bits 0 to 7 of each half.
__device__ inline uint32_t e4m3_small_pair_below(uint32_t codes) {
  return (codes << 8 & 0x80008000) | (codes << 4 & 0x07f007f0);
}
__device__ inline uint32_t e4m3_pair(uint32_t codes) {
  return multiply_pairs(e4m3_small_pair(codes), power_pair(120));
}

// E2M1 codes in the lowest four bits of each half (kPlace 0), or the next four (kPlace 1), as code * 2^-126: the
// product puts one copy where BF16 has its sign, one where the code's exponent and mantissa straddle BF16's.
template <int kPlace>
__device__ inline uint32_t e2m1_pair(uint32_t word) {
  constexpr uint32_t kCopies = kPlace == 0 ? (1U << 12 | 1U << 6) : (1U << 8 | 1U << 2);
  return (word & bf16_pair(0xf << 4 * kPlace)) * kCopies & 0x81c081c0;
}
// Two E4M3 scales in the lowest two bytes, times 2^119: what e2m1_pair's numbers are multiplied by for code * scale *
// 2^-7, exactly: at most six significant bits.
__device__ inline uint32_t nvfp4_scales(uint32_t bytes) {
  return multiply_pairs(multiply_pairs(__byte_perm(bytes, 0, 0x4140) << 4, power_pair(120)), power_pair(119));
}
inline constexpr float kNvfp4Unit = 128.0F;

// (word & mask) | bits in one instruction: the compiler takes two where both are constants.
__device__ inline uint32_t put_under(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
  return out;
}

// Integer codes under the exponent of 128 make 128 + code (or 128 + 8 * code from three bits further up).
inline constexpr uint32_t kHundredTwentyEight = bf16_pair(0x4300);
// code - 8 of four bits at the end of each half.
__device__ inline uint32_t int4_pair(uint32_t word) {
  return subtract_pairs(put_under(word, 0x000f000f, kHundredTwentyEight), bf16_pair(0x4308));  // 136
}
// code - 4 of three bits at the end of each half, or before these.
__device__ inline uint32_t int3_pair(uint32_t word) {
  return subtract_pairs(put_under(word, 0x00070007, kHundredTwentyEight), bf16_pair(0x4304));  // 132
}
__device__ inline uint32_t int3_pair_above(uint32_t word) {
  return fma_pairs(put_under(word, 0x00380038, kHundredTwentyEight), power_pair(-3), bf16_pair(0xc1a0));  // / 8 - 20
}
// code - 128 of the lower byte of each half: 128 + the lower seven bits, less 128 or 256.
__device__ inline uint32_t int8_pair(uint32_t word) {
  return subtract_pairs(put_under(word, 0x007f007f, kHundredTwentyEight), (word & 0x00800080) ^ bf16_pair(0x4380));
}
// (code - 128) * 2^-133 of bytes 0 and 2, and of bytes 1 and 3: BF16 whose exponent is 0 or 1 are whole numbers of
// 2^-133.
__device__ inline uint32_t int8_small_even(uint32_t word) {
  return subtract_pairs(word & 0x00ff00ff, bf16_pair(128));
}
__device__ inline uint32_t int8_small_odd(uint32_t word) {
  return subtract_pairs(__byte_perm(word, 0, 0x4341), bf16_pair(128));
}

// Pair kPair of a lane's words in lanes' order (numeric/int_lanes.h): of each of both codes v = code - 2^(kBits - 1)
// the BF16 number (2 v + 1) 2^(int_place - 134), behind one mask where there is no shift.
template <int kBits, int kPair>
inline constexpr uint32_t kIntLaneOnes = bf16_pair(1U << (numeric::int_place<kBits>(kPair) - 1));
template <int kBits, int kPair>
__device__ inline uint32_t int_lane_pair(const uint4& words) {
  constexpr uint32_t kOnes = kIntLaneOnes<kBits, kPair>;
  if constexpr (kBits == 3 && kPair == 15) {
    const uint32_t signs = put_under(words.x << 7, 0x80008000, kOnes);
    const uint32_t upper = put_under(words.y >> 1, 0x00800080, signs);
    return put_under(words.z >> 2, 0x00400040, upper);
  } else {
    constexpr numeric::IntTurn kTurn = numeric::int_turn<kBits>(kPair);
    constexpr uint32_t kMask = bf16_pair(0x8000U | ((1U << (kBits - 1)) - 1) << kTurn.place);
    constexpr int kWord = kPair / (kBits == 4 ? 4 : 5);
    const uint32_t word = kWord == 0 ? words.x : kWord == 1 ? words.y : kWord == 2 ? words.z : words.w;
    // Only bits that go round the end need a rotation.
    const uint32_t turned = kTurn.turn <= kTurn.place ? word << kTurn.turn : __funnelshift_l(word, word, kTurn.turn);
    return put_under(turned, kMask, kOnes);
  }
}

// Codes of four words of a unit of integers as they are stored (numeric/int_group.h): code j of words 0 and 1 (side 0)
// or 2 and 3 (side 1).
struct Int4Pairs {
  static constexpr int kBits = 4;
  uint32_t low[2], high[2];  // codes 0 to 3, 4 to 7
  __device__ explicit Int4Pairs(const uint4& words) {
    low[0] = __byte_perm(words.x, words.y, 0x5410);
    high[0] = __byte_perm(words.x, words.y, 0x7632);
    low[1] = __byte_perm(words.z, words.w, 0x5410);
    high[1] = __byte_perm(words.z, words.w, 0x7632);
  }
  __device__ uint32_t get(int side, int j) const { return int4_pair((j < 4 ? low[side] : high[side]) >> 4 * (j % 4)); }
};
// The words' lower 16 bits are in x and y, their upper eight in z.
struct Int3Pairs {
  static constexpr int kBits = 3;
  uint32_t bits[2][4];  // codes 0 and 1, 2 and 3, 4 and 5, 6 and 7
  __device__ explicit Int3Pairs(const uint4& words) {
    const uint32_t low[2] = {words.x, words.y};
    const uint32_t high[2] = {__byte_perm(words.z, 0, 0x4140), __byte_perm(words.z, 0, 0x4342)};
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t end = (low[side] >> 12 & 0x000f000f) | high[side] << 4;
      bits[side][0] = low[side];
      bits[side][1] = low[side] >> 6;
      bits[side][2] = end;
      bits[side][3] = end >> 6;
    }
  }
  __device__ uint32_t get(int side, int j) const {
    return j % 2 == 0 ? int3_pair(bits[side][j / 2]) : int3_pair_above(bits[side][j / 2]);
  }
};

}  // namespace tandem::ops::cuda::dense
