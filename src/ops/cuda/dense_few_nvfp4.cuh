// NVFP4 for the kernel for few columns (dense_few.cu): matrices in lanes' order (numeric/nvfp4_lanes.h).
//
// A product of the tensor cores has the 16 inputs of one block, so that a block's scale can wait until its sum is
// there: once a row and column, not once a weight. Of fewer than eight columns each has several of the tensor cores'
// eight, its slots, each for as many consecutive blocks of a unit: a column's inputs stand in the slot of their block
// and are zeros in the others. The tensor cores' columns are [slots, columns], so that what a lane has of a row needs
// consecutive scales, as few as there are columns (two of one column).
//
// Sums of pairs of blocks stay apart to the end of a tile and are added in one order whatever the columns are; a pair
// is always in one lane.
#pragma once

#include "ops/cuda/dense_few_formats.cuh"

namespace tandem::ops::cuda::dense {

// Sums over a unit's blocks in pairs, of 1 << kColumnBits columns. Block slot * kPhases + phase is in `slot`.
template <int kColumnBits>
struct BlockSums {
  static constexpr int kPhases = 1 << kColumnBits;
  static constexpr int kSlots = 8 >> kColumnBits;
  static constexpr int kPairs = kPhases > 1 ? kPhases / 2 : 1;  // of a lane
  // Of a pair: rows g and g + 8 (one column), or rows g, g, g + 8, g + 8 and columns 2 l, 2 l + 1 modulo the columns.
  static constexpr int kEach = kColumnBits == 0 ? 2 : 4;
  float sums[kColumnBits == 3 ? 1 : kPairs][kEach];  // of eight columns those of all pairs

  // In [16 rows, columns], the first float of those that the lane stores. Lanes that add the same sums share the rows
  // between them, then the columns.
  __device__ static int first(int lane, int) {
    const int g = static_cast<int>(static_cast<uint32_t>(lane) / 4);
    const int l = static_cast<int>(static_cast<uint32_t>(lane) % 4);
    if constexpr (kColumnBits == 3) return 2 * lane;
    if constexpr (kColumnBits == 2) return (g + 8 * (l / 2)) * 4 + 2 * (l % 2);
    if constexpr (kColumnBits == 1) return (g + 8 * (l % 2)) * 2 + l / 2;
    return g + 8 * (l % 2);
  }
  // `to` is the place of that. Each is (0 + 1) + (2 + 3) of its pairs, whichever lanes have them.
  __device__ void store(int lane, int, float* to) const {
    const int l = static_cast<int>(static_cast<uint32_t>(lane) % 4);
    float total[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if constexpr (kPairs == 2) {
        total[i] = sums[0][i] + sums[1][i];
      } else {
        total[i] = sums[0][i];
      }
    }
    if constexpr (kColumnBits == 3) {
      *reinterpret_cast<float2*>(to) = make_float2(total[0], total[1]);
      *reinterpret_cast<float2*>(to + 64) = make_float2(total[2], total[3]);
    } else if constexpr (kColumnBits == 2) {
      const bool high = l >= 2;
      const float low = keep_half(total[0], total[2], high, 2);
      const float second = keep_half(total[1], total[3], high, 2);
      *reinterpret_cast<float2*>(to) = make_float2(low, second);
    } else if constexpr (kColumnBits == 1) {
      const bool high = l % 2 != 0;
      const float low = keep_half(total[0], total[2], high, 1);
      const float second = keep_half(total[1], total[3], high, 1);
      *to = keep_half(low, second, l >= 2, 2);
    } else {
      const float sum = keep_half(total[0], total[1], l % 2 != 0, 1);
      const float all = sum + __shfl_xor_sync(0xffffffffU, sum, 2);
      if (l < 2) *to = all;
    }
  }

 private:
  // Of this lane and of the one `distance` away: the sum of both's `low`, or in the other lane of both's `high`.
  __device__ static float keep_half(float low, float high, bool keep_high, int distance) {
    const float other = __shfl_xor_sync(0xffffffffU, keep_high ? low : high, distance);
    return (keep_high ? high : low) + other;
  }
};

// kScales is the logarithm of the columns. The scales of a slot: [2 units, 16 rows] of eight bytes.
template <int kColumnBits, int kBytes>
struct Format<WeightFormat::kNvfp4, kColumnBits, kBytes> : InOrder {
  static constexpr int kUnitParts = 1;
  static constexpr int kRowBytes = 128;
  static constexpr int kEntries = 4;
  static constexpr int kSlots = 8 >> kColumnBits;
  static constexpr int kPhases = 1 << kColumnBits;
  static constexpr int kLaneScales = kColumnBits == 0 ? 2 : kPhases;
  // Codes are code * 2^-126 and inputs carry 2^64, so that sums keep clear of both ends.
  static constexpr float kUnit = 0x1p62F;
  using Sums = BlockSums<kColumnBits>;
  __device__ static uint2 pack(const float4& x, int j) { return times_power<64>(InOrder::pack(x, j)); }
  struct Step {
    uint4 codes[2];
    const uint8_t* scales[2];  // those that the lane needs of row g, of row g + 8
  };

  __device__ static int input(int l, int e, int half) { return 16 * (2 * e + half) + 4 * l; }

  // Two E4M3 scales.
  __device__ static float2 two_scales(uint16_t bytes) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bytes));
    return __half22float2(*reinterpret_cast<const __half2*>(&halves));
  }
  static constexpr int kScaleWords = (kLaneScales + 3) / 4;
  // Which of a unit's scales lane l needs, from this one on.
  __device__ static int scale_offset(int l) { return kColumnBits == 0 ? 2 * l : kLaneScales * (l * kSlots / 4); }
  __device__ static void load_scales(const uint8_t* from, uint32_t (&out)[kScaleWords]) {
    if constexpr (kLaneScales == 2) {
      out[0] = *reinterpret_cast<const uint16_t*>(from);
    } else if constexpr (kLaneScales == 4) {
      out[0] = *reinterpret_cast<const uint32_t*>(from);
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      out[0] = both.x;
      out[1] = both.y;
    }
  }

  template <int kBlock>
  __device__ static void multiply_block(const uint4 (&codes)[2], const uint2& b, float (&sum)[4]) {
    constexpr int kPair = kBlock % 2 * 2;
    const uint32_t first = kBlock / 2 == 0   ? codes[0].x
                           : kBlock / 2 == 1 ? codes[0].y
                           : kBlock / 2 == 2 ? codes[0].z
                                             : codes[0].w;
    const uint32_t second = kBlock / 2 == 0   ? codes[1].x
                            : kBlock / 2 == 1 ? codes[1].y
                            : kBlock / 2 == 2 ? codes[1].z
                                              : codes[1].w;
    multiply_bf16(sum, e2m1_lane_pair<kPair>(first), e2m1_lane_pair<kPair>(second), e2m1_lane_pair<kPair + 1>(first),
                  e2m1_lane_pair<kPair + 1>(second), b.x, b.y);
  }

  template <int kPhase, int kSlot>
  __device__ static void multiply_slots(const uint4 (&codes)[2], const uint2* b, float (&sum)[4]) {
    if constexpr (kSlot < kSlots) {
      constexpr int kBlock = kSlot * kPhases + kPhase;
      multiply_block<kBlock>(codes, b[kBlock], sum);
      multiply_slots<kPhase, kSlot + 1>(codes, b, sum);
    }
  }

  // Blocks of pair kPair of a lane's.
  template <int kPair>
  __device__ static void multiply_pairs_of_blocks(const Step& w, const uint2* b,
                                                  const uint32_t (&words)[2][kScaleWords], bool first, Sums& to) {
    if constexpr (kPair < Sums::kPairs) {
      float sum[2][4] = {};
      multiply_slots<2 * kPair, 0>(w.codes, b, sum[0]);
      if constexpr (kColumnBits > 0) multiply_slots<2 * kPair + 1, 0>(w.codes, b, sum[1]);
      auto& all = to.sums[kPair];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 scales = two_scales(static_cast<uint16_t>(words[row][kPair / 2] >> 16 * (kPair % 2)));
        if constexpr (kColumnBits == 0) {
          add(sum[0][2 * row], scales.x, first, all[row]);
          add(sum[0][2 * row + 1], scales.y, false, all[row]);
        } else {
#pragma unroll
          for (int i = 2 * row; i < 2 * row + 2; ++i) {
            add(sum[0][i], scales.x, first, all[i]);
            add(sum[1][i], scales.y, false, all[i]);
          }
        }
      }
      multiply_pairs_of_blocks<kPair + 1>(w, b, words, first, to);
    }
  }
  __device__ static void add(float sum, float scale, bool first, float& to) {
    to = first ? sum * scale : fmaf(sum, scale, to);
  }
  // Eight columns: pair after pair of both units, so that few sums are under way.
  template <int kPair>
  __device__ static void sum_of_pair(const Step (&w)[2], const uint2* b, const uint32_t (&words)[2][2][kScaleWords],
                                     float (&to)[4]) {
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      float sum[2][4] = {};
      multiply_block<2 * kPair>(w[unit].codes, b[unit * kUnitProducts + 2 * kPair], sum[0]);
      multiply_block<2 * kPair + 1>(w[unit].codes, b[unit * kUnitProducts + 2 * kPair + 1], sum[1]);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 scales = two_scales(static_cast<uint16_t>(words[unit][row][kPair / 2] >> 16 * (kPair % 2)));
#pragma unroll
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
          add(sum[0][i], scales.x, unit == 0, to[i]);
          add(sum[1][i], scales.y, false, to[i]);
        }
      }
    }
  }
  __device__ static void multiply_tile(const Step (&w)[2], const uint2* b, Sums& to) {
    uint32_t words[2][2][kScaleWords];
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      load_scales(w[unit].scales[0], words[unit][0]);
      load_scales(w[unit].scales[1], words[unit][1]);
    }
    float low[4];
    float high[4];
    sum_of_pair<0>(w, b, words, low);
    sum_of_pair<1>(w, b, words, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) to.sums[0][i] = low[i] + high[i];
    sum_of_pair<2>(w, b, words, low);
    sum_of_pair<3>(w, b, words, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) to.sums[0][i] += low[i] + high[i];
  }
  __device__ static void multiply(const Step& w, const uint2* b, bool first, Sums& to) {
    uint32_t words[2][kScaleWords];
    load_scales(w.scales[0], words[0]);
    load_scales(w.scales[1], words[1]);
    multiply_pairs_of_blocks<0>(w, b, words, first, to);
  }
};

}  // namespace tandem::ops::cuda::dense
