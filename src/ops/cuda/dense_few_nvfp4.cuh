// NVFP4 for the kernel for few columns (dense_few.cu): matrices in lanes' order (numeric/nvfp4_lanes.h).
//
// A product of the tensor cores has the 16 inputs of one block, so that a block's scale can wait until its sum is
// there: once a row and column, not once a weight. Of fewer than eight columns each has several of the tensor cores'
// eight, its slots, one for a block in turn: a column's inputs stand in the slot of their block and are zeros in the
// others. Sums of blocks stay apart to the end of a tile and are added in one order whatever the columns are.
#pragma once

#include "ops/cuda/dense_few_formats.cuh"

namespace tandem::ops::cuda::dense {

// Sums over a unit's blocks, separate for each of the eight, of 1 << kColumnBits columns: block
// phase * kSlots + slot of `sums[phase]`.
template <int kColumnBits>
struct BlockSums {
  static constexpr int kPhases = 1 << kColumnBits;
  static constexpr int kSlots = 8 >> kColumnBits;
  float sums[kPhases][4] = {};

  // To [16 rows, columns], each ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), whichever lanes and phases have them.
  __device__ void store(int lane, int, float* to) const {
    const int g = lane / 4;
    const int l = lane % 4;
    if constexpr (kSlots == 1) {
      float total[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[i] = ((sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i])) +
                   ((sums[4][i] + sums[5][i]) + (sums[6][i] + sums[7][i]));
      }
      *reinterpret_cast<float2*>(to + g * 8 + 2 * l) = make_float2(total[0], total[1]);
      *reinterpret_cast<float2*>(to + (g + 8) * 8 + 2 * l) = make_float2(total[2], total[3]);
    } else {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float pairs[kPhases];
#pragma unroll
        for (int i = 0; i < kPhases; ++i) {
          pairs[i] = sums[i][2 * row] + sums[i][2 * row + 1];
          if constexpr (kSlots >= 4) pairs[i] += __shfl_xor_sync(0xffffffffU, pairs[i], 1);
          if constexpr (kSlots == 8) pairs[i] += __shfl_xor_sync(0xffffffffU, pairs[i], 2);
        }
        float total = pairs[0];
        if constexpr (kPhases == 2) total = pairs[0] + pairs[1];
        if constexpr (kPhases == 4) total = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
        constexpr int kColumnLanes = kSlots / 2;
        if (l % kColumnLanes == 0) to[(g + 8 * row << kColumnBits) + l / kColumnLanes] = total;
      }
    }
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
  // Codes are code * 2^-126, scales scale * 2^-120, and inputs carry 2^64 so that sums keep clear of both ends.
  static constexpr float kFactor = 0x1p64F;
  static constexpr float kUnit = 0x1p62F;
  using Sums = BlockSums<kColumnBits>;
  struct Step {
    uint4 codes[2];
    const uint8_t* scales;  // of row g; those of row g + 8 are 64 bytes behind
  };

  __device__ static int input(int l, int e, int half) { return 16 * (2 * e + half) + 4 * l; }

  // Of a block, times 2^120 so that no product loses bits. Scales are positive.
  __device__ static float scale_of_byte(uint32_t bits) { return __uint_as_float(bits << 20) * 0x1p120F; }

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
    mma(sum, e2m1_lane_pair<kPair>(first), e2m1_lane_pair<kPair>(second), e2m1_lane_pair<kPair + 1>(first),
        e2m1_lane_pair<kPair + 1>(second), b.x, b.y);
  }

  template <int kPhase, int kSlot>
  __device__ static void multiply_slots(const uint4 (&codes)[2], const uint2* b, float (&sum)[4]) {
    if constexpr (kSlot < kSlots) {
      constexpr int kBlock = kPhase * kSlots + kSlot;
      multiply_block<kBlock>(codes, b[kBlock], sum);
      multiply_slots<kPhase, kSlot + 1>(codes, b, sum);
    }
  }

  template <int kPhase>
  __device__ static void multiply_phases(const Step& w, const uint2* b, int l, bool first, Sums& to) {
    if constexpr (kPhase < kPhases) {
      float sum[4] = {};
      multiply_slots<kPhase, 0>(w.codes, b, sum);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint8_t* scales = w.scales + 64 * row + kPhase * kSlots;
        float scale[2];
        if constexpr (kSlots == 1) {
          scale[0] = scale[1] = scale_of_byte(*scales);
        } else {
          const uint32_t two = *reinterpret_cast<const uint16_t*>(scales + 2 * l % kSlots);
          scale[0] = scale_of_byte(two & 0xff);
          scale[1] = scale_of_byte(two >> 8);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& all = to.sums[kPhase][2 * row + i];
          all = first ? sum[2 * row + i] * scale[i] : fmaf(sum[2 * row + i], scale[i], all);
        }
      }
      multiply_phases<kPhase + 1>(w, b, l, first, to);
    }
  }
};

}  // namespace tandem::ops::cuda::dense
