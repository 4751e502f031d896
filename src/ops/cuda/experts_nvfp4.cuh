// The canonical NVFP4 product of a unit of 16 rows x 64 inputs on a warp: lane 8 b + j has block b of 16 inputs of rows
// 2 j and 2 j + 1. A lane reads two words of two rows at once, and lanes with odd b their second word first, so that no
// two of a half warp meet in a bank; the halves of odd blocks' inputs are exchanged too (Nvfp4Inputs).
//
// prmt looks four codes up at once, by the low three bits of each nibble; with the fourth, the sign, set it gives the
// sign of the entry instead, which is 0 here. So one look-up gives 4 * E2M1 of the positive codes, another -2 * E2M1 of
// all, and the two products with the activations add up to that of 2 * E2M1: no operation joins bytes.
#pragma once

#include "ops/cuda/experts_parts.cuh"

namespace tandem::ops::cuda::expert {

inline constexpr int kNvfp4UnitBytes = 576;
inline constexpr int kNvfp4UnitInputs = 64;

// value >> 16 by a multiplication, whose pipe has more room here than the shifts'.
__device__ inline uint32_t upper_half(uint32_t value) {
  uint32_t out;
  asm("{\n.reg .u64 wide;\nmul.wide.u32 wide, %1, 65536;\nmov.b64 {_, %0}, wide;\n}\n" : "=r"(out) : "r"(value));
  return out;
}

// What the look-ups choose from: 4 * E2M1 and -2 * E2M1 of the eight magnitudes, kept in registers.
struct Nvfp4Tables {
  uint32_t twice[2];
  uint32_t negated[2];

  __device__ static Nvfp4Tables make() {
    // From another lane, so that the compiler keeps them in each lane's registers; else it takes them for numbers that
    // all lanes share, and moves them before every look-up.
    const auto keep = [](uint32_t value) { return __shfl_xor_sync(kWholeWarp, value, 1); };
    const Nvfp4Tables tables{{keep(0x06040200U), keep(0x18100c08U)}, {keep(0xfdfeff00U), keep(0xf4f8fafcU)}};
    return tables;
  }
};

// Of eight codes, four a word.
struct Nvfp4Bytes {
  uint32_t twice_positive[2];
  uint32_t negated[2];
};
__device__ inline Nvfp4Bytes decode_nvfp4(const Nvfp4Tables& tables, uint32_t codes) {
  const uint32_t magnitudes = codes & 0x77777777U;
  const uint32_t upper_codes = upper_half(codes);
  const uint32_t upper_magnitudes = upper_half(magnitudes);
  return {{permute_bytes(tables.twice[0], tables.twice[1], codes),
           permute_bytes(tables.twice[0], tables.twice[1], upper_codes)},
          {permute_bytes(tables.negated[0], tables.negated[1], magnitudes),
           permute_bytes(tables.negated[0], tables.negated[1], upper_magnitudes)}};
}

// R of a lane's two rows over all units that it has seen.
template <int C>
struct Nvfp4Sums {
  int64_t rows[2][C];

  __device__ void clear() {
#pragma unroll
    for (int c = 0; c < C; ++c) rows[0][c] = rows[1][c] = 0;
  }
  // Both in shared memory; columns[c * stride] has the unit's inputs of column c.
  __device__ void add_unit(const Nvfp4Tables& tables, const std::byte* unit, int lane, const Nvfp4Inputs* columns,
                           int stride) {
    const int b = lane / 8;
    const int j = lane % 8;
    const int swap = b % 2;
    const auto* words = reinterpret_cast<const uint2*>(unit);  // two rows each
    const uint2 first = words[(2 * b + swap) * 8 + j];
    const uint2 second = words[(2 * b + 1 - swap) * 8 + j];
    const uint2 codes = words[64 + j];  // scales of the two rows
    const int turn = 20 - 8 * b;        // brings block b's code to bit 20
    const int scale[2] = {e4m3_times_512(__funnelshift_l(codes.x, codes.x, turn) & 0x07f00000U),
                          e4m3_times_512(__funnelshift_l(codes.y, codes.y, turn) & 0x07f00000U)};
    Nvfp4Bytes w[2][2];
    w[0][0] = decode_nvfp4(tables, first.x);
    w[0][1] = decode_nvfp4(tables, second.x);
    w[1][0] = decode_nvfp4(tables, first.y);
    w[1][1] = decode_nvfp4(tables, second.y);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const uint4 x = columns[c * stride].a[b];
      const int t = columns[c * stride].t[b];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        int dot = dot_signed(w[r][0].twice_positive[0], x.x, 0);
        dot = dot_signed(w[r][0].negated[0], x.x, dot);
        dot = dot_signed(w[r][0].twice_positive[1], x.y, dot);
        dot = dot_signed(w[r][0].negated[1], x.y, dot);
        dot = dot_signed(w[r][1].twice_positive[0], x.z, dot);
        dot = dot_signed(w[r][1].negated[0], x.z, dot);
        dot = dot_signed(w[r][1].twice_positive[1], x.w, dot);
        dot = dot_signed(w[r][1].negated[1], x.w, dot);
        rows[r][c] += static_cast<int64_t>(dot * scale[r]) * t;
      }
    }
  }
  // The sums over the four blocks of the lanes, in every lane.
  __device__ void gather() {
#pragma unroll
    for (int c = 0; c < C; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows[r][c] += __shfl_xor_sync(kWholeWarp, rows[r][c], 8);
        rows[r][c] += __shfl_xor_sync(kWholeWarp, rows[r][c], 16);
      }
    }
  }
};

// The place of the 16 inputs of a block among a column's: bytes of input i of the block, and T'.
__device__ inline int8_t& nvfp4_byte(Nvfp4Inputs* column, int64_t block, int i) {
  return reinterpret_cast<int8_t*>(&column[block / 4].a[block % 4])[i ^ static_cast<int>(block % 2 * 8)];
}
__device__ inline int32_t& nvfp4_scale(Nvfp4Inputs* column, int64_t block) {
  return column[block / 4].t[block % 4];
}

// numeric::nvfp4_scale_sum.
__device__ inline float nvfp4_scaled(int64_t sum, float weight_scale, float input_scale) {
  return __ll2float_rn(sum) * 0x1p-20F * (weight_scale * input_scale);
}

}  // namespace tandem::ops::cuda::expert
