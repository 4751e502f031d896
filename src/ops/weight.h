// A weight matrix of a dense product, in the formats that the kernels read. Apart from ops.h because kernels may
// include nothing of the standard library.
#pragma once

#include <cstdint>

namespace tandem::ops {

enum class WeightFormat : uint8_t {
  kBF16,  // [rows, inputs] row-major, as the next two
  kF32,
  kF16,
  kFp8Row,     // E4M3 codes [rows, inputs]; scales [rows], BF16 or FP32
  kFp8Tensor,  // E4M3 codes [rows, inputs]; `scale` alone
  kFp8Block,   // E4M3 codes [rows, inputs]; scales [ceil(rows/128), ceil(inputs/128)], BF16 or FP32
  kNvfp4,  // E2M1 codes [rows, inputs / 2], the even input in the low nibble; scales E4M3 [rows, inputs / 16]; `scale`
  kInt3,   // units of 128 inputs (numeric/int_group.h); scales [rows, inputs / group], BF16, F16 or FP32
  kInt4,
  kInt8,
};

enum class ScaleType : uint8_t { kBF16, kF16, kF32 };

// A weight matrix [rows, inputs]. Where `scales` or `scale` are named above, a weight is code * its scale of `scales` *
// `scale`; with `divides` the last multiplication is a division (compressed-tensors' NVFP4).
struct Weight {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::kBF16;
  int64_t rows = 0;
  int64_t inputs = 0;
  const void* scales = nullptr;  // readable up to a whole word of four bytes
  ScaleType scale_type = ScaleType::kF32;
  int64_t group = 0;  // integers: inputs to a scale, a multiple of 16 that divides the inputs
  float scale = 1.0F;
  bool divides = false;
  // NVFP4 and integers of 3 and 4 bits on a card: codes as in numeric/nvfp4_lanes.h and numeric/int_lanes.h, units and
  // scales as in numeric/lane_tiles.h.
  bool lane_order = false;
};

}  // namespace tandem::ops
