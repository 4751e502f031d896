#include "numeric/f16.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "nearest.h"

namespace tandem::numeric {
namespace {

TEST(F16, DecodesByTheFormula) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const double mantissa = bits & 0x3FF;
    const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1 + mantissa / 1024, exponent - 15);
    ASSERT_EQ(f16_to_float(static_cast<uint16_t>(bits)), value);
    ASSERT_EQ(f16_to_float(static_cast<uint16_t>(bits | 0x8000)), -value);
  }
  EXPECT_EQ(f16_to_float(0x7C00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(f16_to_float(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(f16_to_float(0x7C01)));
}

TEST(F16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    ASSERT_EQ(f16_from_float(value), std::isnan(value) ? bits | 0x200u : bits);
  }
}

TEST(F16, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const float low = f16_to_float(static_cast<uint16_t>(bits));
    // 65536 stands for the code after the largest finite one, which is infinity.
    const float high = bits == 0x7BFF ? 65536.0f : f16_to_float(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(f16_from_float(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(f16_from_float(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(f16_from_float(1e10f), 0x7C00);
  EXPECT_EQ(f16_from_float(-std::numeric_limits<float>::infinity()), 0xFC00);
}

}  // namespace
}  // namespace tandem::numeric
