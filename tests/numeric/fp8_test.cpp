#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_row.h"
#include "numeric/fp8_tensor.h"

namespace tandem::numeric {
namespace {

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 6) - 8);
  return values;
}

std::vector<uint8_t> all_codes(size_t count) {
  std::vector<uint8_t> codes(count);
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(i * 37 % 127 + (i % 3 == 0 ? 128 : 0));
  return codes;
}

class Fp8Block : public testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(Fp8Block, EachBlockHasItsOwnScaleUpToTheRaggedEdge) {
  const auto [rows, inputs] = GetParam();
  const int64_t grid = (rows + 127) / 128 * ((inputs + 127) / 128);
  std::vector<uint16_t> bf16;
  std::vector<float> f32;
  for (int64_t i = 0; i < grid; ++i) {
    f32.push_back(0.5f + static_cast<float>(i));
    bf16.push_back(bf16_from_float(f32.back()));
  }
  const std::vector<uint8_t> codes = all_codes(static_cast<size_t>(rows * inputs));
  std::vector<float> a(codes.size());
  std::vector<float> b(codes.size());
  fp8_block_decode(codes, {std::as_bytes(std::span(bf16)), Fp8ScaleType::kBF16}, rows, inputs, a);
  fp8_block_decode(codes, {std::as_bytes(std::span(f32)), Fp8ScaleType::kF32}, rows, inputs, b);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t input = 0; input < inputs; ++input) {
      const auto at = static_cast<size_t>(row * inputs + input);
      const int64_t block = row / 128 * ((inputs + 127) / 128) + input / 128;
      const double scale = 0.5 + static_cast<double>(block);
      ASSERT_EQ(a[at], scale * kE4m3Values[codes[at]]);
      ASSERT_EQ(b[at], a[at]);
    }
  }
}

TEST_P(Fp8Block, QuantisingWhatWasDecodedKeepsTheValues) {
  const auto [rows, inputs] = GetParam();
  const std::vector<float> weights = random_values(static_cast<size_t>(rows * inputs), 3);
  const Fp8BlockMatrix first = fp8_block_encode(weights, rows, inputs);
  std::vector<float> decoded(weights.size());
  fp8_block_decode(first.codes, {std::as_bytes(std::span(first.scales)), Fp8ScaleType::kBF16}, rows, inputs, decoded);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t input = 0; input < inputs; ++input) {
      const auto at = static_cast<size_t>(row * inputs + input);
      const float scale =
          bf16_to_float(first.scales[static_cast<size_t>(row / 128 * fp8_blocks(inputs) + input / 128)]);
      // Half a unit of a 3-bit mantissa, or of the subnormal step; rounding the scale to BF16 may saturate by 2^-8.
      ASSERT_LE(std::fabs(decoded[at] - weights[at]), std::max(std::fabs(weights[at]) / 16, scale * 0x1p-10f) * 1.001f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fp8Block,
                         testing::Values(std::tuple(128, 128), std::tuple(64, 256), std::tuple(200, 130),
                                         std::tuple(1, 1), std::tuple(257, 384)));

TEST(Fp8Block, RefusesAGridOfAnotherSize) {
  std::vector<uint8_t> codes(129 * 128);
  std::vector<float> out(codes.size());
  const std::vector<uint16_t> one(1);
  EXPECT_THROW(fp8_block_decode(codes, {std::as_bytes(std::span(one)), Fp8ScaleType::kBF16}, 129, 128, out),
               base::Error);
}

TEST(Fp8Tensor, DecodesEveryCodeWithTheScale) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<float> out(256);
  fp8_tensor_decode(codes, 0.375f, out);
  for (size_t i = 0; i < 256; ++i) {
    if (e4m3_is_nan(codes[i])) {
      EXPECT_TRUE(std::isnan(out[i]));
    } else {
      EXPECT_EQ(out[i], 0.375 * kE4m3Values[i]);
    }
  }
}

TEST(Fp8Tensor, TheLargestValueTakesTheLargestCode) {
  const std::vector<float> values = {0.1f, -7.0f, 3.5f, 0.0f};
  std::vector<uint8_t> codes(4);
  EXPECT_FLOAT_EQ(fp8_tensor_encode(values, codes), 7.0f / 448);
  EXPECT_EQ(codes[1], 0xFE);
  EXPECT_EQ(codes[3], 0x00);
  EXPECT_EQ(fp8_tensor_encode(std::vector<float>(4), codes), 1.0f);
}

TEST(Fp8Row, EachRowHasItsOwnScale) {
  const std::vector<float> weights = random_values(7 * 48, 5);
  std::vector<uint8_t> codes(weights.size());
  std::vector<float> scales(7);
  std::vector<float> decoded(weights.size());
  fp8_row_encode(weights, 7, 48, codes, scales);
  fp8_row_decode(codes, {std::as_bytes(std::span(scales)), Fp8ScaleType::kF32}, 7, 48, decoded);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(decoded[i], kE4m3Values[codes[i]] * scales[i / 48]);
    EXPECT_LE(std::fabs(decoded[i] - weights[i]),
              std::max(std::fabs(weights[i]) / 16, scales[i / 48] * 0x1p-10f) * 1.001f);
  }
  EXPECT_THROW(fp8_row_decode(codes, {std::as_bytes(std::span(scales)), Fp8ScaleType::kBF16}, 7, 48, decoded),
               base::Error);
}

}  // namespace
}  // namespace tandem::numeric
