// Scalar decoders of the weight formats on the device: the same numbers as on the host, bit for bit.
//
// decode_one gives code * scale of the block or group; finish_sum applies what scales a whole row or tensor.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "numeric/int_lanes.h"
#include "numeric/lane_tiles.h"
#include "numeric/nvfp4_lanes.h"
#include "ops/weight.h"

namespace tandem::ops::cuda::dense {

__device__ inline float bf16_bits_to_float(uint32_t bits) {
  return __uint_as_float(bits << 16);
}
__device__ inline float f16_bits_to_float(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
__device__ inline float round_to_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}
// The code's bits at their places in a half make code * 2^-8, subnormals too.
__device__ inline float e4m3_to_float(uint32_t code) {
  const uint32_t half = (code & 0x80) << 8 | (code & 0x7f) << 7;
  return f16_bits_to_float(static_cast<uint16_t>(half)) * 256.0F;
}
// Likewise code * 2^-14.
__device__ inline float e2m1_to_float(uint32_t code) {
  const uint32_t half = (code & 8) << 12 | (code & 7) << 9;
  return f16_bits_to_float(static_cast<uint16_t>(half)) * 16384.0F;
}

// Pair kPair of a word in lanes' order (numeric/nvfp4_lanes.h) as two BF16 numbers, each code * 2^-126: three pairs'
// bits only have to be shifted to their places; those of the last come from three places, and their halves change.
template <int kPair>
__device__ inline uint32_t e2m1_lane_pair(uint32_t word) {
  constexpr uint32_t kPlaces = 0x81c081c0;
  if constexpr (kPair < 3) {
    return word << 3 * kPair & kPlaces;
  } else {
    const uint64_t copies = static_cast<uint64_t>(word & 0x6c006c00) * (1U << 9 | 1U << 14 | 1U << 20);
    return (static_cast<uint32_t>(copies) | static_cast<uint32_t>(copies >> 32)) & kPlaces;
  }
}

__device__ inline float load_scale(const void* scales, ScaleType type, int64_t index) {
  if (type == ScaleType::kF32) return static_cast<const float*>(scales)[index];
  const uint16_t bits = static_cast<const uint16_t*>(scales)[index];
  return type == ScaleType::kBF16 ? bf16_bits_to_float(bits) : f16_bits_to_float(bits);
}

// What scales a whole row or tensor: fetched by itself where the sum is still to come.
struct RowScale {
  float scale = 1.0F;
  bool divides = false;
  __device__ RowScale(const Weight& w, int64_t row) {
    switch (w.format) {
      case WeightFormat::kFp8Row:
        scale = load_scale(w.scales, w.scale_type, row);
        break;
      case WeightFormat::kFp8Tensor:
        scale = w.scale;
        break;
      case WeightFormat::kNvfp4:
        scale = w.scale;
        divides = w.divides;
        break;
      default:
        break;
    }
  }
  __device__ float finish(float sum) const { return divides ? sum / scale : sum * scale; }
};
__device__ inline float finish_sum(const Weight& w, int64_t row, float sum) {
  return RowScale(w, row).finish(sum);
}

constexpr int int_bits(WeightFormat format) {
  return format == WeightFormat::kInt3 ? 3 : format == WeightFormat::kInt4 ? 4 : 8;
}

__device__ inline float fp8_block_scale(const Weight& w, int64_t row, int64_t input) {
  return load_scale(w.scales, w.scale_type, row / 128 * ((w.inputs + 127) / 128) + input / 128);
}

// Which of a matrix's units of 128 inputs, and of its scales, those of a row are.
__device__ inline int64_t unit_place(const Weight& w, int64_t row, int64_t unit) {
  const int64_t units = (w.inputs + 127) / 128;
  return w.lane_order ? numeric::lane_tile_place(row, unit, units) : row * units + unit;
}
__device__ inline int64_t nvfp4_scale_place(const Weight& w, int64_t row, int64_t block) {
  if (!w.lane_order) return row * (w.inputs / 16) + block;
  return unit_place(w, row, block / 8) * 8 + block % 8;
}
__device__ inline int64_t group_place(const Weight& w, int64_t row, int64_t group) {
  const int64_t groups = w.inputs / w.group;
  return w.lane_order ? numeric::lane_tile_place(row, group, groups) : row * groups + group;
}

template <WeightFormat kFormat>
__device__ inline float decode_one(const Weight& w, int64_t row, int64_t input) {
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  const int64_t at = row * w.inputs + input;
  if constexpr (kFormat == WeightFormat::kBF16) {
    return bf16_bits_to_float(static_cast<const uint16_t*>(w.data)[at]);
  } else if constexpr (kFormat == WeightFormat::kF32) {
    return static_cast<const float*>(w.data)[at];
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return f16_bits_to_float(static_cast<const uint16_t*>(w.data)[at]);
  } else if constexpr (kFormat == WeightFormat::kFp8Row || kFormat == WeightFormat::kFp8Tensor) {
    return e4m3_to_float(bytes[at]);
  } else if constexpr (kFormat == WeightFormat::kFp8Block) {
    return e4m3_to_float(bytes[at]) * fp8_block_scale(w, row, input);
  } else if constexpr (kFormat == WeightFormat::kNvfp4) {
    const uint32_t scale = static_cast<const uint8_t*>(w.scales)[nvfp4_scale_place(w, row, input / 16)];
    uint32_t code;
    if (w.lane_order) {
      const auto* unit = static_cast<const uint32_t*>(w.data) + unit_place(w, row, input / 128) * 16;
      code = numeric::lane_code(unit, static_cast<int>(input % 128));
    } else {
      code = bytes[at / 2] >> (input % 2 * 4) & 15;
    }
    return e2m1_to_float(code) * e4m3_to_float(scale);
  } else {
    constexpr int kBits = int_bits(kFormat);
    const int64_t unit = unit_place(w, row, input / 128);
    const auto inside = static_cast<int>(input % 128);
    const uint8_t* codes = bytes + unit * (16 * kBits);
    uint32_t code;
    if constexpr (kBits == 8) {
      code = codes[inside];
    } else if (w.lane_order) {
      code = numeric::int_lane_code<kBits>(reinterpret_cast<const uint32_t*>(codes), inside);
    } else if constexpr (kBits == 4) {
      code = reinterpret_cast<const uint32_t*>(codes)[inside % 16] >> (inside / 16 * 4) & 15;
    } else {
      const uint32_t word =
          reinterpret_cast<const uint16_t*>(codes)[inside % 16] | static_cast<uint32_t>(codes[32 + inside % 16]) << 16;
      code = word >> (inside / 16 * 3) & 7;
    }
    const float scale = load_scale(w.scales, w.scale_type, group_place(w, row, input / w.group));
    return static_cast<float>(static_cast<int>(code) - (1 << (kBits - 1))) * scale;
  }
}

// Four consecutive inputs from a multiple of four on, with wide loads. Rows must start at multiples of four inputs, and
// the data at one of 16 bytes.
template <WeightFormat kFormat>
__device__ inline void decode_four(const Weight& w, int64_t row, int64_t input, float (&out)[4]) {
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  const int64_t at = row * w.inputs + input;
  if constexpr (kFormat == WeightFormat::kF32) {
    const float4 four = *reinterpret_cast<const float4*>(static_cast<const float*>(w.data) + at);
    out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
  } else if constexpr (kFormat == WeightFormat::kBF16) {
    const uint2 four = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(w.data) + at);
    out[0] = bf16_bits_to_float(four.x), out[1] = __uint_as_float(four.x & 0xffff0000);
    out[2] = bf16_bits_to_float(four.y), out[3] = __uint_as_float(four.y & 0xffff0000);
  } else if constexpr (kFormat == WeightFormat::kF16) {
    const uint2 four = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(w.data) + at);
    out[0] = f16_bits_to_float(four.x & 0xffff), out[1] = f16_bits_to_float(four.x >> 16);
    out[2] = f16_bits_to_float(four.y & 0xffff), out[3] = f16_bits_to_float(four.y >> 16);
  } else if constexpr (kFormat == WeightFormat::kNvfp4) {
    const float scale = e4m3_to_float(static_cast<const uint8_t*>(w.scales)[nvfp4_scale_place(w, row, input / 16)]);
    if (w.lane_order) {
      const auto inside = static_cast<int>(input % 128);
      const int block = inside / 16;
      const uint32_t word =
          static_cast<const uint32_t*>(w.data)[unit_place(w, row, input / 128) * 16 + inside % 16 / 4 * 4 + block / 2];
      const uint32_t low = block % 2 == 0 ? e2m1_lane_pair<0>(word) : e2m1_lane_pair<2>(word);
      const uint32_t high = block % 2 == 0 ? e2m1_lane_pair<1>(word) : e2m1_lane_pair<3>(word);
      out[0] = bf16_bits_to_float(low), out[1] = __uint_as_float(low & 0xffff0000);
      out[2] = bf16_bits_to_float(high), out[3] = __uint_as_float(high & 0xffff0000);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = out[i] * 0x1p126F * scale;
    } else {
      const uint32_t codes = *reinterpret_cast<const uint16_t*>(bytes + at / 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = e2m1_to_float(codes >> (4 * i) & 15) * scale;
    }
  } else if constexpr (kFormat == WeightFormat::kInt3 || kFormat == WeightFormat::kInt4 ||
                       kFormat == WeightFormat::kInt8) {
    constexpr int kBits = int_bits(kFormat);
    const int64_t unit = unit_place(w, row, input / 128);
    const auto inside = static_cast<int>(input % 128);
    const uint8_t* codes = bytes + unit * (16 * kBits);
    const int lane = inside % 16;
    const int shift = inside / 16 * kBits;
    uint32_t code[4];
    if constexpr (kBits == 8) {
      const uint32_t four = *reinterpret_cast<const uint32_t*>(codes + inside);
#pragma unroll
      for (int i = 0; i < 4; ++i) code[i] = four >> (8 * i) & 0xff;
    } else if (w.lane_order) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        code[i] = numeric::int_lane_code<kBits>(reinterpret_cast<const uint32_t*>(codes), inside + i);
      }
    } else if constexpr (kBits == 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(codes + 4 * lane);
      code[0] = four.x >> shift & 15, code[1] = four.y >> shift & 15;
      code[2] = four.z >> shift & 15, code[3] = four.w >> shift & 15;
    } else {
      const uint2 low = *reinterpret_cast<const uint2*>(codes + 2 * lane);
      const uint32_t high = *reinterpret_cast<const uint32_t*>(codes + 32 + lane);
      code[0] = ((low.x & 0xffff) | (high & 0xff) << 16) >> shift & 7;
      code[1] = (low.x >> 16 | (high & 0xff00) << 8) >> shift & 7;
      code[2] = ((low.y & 0xffff) | (high & 0xff0000)) >> shift & 7;
      code[3] = (low.y >> 16 | (high >> 24) << 16) >> shift & 7;
    }
    const float scale = load_scale(w.scales, w.scale_type, group_place(w, row, input / w.group));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = static_cast<float>(static_cast<int>(code[i]) - (1 << (kBits - 1))) * scale;
    }
  } else {
    const uint32_t four = *reinterpret_cast<const uint32_t*>(bytes + at);
    const float scale = kFormat == WeightFormat::kFp8Block ? fp8_block_scale(w, row, input) : 1.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = e4m3_to_float(four >> (8 * i) & 0xff) * scale;
  }
}

// Up to four inputs; behind `end` there are zeros.
template <WeightFormat kFormat, bool kWide>
__device__ inline void decode_up_to_four(const Weight& w, int64_t row, int64_t input, int64_t end, float (&out)[4]) {
  if constexpr (kWide) {
    decode_four<kFormat>(w, row, input, out);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = input + i < end ? decode_one<kFormat>(w, row, input + i) : 0.0F;
  }
}

inline bool aligned_to(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}
// Whether decode_four may be used, from any multiple of four inputs on.
inline bool wide_loads_serve(const Weight& w) {
  return w.inputs % 4 == 0 && aligned_to(w.data, 16);
}

// Calls body with the format as the type of its argument.
template <WeightFormat kFormat>
struct FormatTag {
  static constexpr WeightFormat kValue = kFormat;
};
template <typename Body>
void with_format(WeightFormat format, const Body& body) {
  switch (format) {
    case WeightFormat::kBF16:
      return body(FormatTag<WeightFormat::kBF16>());
    case WeightFormat::kF32:
      return body(FormatTag<WeightFormat::kF32>());
    case WeightFormat::kF16:
      return body(FormatTag<WeightFormat::kF16>());
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp8Tensor:  // differ in finish_sum alone
      return body(FormatTag<WeightFormat::kFp8Row>());
    case WeightFormat::kFp8Block:
      return body(FormatTag<WeightFormat::kFp8Block>());
    case WeightFormat::kNvfp4:
      return body(FormatTag<WeightFormat::kNvfp4>());
    case WeightFormat::kInt3:
      return body(FormatTag<WeightFormat::kInt3>());
    case WeightFormat::kInt4:
      return body(FormatTag<WeightFormat::kInt4>());
    case WeightFormat::kInt8:
      return body(FormatTag<WeightFormat::kInt8>());
  }
}

}  // namespace tandem::ops::cuda::dense
