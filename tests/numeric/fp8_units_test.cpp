#include "numeric/fp8_units.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/expert_reference.h"
#include "numeric/fp8_block.h"
#include "numeric/int8_activation.h"

namespace tandem::numeric {
namespace {

class Fp8Units : public testing::Test {
 protected:
  std::vector<uint8_t> random_codes(int64_t count) {
    std::vector<uint8_t> codes(static_cast<size_t>(count));
    for (uint8_t& code : codes) {
      do code = static_cast<uint8_t>(random_());
      while (e4m3_is_nan(code));
    }
    return codes;
  }
  uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, seed_};
};

TEST_F(Fp8Units, AreAPermutationOfTheCodes) {
  const int64_t rows = 48;
  const int64_t inputs = 160;
  const std::vector<uint8_t> codes = random_codes(rows * inputs);
  std::vector<std::byte> units(codes.size(), std::byte{0x7F});
  std::vector<uint8_t> back(codes.size(), 0x7F);
  pack_fp8_units(codes, rows, inputs, units);
  unpack_fp8_units(units, rows, inputs, back);
  EXPECT_EQ(back, codes);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t input = 0; input < inputs; ++input) {
      // As docs/artifact.md has it.
      const int64_t at = row / 16 * 16 * inputs + input / 4 * 64 + row % 16 * 4 + input % 4;
      ASSERT_EQ(std::to_integer<uint8_t>(units[static_cast<size_t>(at)]),
                codes[static_cast<size_t>(row * inputs + input)]);
    }
  }
}

TEST_F(Fp8Units, DecodeToTheWeightsOfTheMatrix) {
  const int64_t rows = 144;
  const int64_t inputs = 288;
  const std::vector<uint8_t> codes = random_codes(rows * inputs);
  std::vector<uint16_t> scales;
  for (int64_t i = 0; i < fp8_blocks(rows) * fp8_blocks(inputs); ++i) {
    scales.push_back(static_cast<uint16_t>(random_() % 0x7F80));
  }
  std::vector<float> want(codes.size());
  fp8_block_decode(codes, {std::as_bytes(std::span(scales)), Fp8ScaleType::kBF16}, rows, inputs, want);
  std::vector<std::byte> units(codes.size());
  pack_fp8_units(codes, rows, inputs, units);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> got(static_cast<size_t>(inputs), NAN);
    decode_fp8_row(units.data() + row / 16 * 16 * inputs, row % 16, &scales[static_cast<size_t>(row / 128 * 3)], got);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[static_cast<size_t>(row * inputs) + i]) << row;
  }
}

TEST_F(Fp8Units, RefuseShapesThatAreNotWholeUnits) {
  std::vector<uint8_t> codes(24 * 48);
  std::vector<std::byte> units(codes.size());
  EXPECT_THROW(pack_fp8_units(codes, 24, 48, units), base::Error);
  EXPECT_THROW(pack_fp8_units(codes, 48, 24, units), base::Error);
  EXPECT_THROW(unpack_fp8_units(units, 16, 64, codes), base::Error);
  EXPECT_THROW(unpack_fp8_units({}, 0, 32, {}), base::Error);
}

TEST_F(Fp8Units, EveryCodeTimesEveryActivationIsExact) {
  std::vector<uint8_t> codes(32);
  std::vector<int8_t> q(32);
  const std::vector<float> s = {0.25f};
  const std::vector<uint16_t> scales = {bf16_from_float(0.375f)};
  for (int code = 0; code < 256; ++code) {
    if (e4m3_is_nan(static_cast<uint8_t>(code))) continue;
    for (int activation = -127; activation <= 127; ++activation) {
      const auto at = static_cast<size_t>(random_() % 32);
      codes[at] = static_cast<uint8_t>(code);
      q[at] = static_cast<int8_t>(activation);
      ASSERT_EQ(fp8_row_product(codes, scales, q, s),
                e4m3_to_float(static_cast<uint8_t>(code)) * 0.375f * static_cast<float>(activation) * 0.25f);
      codes[at] = 0;
      q[at] = 0;
    }
  }
}

TEST_F(Fp8Units, ProductsAreRoundedWhereTheDefinitionSays) {
  for (int round = 0; round < 200; ++round) {
    const size_t blocks = 1 + random_() % 12;
    const std::vector<uint8_t> codes = random_codes(static_cast<int64_t>(32 * blocks));
    std::vector<int8_t> q(codes.size());
    for (int8_t& value : q) value = static_cast<int8_t>(static_cast<int>(random_() % 255) - 127);
    std::vector<float> s(blocks);
    for (float& scale : s) scale = std::ldexp(1.0f + static_cast<float>(random_() % 1000) / 999, -7);
    std::vector<uint16_t> scales((blocks + 3) / 4);
    for (uint16_t& scale : scales) scale = static_cast<uint16_t>(0x3800 + random_() % 0x400);
    float want = 0;
    for (size_t b = 0; b < blocks; ++b) {
      double exact = 0;  // of multiples of 2^-9 below 2^21
      for (size_t i = 32 * b; i < 32 * (b + 1); ++i) exact += static_cast<double>(e4m3_to_float(codes[i])) * q[i];
      const float sum = static_cast<float>(exact * 512);
      const float factor = bf16_to_float(scales[b / 4]) / 512 * s[b];
      want = std::fmaf(sum, factor, want);
    }
    ASSERT_EQ(fp8_row_product(codes, scales, q, s), want);
  }
}

TEST_F(Fp8Units, TheLargestOperandsFitTheSum) {
  const std::vector<uint8_t> codes(128, 0x7E);
  const std::vector<int8_t> q(128, -127);
  const std::vector<float> s(4, 1.0f);
  const std::vector<uint16_t> scales = {bf16_from_float(1.0f)};
  EXPECT_EQ(fp8_row_product(codes, scales, q, s), -448.0f * 127 * 128);
}

TEST_F(Fp8Units, AnExpertIsCloseToTheExpertInDouble) {
  const int64_t inner = 160;
  const int64_t hidden = 288;
  const auto encode = [&](int64_t rows, int64_t inputs) {
    std::normal_distribution<float> normal(0.0f, 0.1f);
    std::vector<float> weights(static_cast<size_t>(rows * inputs));
    for (float& weight : weights) weight = normal(random_);
    return fp8_block_encode(weights, rows, inputs);
  };
  const Fp8BlockMatrix gate = encode(inner, hidden);
  const Fp8BlockMatrix up = encode(inner, hidden);
  const Fp8BlockMatrix down = encode(hidden, inner);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(hidden));
  for (float& value : x) value = normal(random_);
  std::vector<float> y(x.size(), NAN);
  ASSERT_TRUE(fp8_expert({gate.codes, gate.scales, inner, hidden}, {up.codes, up.scales, inner, hidden},
                         {down.codes, down.scales, hidden, inner}, x, y));
  const auto apply = [](const Fp8BlockMatrix& matrix, int64_t rows, const std::vector<double>& input) {
    std::vector<float> weights(matrix.codes.size());
    fp8_block_decode(matrix.codes, {std::as_bytes(std::span(matrix.scales)), Fp8ScaleType::kBF16}, rows,
                     static_cast<int64_t>(input.size()), weights);
    std::vector<double> out(static_cast<size_t>(rows));
    for (size_t i = 0; i < weights.size(); ++i) out[i / input.size()] += double{weights[i]} * input[i % input.size()];
    return out;
  };
  std::vector<double> h = apply(gate, inner, {x.begin(), x.end()});
  const std::vector<double> u = apply(up, inner, {x.begin(), x.end()});
  for (size_t i = 0; i < h.size(); ++i) h[i] *= u[i] / (1 + std::exp(-h[i]));
  const std::vector<double> exact = apply(down, hidden, h);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (y[i] - exact[i]) * (y[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  // Two roundings of activations to eight bits, about 0.5 % each.
  EXPECT_LT(std::sqrt(error / norm), 0.03);
  x[7] = INFINITY;
  EXPECT_FALSE(fp8_expert({gate.codes, gate.scales, inner, hidden}, {up.codes, up.scales, inner, hidden},
                          {down.codes, down.scales, hidden, inner}, x, y));
}

}  // namespace
}  // namespace tandem::numeric
