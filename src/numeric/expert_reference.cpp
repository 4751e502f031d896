#include "numeric/expert_reference.h"

#include <cmath>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/fp8_block.h"
#include "numeric/int8_activation.h"

namespace tandem::numeric {

namespace {

static_assert(kInt8Block * 127 * kLargestScaleInteger < 1 << 30);

bool fp8_product(const Fp8Matrix& matrix, std::span<const float> x, std::span<float> y) {
  std::vector<int8_t> q(x.size());
  std::vector<float> s(x.size() / kInt8Block);
  const bool finite = quantise_int8(x, q, s);
  const auto grid = static_cast<size_t>(fp8_blocks(matrix.inputs));
  for (size_t row = 0; row < y.size(); ++row) {
    y[row] = fp8_row_product(matrix.codes.subspan(row * x.size(), x.size()),
                             matrix.scales.subspan(row / kFp8BlockSide * grid, grid), q, s);
  }
  return finite;
}

}  // namespace

static_assert(kLargestExpertInputs >= 65536);
// R of 2,560 inputs stays below 2^55.
static_assert(2560 / kNvfp4Block * kLargestBlockSum * kLargestScaleInteger * kLargestScaleInteger < int64_t{1} << 55);

int32_t nvfp4_block_sum(const uint8_t* codes, const int8_t* a) {
  int32_t sum = 0;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const int code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
    sum += kE2m1Doubled[static_cast<size_t>(code)] * a[i];
  }
  return sum;
}

int64_t nvfp4_row_sum(std::span<const uint8_t> codes, std::span<const uint8_t> scales, std::span<const int8_t> a,
                      std::span<const int32_t> t) {
  int64_t sum = 0;
  for (size_t block = 0; block < scales.size(); ++block) {
    sum += int64_t{nvfp4_block_sum(&codes[block * 8], &a[block * 16])} * e4m3_times_512(scales[block]) * t[block];
  }
  return sum;
}

bool nvfp4_product(const Nvfp4Matrix& matrix, std::span<const float> x, std::span<float> y) {
  if (matrix.inputs > kLargestExpertInputs || x.size() != static_cast<size_t>(matrix.inputs) ||
      y.size() != static_cast<size_t>(matrix.rows)) {
    base::internal_error("NVFP4", "a matrix [{}, {}] can't map {} inputs to {} outputs", matrix.rows, matrix.inputs,
                         x.size(), y.size());
  }
  std::vector<int8_t> a(x.size());
  std::vector<int32_t> t(x.size() / 16);
  const float input_scale = matrix.input_scale ? matrix.input_scale->multiplier() : dynamic_input_scale(x);
  const float weight_scale = matrix.weight_scale.multiplier();
  const bool finite = quantise_activations(x, input_scale, a, t);
  for (size_t row = 0; row < y.size(); ++row) {
    const int64_t sum = nvfp4_row_sum(matrix.codes.subspan(row * x.size() / 2, x.size() / 2),
                                      matrix.scales.subspan(row * t.size(), t.size()), a, t);
    y[row] = nvfp4_scale_sum(sum, weight_scale, input_scale);
  }
  return finite;
}

bool nvfp4_expert(const Nvfp4Matrix& gate, const Nvfp4Matrix& up, const Nvfp4Matrix& down, std::span<const float> x,
                  std::span<float> y) {
  return swiglu_expert(gate, up, down, x, y, nvfp4_product);
}

float fp8_row_product(std::span<const uint8_t> codes, std::span<const uint16_t> scales, std::span<const int8_t> q,
                      std::span<const float> s) {
  constexpr size_t kBlocksToScale = kFp8BlockSide / kInt8Block;
  float y = 0;
  for (size_t b = 0; b < s.size(); ++b) {
    int32_t sum = 0;
    for (size_t i = kInt8Block * b; i < kInt8Block * (b + 1); ++i) sum += e4m3_times_512(codes[i]) * q[i];
    const float factor = bf16_to_float(scales[b / kBlocksToScale]) * 0x1p-9f;
    y = std::fmaf(static_cast<float>(sum), factor * s[b], y);
  }
  return y;
}

bool fp8_expert(const Fp8Matrix& gate, const Fp8Matrix& up, const Fp8Matrix& down, std::span<const float> x,
                std::span<float> y) {
  return swiglu_expert(gate, up, down, x, y, fp8_product);
}

ExpertSum::ExpertSum(int64_t hidden) {
  for (auto& half : halves_) half.assign(static_cast<size_t>(hidden), 0);
}

void ExpertSum::add(int64_t expert, float p, std::span<const float> y) {
  std::vector<uint64_t>& half = halves_[expert & 1];
  for (size_t i = 0; i < half.size(); ++i) {
    const float term = p * y[i];
    if (!(std::fabs(term) < kLargestExpertTerm)) {
      fault_ = true;
      continue;
    }
    half[i] += static_cast<uint64_t>(std::llrint(term * 0x1p32f));
  }
}

float ExpertSum::half(int parity, int64_t channel) const {
  return static_cast<float>(static_cast<int64_t>(halves_[parity][static_cast<size_t>(channel)])) * 0x1p-32f;
}

void ExpertSum::finish(std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const float lower = half(0, static_cast<int64_t>(i));
    const float upper = half(1, static_cast<int64_t>(i));
    out[i] = lower + upper;
  }
}

}  // namespace tandem::numeric
