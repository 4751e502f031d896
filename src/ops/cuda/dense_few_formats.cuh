// What the kernels for few columns (dense_few.cu) know of each format: how codes and scales lie in a slot of shared
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

  // In [16 rows, columns], the first float of those that the lane stores; `bits` is the logarithm of the columns.
  __device__ static int first(int lane, int bits) { return (lane / 4 << bits) + 2 * (lane % 4); }
  // `low` is the place of that.
  __device__ void store(int lane, int bits, float* low) const {
    if (2 * (lane % 4) >= 1 << bits) return;
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
// inputs those are: `input` is the first of four of a unit that lane l needs for product 2 e + half, a multiple of l
// more than lane 0 needs, and `pack` makes the operands of these four, times what factor they have in product j.
// `Offsets` is what else of the inputs the products need, made of all operands of a warp by `prepare`. kScales: scales
// of groups in a unit; kBytes: of one.
template <WeightFormat kFormat, int kScales, int kBytes>
struct Format;

// The lanes of the tensor cores' eight columns: of so many columns as the logarithm says, each has this many of them,
// its slots. Formats that want no more than a slot a column have one whatever the columns.
struct OneSlot {
  static constexpr int kSlots = 1;
  static constexpr float kUnit = 1.0F;  // of sums
  using Sums = UnitSums;
  struct Offsets {};
  __device__ static void prepare(const uint2*, Offsets&) {}
};
// Four inputs as the operands b0 and b1, in their order, or the even ones and the odd ones.
struct InOrder : OneSlot {
  __device__ static uint2 pack(const float4& x, int) { return make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)); }
};
struct EvenAndOdd : OneSlot {
  __device__ static uint2 pack(const float4& x, int) { return make_uint2(pack_bf16(x.x, x.z), pack_bf16(x.y, x.w)); }
};
template <int kExponent>
__device__ inline uint2 times_power(const uint2& operands) {
  return make_uint2(multiply_pairs(operands.x, power_pair(kExponent)),
                    multiply_pairs(operands.y, power_pair(kExponent)));
}

template <int kBytes>
struct Format<WeightFormat::kBF16, 0, kBytes> : InOrder {
  static constexpr int kUnitParts = 4;
  static constexpr int kRowBytes = 128;
  static constexpr int kEntries = 0;
  using Step = Part<0>;
  __device__ static int input(int l, int e, int half) { return 8 * (4 * e + l) + 4 * half; }
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, const Offsets&, int,
                                  float (&sum)[4]) {
    multiply_bf16(sum, w.codes[0].x, w.codes[1].x, w.codes[0].y, w.codes[1].y, b[0].x, b[0].y);
    multiply_bf16(sum, w.codes[0].z, w.codes[1].z, w.codes[0].w, w.codes[1].w, b[1].x, b[1].y);
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
    multiply_bf16(sum, even[0], even[1], odd[0], odd[1], b[i].x, b[i].y);
  }
}
struct DecodeE4m3 {
  __device__ void operator()(uint32_t word, uint32_t& even, uint32_t& odd) const {
    even = e4m3_small_pair_below(word);
    odd = e4m3_small_pair(word);
  }
};
// Codes are code * 2^-120 and inputs carry 2^64, so that sums keep clear of both ends.
struct SmallBytes : Bytes {
  static constexpr float kUnit = 0x1p56F;
  __device__ static uint2 pack(const float4& x, int j) { return times_power<64>(Bytes::pack(x, j)); }
};
struct DecodeInt8 {
  __device__ void operator()(uint32_t word, uint32_t& even, uint32_t& odd) const {
    even = int8_small_even(word);
    odd = int8_small_odd(word);
  }
};

template <int kBytes>
struct Format<WeightFormat::kFp8Row, 0, kBytes> : SmallBytes {
  using Offsets = SmallBytes::Offsets;
  static constexpr int kEntries = 0;
  using Step = Part<0>;
  __device__ static void multiply(const Arguments&, const Step& w, const uint2* b, const Offsets&, int,
                                  float (&sum)[4]) {
    multiply_bytes(w.codes, b, sum, DecodeE4m3());
  }
};

// One scale to all rows of a tile and the inputs of a unit.
template <int kBytes>
struct Format<WeightFormat::kFp8Block, 1, kBytes> : SmallBytes {
  using Offsets = SmallBytes::Offsets;
  static constexpr int kEntries = 1;
  static constexpr int kPartEntries = 0;  // a slot's parts have the same
  using Step = Part<1>;
  __device__ static int group_of(const Arguments&, int unit, int) { return unit; }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, const Offsets&, int,
                                  float (&sum)[4]) {
    float part[4] = {};
    multiply_bytes(w.codes, b, part, DecodeE4m3());
    const float scale = scale_of<kBytes>(w.scales[0][0], p.product.w.scale_type);
    add_scaled(sum, part, scale, scale);
  }
};

// Eight bits; a part lies within a group.
template <int kBytes>
struct Format<WeightFormat::kInt8, 1, kBytes> : Bytes {
  static constexpr float kUnit = 0x1p63F;
  using Offsets = Bytes::Offsets;
  __device__ static uint2 pack(const float4& x, int j) { return times_power<70>(Bytes::pack(x, j)); }
  static constexpr int kEntries = 2;
  static constexpr int kPartEntries = 1;
  using Step = Part<1>;
  __device__ static int group_of(const Arguments& p, int unit, int entry) {
    return (2 * unit + entry) >> p.group_shift;
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, const Offsets&, int,
                                  float (&sum)[4]) {
    float part[4] = {};
    multiply_bytes(w.codes, b, part, DecodeInt8());
    const ScaleType type = p.product.w.scale_type;
    add_scaled(sum, part, scale_of<kBytes>(w.scales[0][0], type), scale_of<kBytes>(w.scales[1][0], type));
  }
};

// Codes of 3 and 4 bits in lanes' order (numeric/int_lanes.h): product j of a unit takes its inputs 16 j to 16 j + 15,
// so that groups end with products. What is multiplied is 2 v + 1 of each code v; of a whole unit the sum of the
// inputs, which that is too much, is taken off before, else one is subtracted from each.
template <int kBits, int kScales, int kBytes>
struct LaneInts : InOrder {
  static constexpr int kUnitParts = 1;
  static constexpr int kRowBytes = 32 * kBits;
  static constexpr int kEntries = 2 * kScales;
  static constexpr int kPartEntries = kScales;
  // Inputs carry 2^(70 - place), so that all products are 2^-64 (2 v + 1) x.
  static constexpr float kUnit = 0x1p63F;
  static constexpr bool kOffset = kScales == 1;
  using Step = Part<kScales>;
  struct Offsets {
    float units[kOffset ? kWarpUnits : 1][2];  // of the lane's two columns: all rows have the same
  };

  __device__ static int input(int l, int e, int half) { return 16 * (2 * e + half) + 4 * l; }
  __device__ static int group_of(const Arguments& p, int unit, int entry) {
    return (unit * kScales + entry) >> p.group_shift;
  }
  __device__ static uint2 pack(const float4& x, int j) {
    const uint2 b = InOrder::pack(x, j);
    return make_uint2(multiply_pairs(b.x, power_pair(70 - numeric::int_place<kBits>(2 * j))),
                      multiply_pairs(b.y, power_pair(70 - numeric::int_place<kBits>(2 * j + 1))));
  }

  template <int kProduct>
  __device__ static void add_negative(const uint2* b, float (&sum)[4]) {
    if constexpr (kProduct < kUnitProducts) {
      constexpr uint32_t kFirst = bf16_pair(0x8000) | kIntLaneOnes<kBits, 2 * kProduct>;
      constexpr uint32_t kSecond = bf16_pair(0x8000) | kIntLaneOnes<kBits, 2 * kProduct + 1>;
      multiply_bf16(sum, kFirst, kFirst, kSecond, kSecond, b[kProduct].x, b[kProduct].y);
      add_negative<kProduct + 1>(b, sum);
    }
  }
  __device__ static void prepare(const uint2* inputs, Offsets& offsets) {
    if constexpr (kOffset) {
#pragma unroll
      for (int i = 0; i < kWarpUnits; ++i) {
        float sum[4] = {};
        add_negative<0>(inputs + i * kUnitProducts, sum);
#pragma unroll
        for (int j = 0; j < 2; ++j) offsets.units[i][j] = sum[j];
      }
    }
  }

  template <int kPair>
  __device__ static uint32_t pair(const uint4& words) {
    const uint32_t odd = int_lane_pair<kBits, kPair>(words);
    return kOffset ? odd : subtract_pairs(odd, kIntLaneOnes<kBits, kPair>);
  }
  template <int kProduct, int kEnd>
  __device__ static void multiply_products(const Step& w, const uint2* b, const float (&onto)[4], float (&sum)[4]) {
    if constexpr (kProduct < kEnd) {
      mma_onto(sum, onto, pair<2 * kProduct>(w.codes[0]), pair<2 * kProduct>(w.codes[1]),
               pair<2 * kProduct + 1>(w.codes[0]), pair<2 * kProduct + 1>(w.codes[1]), b[kProduct].x, b[kProduct].y);
      multiply_products<kProduct + 1, kEnd>(w, b, sum, sum);
    }
  }
  template <int kGroup>
  __device__ static void multiply_groups(const Arguments& p, const Step& w, const uint2* b, const float (&onto)[4],
                                         float (&sum)[4]) {
    if constexpr (kGroup < kScales) {
      constexpr int kProducts = kUnitProducts / kScales;
      float part[4];
      multiply_products<kGroup * kProducts, (kGroup + 1) * kProducts>(w, b, onto, part);
      const ScaleType type = p.product.w.scale_type;
      add_scaled(sum, part, scale_of<kBytes>(w.scales[0][kGroup], type), scale_of<kBytes>(w.scales[1][kGroup], type));
      multiply_groups<kGroup + 1>(p, w, b, onto, sum);
    }
  }
  __device__ static void multiply(const Arguments& p, const Step& w, const uint2* b, const Offsets& offsets, int unit,
                                  float (&sum)[4]) {
    if constexpr (kOffset) {
      const float(&own)[2] = offsets.units[unit];
      const float onto[4] = {own[0], own[1], own[0], own[1]};
      multiply_groups<0>(p, w, b, onto, sum);
    } else {
      const float zeros[4] = {};
      multiply_groups<0>(p, w, b, zeros, sum);
    }
  }
};

template <int kScales, int kBytes>
struct Format<WeightFormat::kInt4, kScales, kBytes> : LaneInts<4, kScales, kBytes> {};
template <int kScales, int kBytes>
struct Format<WeightFormat::kInt3, kScales, kBytes> : LaneInts<3, kScales, kBytes> {};

}  // namespace tandem::ops::cuda::dense
