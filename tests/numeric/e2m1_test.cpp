#include "numeric/e2m1.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "nearest.h"

namespace tandem::numeric {
namespace {

uint8_t slow_e2m1(float value) {
  const uint32_t code = nearest_code(std::fabs(value), 8, [](uint32_t c) { return kE2m1Values[c]; });
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8u : 0u));
}

TEST(E2m1, DecodesByTheFormula) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = (code >> 1) & 3;
    const int mantissa = code & 1;
    const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + mantissa / 2.0, exponent - 1);
    const double value = (code & 8) != 0 ? -magnitude : magnitude;
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code)), value);
    EXPECT_EQ(std::signbit(e2m1_to_float(static_cast<uint8_t>(code))), (code & 8) != 0);
    EXPECT_EQ(kE2m1Doubled[static_cast<size_t>(code)], 2 * value);
    EXPECT_EQ(e2m1_from_float(e2m1_to_float(static_cast<uint8_t>(code))), code);
  }
}

TEST(E2m1, TiesGoToTheEvenCode) {
  constexpr float kTies[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  constexpr uint8_t kRounded[] = {0, 2, 2, 4, 4, 6, 6};
  for (uint8_t i = 0; i < 7; ++i) {
    EXPECT_EQ(e2m1_from_float(kTies[i]), kRounded[i]);
    EXPECT_EQ(e2m1_from_float(-kTies[i]), kRounded[i] | 8);
    EXPECT_EQ(e2m1_from_float(std::nextafter(kTies[i], 0.0f)), i);
    EXPECT_EQ(e2m1_from_float(std::nextafter(kTies[i], 9.0f)), i + 1);
  }
}

TEST(E2m1, AgreesWithASlowSearchOnEveryBf16AndRandomValues) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(e2m1_from_float(value), slow_e2m1(value)) << value;
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-7, 7);
  for (int i = 0; i < 100000; ++i) {
    const float value = uniform(random);
    ASSERT_EQ(e2m1_from_float(value), slow_e2m1(value)) << value;
  }
}

TEST(E2m1, SaturatesAndKeepsTheSignOfZero) {
  EXPECT_EQ(e2m1_from_float(std::numeric_limits<float>::infinity()), 7);
  EXPECT_EQ(e2m1_from_float(-1e30f), 15);
  EXPECT_EQ(e2m1_from_float(-0.0f), 8);
  EXPECT_EQ(e2m1_from_float(-0.2f), 8);
}

}  // namespace
}  // namespace tandem::numeric
