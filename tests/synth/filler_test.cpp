#include "synth/filler.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "synth/random.h"

namespace tandem::synth {
namespace {

using checkpoint::Dtype;

std::vector<std::byte> make(const TensorPlan& plan, uint64_t key, uint64_t offset, size_t bytes) {
  static const Filler filler;
  std::vector<std::byte> out(bytes, std::byte{0xA5});
  filler.make(plan, key, offset, out);
  return out;
}

TensorPlan plan_of(Draw draw, Dtype dtype) {
  TensorPlan plan;
  plan.draw = draw;
  plan.dtype = dtype;
  plan.mean = 0.5;
  plan.spread = 2;
  plan.row_elements = 40;
  plan.row_factors = std::make_shared<const std::vector<float>>(std::vector<float>(100, 3.0F));
  plan.topics = 4;
  plan.share = 0.5;
  plan.bits = 3;
  plan.row_codes = 400;
  plan.integers = std::vector<int64_t>(500, 77);
  return plan;
}

TEST(Filler, AnyPieceIsThatOfTheWhole) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  const std::vector<std::pair<Draw, Dtype>> kinds = {
      {Draw::kNormal, Dtype::kBF16},     {Draw::kNormal, Dtype::kF32},         {Draw::kNormal, Dtype::kF16},
      {Draw::kRows, Dtype::kBF16},       {Draw::kTopics, Dtype::kBF16},        {Draw::kUniform, Dtype::kF32},
      {Draw::kNvfp4Codes, Dtype::kU8},   {Draw::kNvfp4Scales, Dtype::kF8E4M3}, {Draw::kE4M3Codes, Dtype::kF8E4M3},
      {Draw::kPackedCodes, Dtype::kI32}, {Draw::kIntegers, Dtype::kI64}};
  for (const auto& [draw, dtype] : kinds) {
    const TensorPlan plan = plan_of(draw, dtype);
    const auto size = static_cast<size_t>(checkpoint::dtype_bits(dtype)) / 8;
    const size_t elements = 400;
    const auto whole = make(plan, seed, 0, elements * size);
    for (int i = 0; i < 50; ++i) {
      const size_t first = random() % elements;
      const size_t count = random() % (elements - first) + 1;
      const auto piece = make(plan, seed, first * size, count * size);
      ASSERT_EQ(std::memcmp(piece.data(), whole.data() + first * size, piece.size()), 0)
          << "draw " << static_cast<int>(draw) << ", elements " << first << " + " << count << ", seed " << seed;
    }
  }
}

TEST(Filler, NormalValuesHaveTheirMeanAndSpread) {
  const TensorPlan plan = plan_of(Draw::kNormal, Dtype::kF32);
  const auto bytes = make(plan, 7, 0, 400000);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double mean = sum / static_cast<double>(values.size());
  EXPECT_NEAR(mean, 0.5, 0.03);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size()) - mean * mean), 2, 0.03);
}

TEST(Filler, CodesAndScalesAreValid) {
  const auto codes = make(plan_of(Draw::kE4M3Codes, Dtype::kF8E4M3), 7, 0, 65536);
  for (const std::byte code : codes) ASSERT_FALSE(numeric::e4m3_is_nan(static_cast<uint8_t>(code)));
  const auto scales = make(plan_of(Draw::kNvfp4Scales, Dtype::kF8E4M3), 7, 0, 65536);
  for (const std::byte scale : scales) {
    ASSERT_LT(static_cast<uint8_t>(scale), 0x7F) << "positive and no NaN";
    ASSERT_GT(numeric::e4m3_to_float(static_cast<uint8_t>(scale)), 0);
  }
  std::vector<int> counts(16);
  for (const std::byte pair : make(plan_of(Draw::kNvfp4Codes, Dtype::kU8), 7, 0, 65536)) {
    ++counts[static_cast<size_t>(pair) & 15];
    ++counts[static_cast<size_t>(pair) >> 4];
  }
  for (const size_t code : {1U, 7U, 9U, 15U}) EXPECT_GT(counts[code], 1000) << code;
}

// The definition in docs/checkpoints.md, read back code by code.
TEST(Filler, BothPackingsHoldTheSameCodes) {
  TensorPlan words = plan_of(Draw::kPackedCodes, Dtype::kI32);
  words.row_codes = 397;
  words.row_elements = 40;  // ceil(397 / 10)
  TensorPlan stream = words;
  stream.dense_bits = true;
  stream.row_elements = 38;  // ceil(397 * 3 / 32)
  constexpr size_t kRows = 5;
  const auto read = [](const std::vector<std::byte>& bytes, size_t word) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + word * 4, 4);
    return value;
  };
  const auto a = make(words, 9, 0, kRows * 40 * 4);
  const auto b = make(stream, 9, 0, kRows * 38 * 4);
  std::vector<int> counts(8);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t k = 0; k < 397; ++k) {
      const uint32_t in_words = read(a, row * 40 + k / 10) >> (k % 10 * 3) & 7;
      uint32_t in_stream = 0;
      for (size_t bit = 0; bit < 3; ++bit) {
        const size_t at = k * 3 + bit;
        in_stream |= (read(b, row * 38 + at / 32) >> (at % 32) & 1) << bit;
      }
      ASSERT_EQ(in_words, in_stream) << row << ", " << k;
      ++counts[in_words];
    }
    EXPECT_EQ(read(a, row * 40 + 39) >> 21, 0U) << "what is left of the last word is zero";
    EXPECT_EQ(read(b, row * 38 + 37) >> (397 * 3 - 37 * 32), 0U);
  }
  for (const int count : counts) EXPECT_GT(count, 20);
}

TEST(Filler, RowsOfOneTopicAreAlike) {
  TensorPlan plan = plan_of(Draw::kTopics, Dtype::kF32);
  plan.spread = 1;
  plan.row_elements = 512;
  plan.share = 0.8;
  const auto bytes = make(plan, 3, 0, 8 * 512 * 4);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  const auto product = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<double>(values[a * 512 + i]) * values[b * 512 + i];
    return sum / 512;
  };
  EXPECT_NEAR(product(1, 5), 0.8, 0.15);
  EXPECT_NEAR(product(1, 2), 0, 0.2);
}

}  // namespace
}  // namespace tandem::synth
