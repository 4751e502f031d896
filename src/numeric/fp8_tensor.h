// E4M3 codes of any shape with one multiplier to the tensor, BF16 or FP32 (ModelOpt FP8; the n-gram table).
//
// Exactness: as fp8_block.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "numeric/e4m3.h"

namespace tandem::numeric {

inline void fp8_tensor_decode(std::span<const uint8_t> codes, float scale, std::span<float> out) {
  if (out.size() != codes.size()) {
    base::internal_error("FP8", "{} codes do not fill {} values", codes.size(), out.size());
  }
  for (size_t i = 0; i < codes.size(); ++i) out[i] = e4m3_to_float(codes[i]) * scale;
}

// Returns the scale, amax / 448 (1 for a tensor of zeros).
inline float fp8_tensor_encode(std::span<const float> values, std::span<uint8_t> codes) {
  if (codes.size() != values.size()) {
    base::internal_error("FP8", "{} values do not fill {} codes", values.size(), codes.size());
  }
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  const float scale = amax > 0 ? amax / kE4m3Max : 1.0f;
  for (size_t i = 0; i < values.size(); ++i) codes[i] = e4m3_from_float(values[i] / scale);
  return scale;
}

}  // namespace tandem::numeric
