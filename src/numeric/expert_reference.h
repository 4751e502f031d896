// The canonical NVFP4 W4A4 arithmetic of routed experts, in scalar form (docs/architecture.md, "Numbers"). It is the
// definition; host and device kernels are tested for equal bits against it.
//
//   D_b = sum over the 16 inputs of block b of C * A   exact in int32, |D_b| <= 2304
//   R   = sum over blocks of D_b * S_b * T'_b          exact in int64
//   y   = float(R) * 2^-20 * (weight_scale_2 * is)     one rounding, the scale's, one multiplication
//
// R does not depend on the order of summation, so any tiling gives the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "numeric/activation.h"
#include "numeric/exp.h"
#include "numeric/expert_limits.h"
#include "numeric/nvfp4.h"

namespace tandem::numeric {

// One projection, planes as published (nvfp4.h).
struct Nvfp4Matrix {
  std::span<const uint8_t> codes;   // [rows, inputs / 2]
  std::span<const uint8_t> scales;  // [rows, inputs / 16], checked by nvfp4_check_scales
  int64_t rows = 0;
  int64_t inputs = 0;
  Nvfp4Scale weight_scale;
  Nvfp4Scale input_scale;
};

inline constexpr int64_t kLargestBlockSum = 16 * 12 * 12;
inline constexpr int64_t kLargestScaleInteger = 448 * 512;
// Beyond this many inputs R could leave int64.
inline constexpr int64_t kLargestExpertInputs =
    INT64_MAX / (kLargestBlockSum * kLargestScaleInteger * kLargestScaleInteger) * kNvfp4Block;

// D_b: 16 weights in 8 code bytes, 16 A.
int32_t nvfp4_block_sum(const uint8_t* codes, const int8_t* a);
// R of one row: codes [inputs / 2], scales and t [inputs / 16], a [inputs].
int64_t nvfp4_row_sum(std::span<const uint8_t> codes, std::span<const uint8_t> scales, std::span<const int8_t> a,
                      std::span<const int32_t> t);
// y of R.
inline float nvfp4_scale_sum(int64_t sum, float weight_scale, float input_scale) {
  return static_cast<float>(sum) * 0x1p-20f * (weight_scale * input_scale);
}

// y [rows] = matrix * x [inputs]. Returns false, the column's fault, where x holds a non-finite value.
[[nodiscard]] bool nvfp4_product(const Nvfp4Matrix& matrix, std::span<const float> x, std::span<float> y);

// y [hidden] = down * (silu(gate * x) * (up * x)), each projection with its own input scale. Returns the column's
// fault as above.
[[nodiscard]] bool nvfp4_expert(const Nvfp4Matrix& gate, const Nvfp4Matrix& up, const Nvfp4Matrix& down,
                                std::span<const float> x, std::span<float> y);

// h = silu(g) * u.
inline float swiglu(float gate, float up) {
  return silu_f32(gate) * up;
}

// The sum over a column's experts, independent of their order: two halves by the parity of the expert's id, each in
// units of 2^-32 in int64; the result is half 0 + half 1 in FP32.
class ExpertSum {
 public:
  explicit ExpertSum(int64_t hidden);

  // Adds p * y. Sets the fault where |p * y| is not below kLargestExpertTerm; such a term adds nothing.
  void add(int64_t expert, float p, std::span<const float> y);
  // out [hidden].
  void finish(std::span<float> out);
  bool fault() const { return fault_; }

  // One half of one channel, for exchange between ranks: FP32 of the integer, scaled.
  float half(int parity, int64_t channel) const;

 private:
  std::vector<uint64_t> halves_[2];  // two's complement; unsigned so that a wrap is defined
  bool fault_ = false;
};

}  // namespace tandem::numeric
