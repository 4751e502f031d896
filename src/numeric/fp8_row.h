// E4M3 codes [rows, inputs] with one multiplier to each row, scales [rows, 1] in BF16 or FP32 (compressed-tensors
// "channel" strategy).
//
// Exactness: as fp8_block.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "numeric/fp8_scale.h"
#include "numeric/fp8_tensor.h"

namespace tandem::numeric {

// `out` [rows, inputs]. Throws base::Error{kInternal} where a span has another size than the shape asks for.
inline void fp8_row_decode(std::span<const uint8_t> codes, Fp8Scales scales, int64_t rows, int64_t inputs,
                           std::span<float> out) {
  if (codes.size() != static_cast<size_t>(rows * inputs) || out.size() != codes.size() ||
      scales.size() != static_cast<size_t>(rows)) {
    base::internal_error("FP8", "a matrix [{}, {}] has {} codes, {} scales and {} values here", rows, inputs,
                         codes.size(), scales.size(), out.size());
  }
  const auto width = static_cast<size_t>(inputs);
  for (size_t row = 0; row < scales.size(); ++row) {
    fp8_tensor_decode(codes.subspan(row * width, width), scales[row], out.subspan(row * width, width));
  }
}

// Scales in FP32, amax of the row / 448.
inline void fp8_row_encode(std::span<const float> weights, int64_t rows, int64_t inputs, std::span<uint8_t> codes,
                           std::span<float> scales) {
  if (weights.size() != static_cast<size_t>(rows * inputs) || codes.size() != weights.size() ||
      scales.size() != static_cast<size_t>(rows)) {
    base::internal_error("FP8", "a matrix [{}, {}] has {} values, {} codes and {} scales here", rows, inputs,
                         weights.size(), codes.size(), scales.size());
  }
  const auto width = static_cast<size_t>(inputs);
  for (size_t row = 0; row < scales.size(); ++row) {
    scales[row] = fp8_tensor_encode(weights.subspan(row * width, width), codes.subspan(row * width, width));
  }
}

}  // namespace tandem::numeric
