// What the kernel for few columns (dense_few.cu) knows of each format: how codes and scales lie in a slot of shared
// memory, which inputs they are multiplied with, and how.
//
// A slot has 16 rows of two parts each; a part is 64 bytes of a row's codes (48 of three bits), which make 2, 4 or 8 of
// the tensor cores' products (dense_mma.cuh). Lane 4 g + l has 16 of these bytes of row g and of row g + 8.
#pragma once

#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_few_shape.cuh"
#include "ops/cuda/dense_mma.cuh"

namespace tandem::ops::cuda::dense {

// What a lane reads of its two rows at once: its share of a part, and the bits of the part's scales.
template <int kScales>
struct Part {
  uint4 codes[2];
  uint32_t scales[2][kScales > 0 ? kScales : 1];
};

// A warp's sums of a tile, as the tensor cores give them: of rows g and g + 8, columns 2 l and 2 l + 1, for each of the
// warp's units.
struct UnitSums {
  float units[kWarpUnits][4] = {};

  // To [16 rows, columns]; `bits` is the logarithm of the columns.
  __device__ void store(int lane, int bits, float* to) const {
    const int l = lane % 4;
    if (2 * l >= 1 << bits) return;
    float* low = to + (lane / 4 << bits) + 2 * l;
    float* high = low + (8 << bits);
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = units[0][i] + units[1][i];
    if (bits == 0) {
      *low = sums[0];
      *high = sums[2];
    } else {
      *reinterpret_cast<float2*>(low) = make_float2(sums[0], sums[1]);
      *reinterpret_cast<float2*>(high) = make_float2(sums[2], sums[3]);
    }
  }
};

// sum += scale of the row * part.
__device__ inline void add_scaled(float (&sum)[4], const float (&part)[4], float scale_a, float scale_b) {
  sum[0] = fmaf(part[0], scale_a, sum[0]);
  sum[1] = fmaf(part[1], scale_a, sum[1]);
  sum[2] = fmaf(part[2], scale_b, sum[2]);
  sum[3] = fmaf(part[3], scale_b, sum[3]);
}
template <int kBytes>
__device__ inline float scale_of(uint32_t bits, ScaleType type) {
  if constexpr (kBytes == 4) return __uint_as_float(bits);
  const float half = f16_bits_to_float(static_cast<uint16_t>(bits));
  return type == ScaleType::kF16 ? half : __uint_as_float(bits << 16);
}

// Of each format: how many parts a unit has; the bytes of a row and the scales of a row in a slot (`kEntries` words of
// four bytes; NVFP4 has its own); how a part is multiplied with inputs as operands `b` of the tensor cores; and which
// inputs those are: `input` is the first of four of a unit that lane l needs for product 2 e + half, and `pack` makes
// the operands of products 2 e and 2 e + 1 of the four and four. kScales: scales of groups in a unit; kBytes: of one.
template <WeightFormat kFormat, int kScales, int kBytes>
struct Format;

// The lanes of the tensor cores' eight columns: of so many columns as the logarithm says, each has this many of them,
// its slots. Formats that want no more than a slot a column have one whatever the columns.
struct OneSlot {
  static constexpr int kSlots = 1;
  static constexpr float kFactor = 1.0F;  // of inputs
  static constexpr float kUnit = 1.0F;    // of sums
  using Sums = UnitSums;
};

// Four inputs as the operands b0 and b1, in their order, or the even ones and the odd ones.
struct InOrder : OneSlot {
  __device__ static void pack(const float (&x)[8], uint2 (&b)[2]) {
    b[0] = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    b[1] = make_uint2(pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
};
struct EvenAndOdd : OneSlot {
  __device__ static void pack(const float (&x)[8], uint2 (&b)[2]) {
    b[0] = make_uint2(pack_bf16(x[0], x[2]), pack_bf16(x[1], x[3]));
    b[1] = make_uint2(pack_bf16(x[4], x[6]), pack_bf16(x[5], x[7]));
  }
};

template <int kBytes>
struct Format<WeightFormat::kBF16, 0, kBytes> : InOrder {
  static constexpr int kUnitParts = 4;
  static constexpr int kRowBytes = 128;
  static constexpr int kEntries = 0;
  using Step = Part<0>;
  __device__ static int input(int l, int e, int half) { return 8 * (4 * e + l) + 4 * half; }
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, float (&sum)[4]) {
    mma(sum, w.codes[0].x, w.codes[1].x, w.codes[0].y, w.codes[1].y, b[0].x, b[0].y);
    mma(sum, w.codes[0].z, w.codes[1].z, w.codes[0].w, w.codes[1].w, b[1].x, b[1].y);
  }
};

// Codes of a byte, 64 inputs a part: the even bytes of a word make one pair, the odd ones the other.
struct Bytes : EvenAndOdd {
  static constexpr int kUnitParts = 2;
  static constexpr int kRowBytes = 128;
  __device__ static int input(int l, int e, int half) { return 8 * (e / 2 * 8 + 2 * l + e % 2) + 4 * half; }
};
template <typename Decode>
__device__ inline void multiply_bytes(const uint4 (&codes)[2], const uint2* b, float (&sum)[4], const Decode& decode) {
  const uint32_t first[4] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w};
  const uint32_t second[4] = {codes[1].x, codes[1].y, codes[1].z, codes[1].w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t even[2];
    uint32_t odd[2];
    decode(first[i], even[0], odd[0]);
    decode(second[i], even[1], odd[1]);
    mma(sum, even[0], even[1], odd[0], odd[1], b[i].x, b[i].y);
  }
}
struct DecodeE4m3 {
  __device__ void operator()(uint32_t word, uint32_t& even, uint32_t& odd) const {
    even = e4m3_pair(word << 8);
    odd = e4m3_pair(word);
  }
};
struct DecodeInt8 {
  __device__ void operator()(uint32_t word, uint32_t& even, uint32_t& odd) const {
    even = int8_pair(word);
    odd = int8_pair(word >> 8);
  }
};

template <int kBytes>
struct Format<WeightFormat::kFp8Row, 0, kBytes> : Bytes {
  static constexpr int kEntries = 0;
  using Step = Part<0>;
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, float (&sum)[4]) {
    multiply_bytes(w.codes, b, sum, DecodeE4m3());
  }
};

// One scale to all rows of a tile and the inputs of a unit.
template <int kBytes>
struct Format<WeightFormat::kFp8Block, 1, kBytes> : Bytes {
  static constexpr int kEntries = 1;
  static constexpr int kPartEntries = 0;  // a slot's parts have the same
  using Step = Part<1>;
  __device__ static int group_of(const Arguments&, int unit, int) { return unit; }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, float (&sum)[4]) {
    float part[4] = {};
    multiply_bytes(w.codes, b, part, DecodeE4m3());
    const float scale = scale_of<kBytes>(w.scales[0][0], p.product.w.scale_type);
    add_scaled(sum, part, scale, scale);
  }
};

// Eight bits; a part lies within a group.
template <int kBytes>
struct Format<WeightFormat::kInt8, 1, kBytes> : Bytes {
  static constexpr int kEntries = 2;
  static constexpr int kPartEntries = 1;
  using Step = Part<1>;
  __device__ static int group_of(const Arguments& p, int unit, int entry) {
    return (2 * unit + entry) >> p.group_shift;
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, float (&sum)[4]) {
    float part[4] = {};
    multiply_bytes(w.codes, b, part, DecodeInt8());
    const ScaleType type = p.product.w.scale_type;
    add_scaled(sum, part, scale_of<kBytes>(w.scales[0][0], type), scale_of<kBytes>(w.scales[1][0], type));
  }
};

// Codes of 3 and 4 bits: product j of a unit takes its inputs 16 j to 16 j + 15, so that groups end with products. A
// lane has four words of a unit (numeric/int_group.h); `Pairs` gives code j of the first two, or of the last two.
template <typename Pairs, int kScales, int kBytes>
struct Words : InOrder {
  static constexpr int kUnitParts = 1;
  static constexpr int kRowBytes = 32 * Pairs::kBits;
  static constexpr int kEntries = 2 * kScales;
  static constexpr int kPartEntries = kScales;
  using Step = Part<kScales>;
  __device__ static int input(int l, int e, int half) { return 16 * (2 * e + half) + 4 * l; }
  __device__ static int group_of(const Arguments& p, int unit, int entry) {
    return (unit * kScales + entry) >> p.group_shift;
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, float (&sum)[4]) {
    constexpr int kProducts = kUnitProducts / kScales;
    const Pairs first(w.codes[0]);
    const Pairs second(w.codes[1]);
    const ScaleType type = p.product.w.scale_type;
#pragma unroll
    for (int group = 0; group < kScales; ++group) {
      float part[4] = {};
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        const int j = group * kProducts + i;
        mma(part, first.get(0, j), second.get(0, j), first.get(1, j), second.get(1, j), b[j].x, b[j].y);
      }
      add_scaled(sum, part, scale_of<kBytes>(w.scales[0][group], type), scale_of<kBytes>(w.scales[1][group], type));
    }
  }
};

template <int kScales, int kBytes>
struct Format<WeightFormat::kInt4, kScales, kBytes> : Words<Int4Pairs, kScales, kBytes> {};
template <int kScales, int kBytes>
struct Format<WeightFormat::kInt3, kScales, kBytes> : Words<Int3Pairs, kScales, kBytes> {};

}  // namespace tandem::ops::cuda::dense
