// The canonical arithmetic of routed experts, in scalar form (docs/architecture.md, "Numbers"). It is the definition;
// host and device kernels are tested for equal bits against it. Experts in GGUF's block formats: numeric/block_units.h.
//
// NVFP4 weights and activations:
//   D_b = sum over the 16 inputs of block b of C * A   exact in int32, |D_b| <= 2304
//   R   = sum over blocks of D_b * S_b * T'_b          exact in int64
//   y   = float(R) * 2^-20 * (weight_scale_2 * is)     one rounding, the scale's, one multiplication
//
// R does not depend on the order of summation, so any tiling gives the same bits.
//
// FP8 weights with a BF16 multiplier m to each block of 128 x 128, 8-bit activations (numeric/int8_activation.h):
//   I_b = sum over the 32 inputs of block b of W * q   exact in int32, W = 512 * E4M3(code), |I_b| < 2^30
//   y   = fma(float(I_b), (m * 2^-9) * s_b, y)         blocks in ascending order, y starting at +0
// float(I_b) is rounded once, m * 2^-9 is exact for every BF16 number, its product with s_b is rounded once.
#pragma once

#include <cstdint>
#include <optional>
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
  std::optional<Nvfp4Scale> input_scale;  // none: each column's dynamic_input_scale
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

// One projection in FP8 as published.
struct Fp8Matrix {
  std::span<const uint8_t> codes;    // [rows, inputs], none of them NaN
  std::span<const uint16_t> scales;  // [ceil(rows / 128), ceil(inputs / 128)] BF16
  int64_t rows = 0;
  int64_t inputs = 0;  // whole blocks of 32
};

// y of one row: codes [inputs], scales [ceil(inputs / 128)], q [inputs], s [inputs / 32].
float fp8_row_product(std::span<const uint8_t> codes, std::span<const uint16_t> scales, std::span<const int8_t> q,
                      std::span<const float> s);

// y [hidden] = down * (silu(gate * x) * (up * x)). Returns false, the column's fault, at a non-finite value.
[[nodiscard]] bool fp8_expert(const Fp8Matrix& gate, const Fp8Matrix& up, const Fp8Matrix& down,
                              std::span<const float> x, std::span<float> y);

// h = silu(g) * u.
inline float swiglu(float gate, float up) {
  return silu_f32(gate) * up;
}

// y = down * (silu(gate * x) * (up * x)) in any arithmetic: product(matrix, x, y) multiplies and returns false at a
// fault.
template <typename Matrix, typename Product>
bool swiglu_expert(const Matrix& gate, const Matrix& up, const Matrix& down, std::span<const float> x,
                   std::span<float> y, const Product& product) {
  std::vector<float> g(static_cast<size_t>(gate.rows));
  std::vector<float> u(static_cast<size_t>(up.rows));
  bool finite = product(gate, x, std::span<float>(g));
  finite = product(up, x, std::span<float>(u)) && finite;
  for (size_t i = 0; i < g.size(); ++i) g[i] = swiglu(g[i], u[i]);
  return product(down, std::span<const float>(g), y) && finite;
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
