#include "numeric/activation.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace tandem::numeric {
namespace {

struct Block {
  std::vector<int8_t> a = std::vector<int8_t>(16, 77);
  int32_t t = -1;
  bool finite = true;
};

Block quantise(const std::vector<float>& x, float input_scale) {
  Block block;
  std::vector<int32_t> t(1);
  block.finite = quantise_activations(x, input_scale, block.a, t);
  block.t = t[0];
  return block;
}

std::vector<float> random_block(std::mt19937& random, int exponent) {
  std::normal_distribution<float> normal;
  std::vector<float> x(16);
  for (float& value : x) value = std::ldexp(normal(random), exponent);
  return x;
}

TEST(Activation, FollowsTheDefinitionOperationByOperation) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::vector<float> x = random_block(random, static_cast<int>(random() % 40) - 20);
    const float is =
        std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000, static_cast<int>(random() % 12) - 12);
    float amax = 0;
    for (const float value : x) amax = std::max(amax, std::fabs(value));
    volatile float six = 6.0f * is;  // volatile: each operation rounds on its own
    volatile float ratio = amax / six;
    const float scale = e4m3_to_float(e4m3_from_float(ratio < 448.0f ? ratio : 448.0f));
    volatile float step = scale * is;
    const Block block = quantise(x, is);
    ASSERT_TRUE(block.finite);
    ASSERT_EQ(block.t, scale * 512);
    for (size_t j = 0; j < 16; ++j) {
      volatile float quotient = x[j] / step;
      const float code = scale == 0 ? 0 : e2m1_to_float(e2m1_from_float(quotient));
      ASSERT_EQ(block.a[j], 2 * code);
    }
  }
}

TEST(Activation, TheErrorIsBoundedByTheFormats) {
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    const std::vector<float> x = random_block(random, static_cast<int>(random() % 8));
    float amax = 0;
    for (const float value : x) amax = std::max(amax, std::fabs(value));
    const float is = 1.0f;
    const Block block = quantise(x, is);
    for (size_t j = 0; j < 16; ++j) {
      const double back = block.a[j] / 2.0 * block.t / 512.0 * is;
      // A block scale off by 1/16 and E2M1's widest half gap, 1 of 6.
      ASSERT_LE(std::fabs(back - x[j]), amax * (1.0 / 6 + 1.0 / 16) * 1.001) << x[j];
    }
  }
}

TEST(Activation, ABlockOfZerosOrOfTooSmallValuesIsZero) {
  for (const float value : {0.0f, -0.0f, 1e-30f, -std::numeric_limits<float>::denorm_min()}) {
    const Block block = quantise(std::vector<float>(16, value), 0.01f);
    EXPECT_TRUE(block.finite);
    EXPECT_EQ(block.t, 0);
    EXPECT_EQ(block.a, std::vector<int8_t>(16, 0));
  }
}

TEST(Activation, SaturatesAboveTheCalibratedRange) {
  std::vector<float> x(16, 0.0f);
  x[3] = 1e30f;
  x[4] = -1e30f;
  x[5] = 1.0f;
  const Block block = quantise(x, 0.001f);
  EXPECT_TRUE(block.finite);
  EXPECT_EQ(block.t, 448 * 512);
  EXPECT_EQ(block.a[3], 12);
  EXPECT_EQ(block.a[4], -12);
  EXPECT_EQ(block.a[5], 4);  // 1 / 0.448 = 2.23
  EXPECT_EQ(block.a[6], 0);
}

TEST(Activation, ANonFiniteValueIsTheColumnsFault) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at = 0; at < 32; ++at) {
      std::vector<float> x(32, 1.0f);
      x[at] = bad;
      std::vector<int8_t> a(32, 77);
      std::vector<int32_t> t(2, 77);
      EXPECT_FALSE(quantise_activations(x, 0.01f, a, t));
      EXPECT_EQ(t[at / 16], 0);
      EXPECT_EQ(a[at], 0);
      EXPECT_GT(t[1 - at / 16], 0);  // the other block is as it would be
    }
  }
}

TEST(DynamicInputScale, GivesTheLargestBlockTheLargestScale) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> x = random_block(random, static_cast<int>(random() % 100) - 50);
    const std::vector<float> more = random_block(random, static_cast<int>(random() % 100) - 50);
    x.insert(x.end(), more.begin(), more.end());
    float amax = 0;
    for (const float value : x) amax = std::max(amax, std::fabs(value));
    const float is = dynamic_input_scale(x);
    ASSERT_EQ(is, amax / 2688.0f);
    std::vector<int8_t> a(32);
    std::vector<int32_t> t(2);
    ASSERT_TRUE(quantise_activations(x, is, a, t));
    EXPECT_EQ(std::max(t[0], t[1]), 448 * 512);
    EXPECT_EQ(
        std::max(*std::max_element(a.begin(), a.end()), static_cast<int8_t>(-*std::min_element(a.begin(), a.end()))),
        12);
  }
}

TEST(DynamicInputScale, IsAValidMultiplierForAnyColumn) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, -0.0f, 1e-30f, std::numeric_limits<float>::denorm_min(), 1e30f,
                            -std::numeric_limits<float>::max(), infinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(16, 0.0f);
    x[5] = value;
    const float is = dynamic_input_scale(x);
    EXPECT_TRUE(Nvfp4Scale{is}.valid()) << value;
    const Block block = quantise(x, is);
    EXPECT_EQ(block.finite, std::isfinite(value));
    if (std::fabs(value) < 1e-20f) {
      EXPECT_EQ(block.a, std::vector<int8_t>(16, 0));
    }
  }
}

}  // namespace
}  // namespace tandem::numeric
