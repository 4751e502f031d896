// The 8-bit activation quantiser of experts in GGUF's block formats (docs/architecture.md, "Numbers"). It is the
// definition: every other implementation must give the same integers and the same scales.
//
// For each block of 32 inputs of one column, in IEEE FP32 rounded to nearest even, in this order of operations:
//   s = amax / 127, zero where that is subnormal
//   q = rint(x / s) bounded to [-127, 127], zero where s is zero
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tandem::numeric {

inline constexpr int64_t kInt8Block = 32;

// One block: 32 values to 32 q; returns s. False in `finite` (never set to true) where a value is not finite: then q
// and s are 0.
inline float quantise_int8_block(const float* x, int8_t* q, bool& finite) {
  float largest = 0;
  bool usable = true;
  for (int i = 0; i < kInt8Block; ++i) {
    const float magnitude = std::fabs(x[i]);
    usable = usable && magnitude <= std::numeric_limits<float>::max();  // false for a NaN
    largest = magnitude > largest ? magnitude : largest;
  }
  finite = finite && usable;
  float step = usable ? largest / 127.0f : 0.0f;
  if (step < std::numeric_limits<float>::min()) step = 0.0f;
  for (int i = 0; i < kInt8Block; ++i) {
    const float rounded = step == 0.0f ? 0.0f : std::nearbyint(x[i] / step);
    q[i] = static_cast<int8_t>(rounded > 127.0f ? 127.0f : rounded < -127.0f ? -127.0f : rounded);
  }
  return step;
}

// One column: x [inputs], q [inputs], s [inputs / 32]. Returns false, the column's fault, where a value is not finite.
[[nodiscard]] inline bool quantise_int8(std::span<const float> x, std::span<int8_t> q, std::span<float> s) {
  bool finite = true;
  for (size_t block = 0; block < s.size(); ++block) {
    s[block] = quantise_int8_block(&x[block * 32], &q[block * 32], finite);
  }
  return finite;
}

}  // namespace tandem::numeric
