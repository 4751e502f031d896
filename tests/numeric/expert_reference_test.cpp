#include "numeric/expert_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>

namespace tandem::numeric {
namespace {

struct Matrix {
  std::vector<uint8_t> codes, scales;
  Nvfp4Matrix view;
};

Matrix random_matrix(int64_t rows, int64_t inputs, std::mt19937& random) {
  Matrix matrix;
  matrix.codes.resize(static_cast<size_t>(rows * inputs / 2));
  matrix.scales.resize(static_cast<size_t>(rows * inputs / 16));
  for (uint8_t& byte : matrix.codes) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : matrix.scales) byte = static_cast<uint8_t>(random() % 0x7F);
  matrix.view = {matrix.codes, matrix.scales, rows, inputs, {4.7e-5f}, Nvfp4Scale{0.0123f}};
  return matrix;
}

std::vector<float> random_column(int64_t inputs, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(inputs));
  for (float& value : x) value = 3 * normal(random);
  return x;
}

TEST(Nvfp4Product, IsTheExactProductOfTheQuantisedOperandsRoundedThreeTimes) {
  std::mt19937 random(1);
  for (const int64_t inputs : {16, 64, 640, 2560}) {
    const Matrix matrix = random_matrix(8, inputs, random);
    const std::vector<float> x = random_column(inputs, random);
    std::vector<float> y(8);
    ASSERT_TRUE(nvfp4_product(matrix.view, x, y));
    std::vector<int8_t> a(x.size());
    std::vector<int32_t> t(x.size() / 16);
    ASSERT_TRUE(quantise_activations(x, 0.0123f, a, t));
    std::vector<float> weights(static_cast<size_t>(8 * inputs));
    nvfp4_decode(matrix.codes, matrix.scales, 8, inputs, {1.0f}, weights);
    for (size_t row = 0; row < 8; ++row) {
      long double exact = 0;  // every term is a multiple of 2^-20 and the sum stays below 2^36
      for (size_t i = 0; i < x.size(); ++i) {
        exact += static_cast<long double>(weights[row * x.size() + i]) * (a[i] / 2.0L) * (t[i / 16] / 512.0L);
      }
      const float expected = static_cast<float>(exact) * (4.7e-5f * 0.0123f);
      ASSERT_EQ(std::bit_cast<uint32_t>(y[row]), std::bit_cast<uint32_t>(expected));
    }
  }
}

TEST(Nvfp4Product, TheSumDoesNotDependOnItsOrder) {
  std::mt19937 random(2);
  const int64_t inputs = 2560;
  const Matrix matrix = random_matrix(1, inputs, random);
  const std::vector<float> x = random_column(inputs, random);
  std::vector<int8_t> a(x.size());
  std::vector<int32_t> t(x.size() / 16);
  ASSERT_TRUE(quantise_activations(x, 0.0123f, a, t));
  const int64_t sum = nvfp4_row_sum(matrix.codes, matrix.scales, a, t);
  std::vector<size_t> order(t.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(order.begin(), order.end(), random);
    int64_t shuffled = 0;
    for (const size_t block : order) {
      shuffled +=
          nvfp4_row_sum(std::span(matrix.codes).subspan(block * 8, 8), std::span(matrix.scales).subspan(block, 1),
                        std::span(a).subspan(block * 16, 16), std::span(t).subspan(block, 1));
    }
    EXPECT_EQ(shuffled, sum);
  }
}

TEST(Nvfp4Product, TheLargestOperandsReachTheStatedBounds) {
  const std::vector<uint8_t> codes(1280, 0x77);
  const std::vector<uint8_t> scales(160, 0x7E);
  const std::vector<int8_t> a(2560, 12);
  const std::vector<int32_t> t(160, 448 * 512);
  EXPECT_EQ(nvfp4_block_sum(codes.data(), a.data()), 2304);
  const int64_t sum = nvfp4_row_sum(codes, scales, a, t);
  EXPECT_EQ(sum, int64_t{160} * 2304 * 229376 * 229376);
  EXPECT_LT(sum, int64_t{1} << 55);
  EXPECT_EQ(nvfp4_scale_sum(int64_t{1} << 40, 0.5f, 0.25f), 0x1p17f);
}

TEST(Nvfp4Product, EveryPairOfCodesMultipliesExactly) {
  for (size_t weight = 0; weight < 16; ++weight) {
    for (size_t activation = 0; activation < 16; ++activation) {
      uint8_t codes[8] = {static_cast<uint8_t>(weight << 4)};
      int8_t a[16] = {0, kE2m1Doubled[activation]};
      EXPECT_EQ(nvfp4_block_sum(codes, a), 4 * kE2m1Values[weight] * kE2m1Values[activation]);
    }
  }
}

TEST(Nvfp4Expert, IsCloseToTheExpertInDouble) {
  std::mt19937 random(3);
  Matrix gate = random_matrix(64, 256, random);
  Matrix up = random_matrix(64, 256, random);
  Matrix down = random_matrix(256, 64, random);
  for (Matrix* matrix : {&gate, &up, &down}) {
    for (uint8_t& scale : matrix->scales) scale = static_cast<uint8_t>(0x30 + random() % 0x20);
    matrix->view.weight_scale = {1e-2f};
  }
  const std::vector<float> x = random_column(256, random);
  std::vector<float> y(256);
  down.view.input_scale = Nvfp4Scale{0.05f};
  ASSERT_TRUE(nvfp4_expert(gate.view, up.view, down.view, x, y));
  const auto apply = [](const Matrix& matrix, const std::vector<double>& input) {
    std::vector<float> weights(static_cast<size_t>(matrix.view.rows * matrix.view.inputs));
    nvfp4_decode(matrix.codes, matrix.scales, matrix.view.rows, matrix.view.inputs, matrix.view.weight_scale, weights);
    std::vector<double> out(static_cast<size_t>(matrix.view.rows));
    for (size_t i = 0; i < weights.size(); ++i) out[i / input.size()] += double{weights[i]} * input[i % input.size()];
    return out;
  };
  std::vector<double> h = apply(gate, std::vector<double>(x.begin(), x.end()));
  const std::vector<double> u = apply(up, std::vector<double>(x.begin(), x.end()));
  for (size_t i = 0; i < h.size(); ++i) h[i] *= u[i] / (1 + std::exp(-h[i]));
  const std::vector<double> exact = apply(down, h);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += (y[i] - exact[i]) * (y[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  // Two roundings of activations to four bits, about 10 % each.
  EXPECT_LT(std::sqrt(error / norm), 0.3);
  EXPECT_GT(norm, 0);
}

TEST(Nvfp4Expert, AnOverflowInsideIsTheColumnsFault) {
  std::mt19937 random(4);
  Matrix gate = random_matrix(16, 64, random);
  Matrix up = random_matrix(16, 64, random);
  Matrix down = random_matrix(64, 16, random);
  std::vector<float> y(64);
  gate.view.weight_scale = up.view.weight_scale = {1e18f};
  EXPECT_FALSE(nvfp4_expert(gate.view, up.view, down.view, random_column(64, random), y));
}

TEST(ExpertSum, DoesNotDependOnTheOrderOfExperts) {
  std::mt19937 random(5);
  constexpr int64_t kHidden = 64;
  std::vector<std::vector<float>> outputs;
  outputs.reserve(10);
  for (int i = 0; i < 10; ++i) outputs.push_back(random_column(kHidden, random));
  std::vector<int64_t> ids = {3, 17, 4, 100, 511, 8, 9, 222, 21, 60};
  std::vector<size_t> order(10);
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<float> first;
  for (int trial = 0; trial < 20; ++trial) {
    ExpertSum sum(kHidden);
    for (const size_t i : order) sum.add(ids[i], 0.1f + 0.01f * static_cast<float>(i), outputs[i]);
    std::vector<float> out(kHidden);
    sum.finish(out);
    EXPECT_FALSE(sum.fault());
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST(ExpertSum, HalvesGoByTheParityOfTheExpert) {
  ExpertSum sum(1);
  sum.add(2, 0.5f, std::vector<float>{8.0f});
  sum.add(5, 0.25f, std::vector<float>{-3.0f});
  sum.add(6, 1.0f, std::vector<float>{1.0f});
  EXPECT_EQ(sum.half(0, 0), 5.0f);
  EXPECT_EQ(sum.half(1, 0), -0.75f);
  std::vector<float> out(1);
  sum.finish(out);
  EXPECT_EQ(out[0], 4.25f);
}

TEST(ExpertSum, RoundsTermsToTheNearestUnitTiesToEven) {
  for (const auto& [units, rounded] : {std::pair{0.5f, 0.0f}, {1.5f, 2.0f}, {2.5f, 2.0f}, {-0.75f, -1.0f}}) {
    ExpertSum sum(1);
    sum.add(0, 1.0f, std::vector<float>{units * 0x1p-32f});
    EXPECT_EQ(sum.half(0, 0), rounded * 0x1p-32f) << units;
  }
}

TEST(ExpertSum, LargeAndNonFiniteTermsAreFaults) {
  for (const float bad : {kLargestExpertTerm, -kLargestExpertTerm, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    ExpertSum sum(2);
    sum.add(1, 1.0f, std::vector<float>{1.0f, bad});
    EXPECT_TRUE(sum.fault()) << bad;
    EXPECT_EQ(sum.half(1, 0), 1.0f);
    EXPECT_EQ(sum.half(1, 1), 0.0f);
  }
}

TEST(ExpertSum, HoldsAsManyTermsAsATokenMayHaveInAnyOrder) {
  const float largest = std::nextafter(kLargestExpertTerm, 0.0f);
  ExpertSum sum(1);
  for (int k = 0; k < kMostExpertsPerToken; ++k) sum.add(1, 1.0f, std::vector<float>{largest});
  EXPECT_FALSE(sum.fault());
  EXPECT_EQ(sum.half(1, 0), largest * kMostExpertsPerToken);
}

}  // namespace
}  // namespace tandem::numeric
