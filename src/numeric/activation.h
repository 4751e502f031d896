// The activation quantiser of the canonical expert arithmetic (docs/architecture.md, "Numbers"). It is the definition:
// every other implementation must give the same integers.
//
// For each block of 16 inputs of one column, with the projection's own input_scale `is`, in IEEE FP32 rounded to
// nearest even, in this order of operations:
//   T    = E4M3(min(amax / (6 * is), 448))
//   code = E2M1(x / (T * is)), 0 where T is zero
// The result is held as integers: A = 2 * E2M1(code) and T' = 512 * E4M3. Where the tensor has no input_scale, each
// column takes dynamic_input_scale.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/nvfp4.h"

namespace tandem::numeric {

inline constexpr int64_t kActivationBlock = 16;

// One block: 16 values to 16 A; returns T'. False in `finite` (never set to true) where a value is not finite: then A
// and T' are 0.
inline int32_t quantise_activation_block(const float* x, float input_scale, int8_t* a, bool& finite) {
  uint32_t largest = 0;  // magnitudes order as their bits do
  for (int i = 0; i < kActivationBlock; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool usable = largest < 0x7F800000u;
  finite = finite && usable;
  uint8_t scale = 0;
  if (usable) {
    const float ratio = std::bit_cast<float>(largest) / (6.0f * input_scale);
    scale = e4m3_from_float(ratio < kE4m3Max ? ratio : kE4m3Max);
  }
  const float step = e4m3_to_float(scale) * input_scale;
  for (int i = 0; i < kActivationBlock; ++i) {
    a[i] = scale == 0 ? int8_t{0} : kE2m1Doubled[e2m1_from_float(x[i] / step)];
  }
  return e4m3_times_512(scale);
}

// The input scale of a column of a tensor that has none: amax / 2688, so that the column's largest block has the
// largest T. 1 where that is below kNvfp4LeastScale, and all T are zero then; kNvfp4GreatestScale where it is above
// that. Always a valid multiplier, also where a value is not finite, which the quantiser reports.
inline float dynamic_input_scale(std::span<const float> x) {
  uint32_t largest = 0;
  for (const float value : x) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = std::bit_cast<float>(largest) / kNvfp4Range;
  if (!(scale >= kNvfp4LeastScale)) return 1.0f;
  return scale < kNvfp4GreatestScale ? scale : kNvfp4GreatestScale;
}

// One column: x [inputs], a [inputs], t [inputs / 16] with T' <= 229,376. `input_scale` must be a valid multiplier
// (Nvfp4Scale::valid). Returns false, the column's fault, where a value is not finite.
[[nodiscard]] inline bool quantise_activations(std::span<const float> x, float input_scale, std::span<int8_t> a,
                                               std::span<int32_t> t) {
  bool finite = true;
  for (size_t block = 0; block < t.size(); ++block) {
    t[block] = quantise_activation_block(&x[block * 16], input_scale, &a[block * 16], finite);
  }
  return finite;
}

}  // namespace tandem::numeric
