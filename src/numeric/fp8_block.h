// E4M3 codes [rows, inputs] with one multiplier to each block of 128 x 128, scales [ceil(rows/128), ceil(inputs/128)]
// row-major in BF16 or FP32 (Qwen's FP8 publications, the MTP experts of the mixed-precision one).
//
// Exactness: code * BF16 scale has at most 12 significant bits and is exact unless it is subnormal; with an FP32 scale
// it is rounded once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"
#include "numeric/fp8_scale.h"

namespace tandem::numeric {

inline constexpr int64_t kFp8BlockSide = 128;

// Blocks along a dimension.
constexpr int64_t fp8_blocks(int64_t extent) {
  return base::ceil_div(extent, kFp8BlockSide);
}

// `out` [rows, inputs]. Throws base::Error{kInternal} where a span has another size than the shape asks for.
inline void fp8_block_decode(std::span<const uint8_t> codes, Fp8Scales scales, int64_t rows, int64_t inputs,
                             std::span<float> out) {
  if (codes.size() != static_cast<size_t>(rows * inputs) || out.size() != codes.size() ||
      scales.size() != static_cast<size_t>(fp8_blocks(rows) * fp8_blocks(inputs))) {
    base::internal_error("FP8", "a matrix [{}, {}] has {} codes, {} scales and {} values here", rows, inputs,
                         codes.size(), scales.size(), out.size());
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t input = 0; input < inputs; ++input) {
      const auto at = static_cast<size_t>(row * inputs + input);
      const auto block = static_cast<size_t>(row / kFp8BlockSide * fp8_blocks(inputs) + input / kFp8BlockSide);
      out[at] = e4m3_to_float(codes[at]) * scales[block];
    }
  }
}

struct Fp8BlockMatrix {
  std::vector<uint8_t> codes;    // [rows, inputs]
  std::vector<uint16_t> scales;  // [ceil(rows/128), ceil(inputs/128)] BF16
};

// scale = BF16(amax / 448), 1 for a block of zeros; code = E4M3 of w / scale.
inline Fp8BlockMatrix fp8_block_encode(std::span<const float> weights, int64_t rows, int64_t inputs) {
  if (weights.size() != static_cast<size_t>(rows * inputs)) {
    base::internal_error("FP8", "{} values do not fill a matrix [{}, {}]", weights.size(), rows, inputs);
  }
  Fp8BlockMatrix out;
  const auto block_of = [inputs](int64_t row, int64_t input) {
    return static_cast<size_t>(row / kFp8BlockSide * fp8_blocks(inputs) + input / kFp8BlockSide);
  };
  std::vector<float> amax(static_cast<size_t>(fp8_blocks(rows) * fp8_blocks(inputs)));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t input = 0; input < inputs; ++input) {
      float& largest = amax[block_of(row, input)];
      largest = std::max(largest, std::fabs(weights[static_cast<size_t>(row * inputs + input)]));
    }
  }
  for (const float largest : amax) out.scales.push_back(bf16_from_float(largest > 0 ? largest / kE4m3Max : 1.0f));
  out.codes.resize(weights.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t input = 0; input < inputs; ++input) {
      const auto at = static_cast<size_t>(row * inputs + input);
      out.codes[at] = e4m3_from_float(weights[at] / bf16_to_float(out.scales[block_of(row, input)]));
    }
  }
  return out;
}

}  // namespace tandem::numeric
