#include "numeric/e4m3.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>

#include "nearest.h"

namespace tandem::numeric {
namespace {

uint8_t slow_e4m3(float value) {
  const uint32_t code =
      nearest_code(std::fabs(value), 0x7F, [](uint32_t c) { return e4m3_to_float(static_cast<uint8_t>(c)); });
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80u : 0u));
}

TEST(E4m3, DecodesByTheFormula) {
  for (int code = 0; code < 0x7F; ++code) {
    const int exponent = code >> 3;
    const int mantissa = code & 7;
    const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(code)), value) << code;
    EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(code | 0x80)), -value) << code;
    EXPECT_EQ(e4m3_times_512(static_cast<uint8_t>(code)), value * 512) << code;
    EXPECT_FALSE(e4m3_is_nan(static_cast<uint8_t>(code)));
  }
  EXPECT_EQ(e4m3_to_float(0x7E), kE4m3Max);
  for (const uint8_t code : {0x7F, 0xFF}) {
    EXPECT_TRUE(std::isnan(e4m3_to_float(code)));
    EXPECT_TRUE(e4m3_is_nan(code));
    EXPECT_EQ(e4m3_from_float(e4m3_to_float(code)), code);
  }
}

TEST(E4m3, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code < 256; ++code) {
    EXPECT_EQ(e4m3_from_float(e4m3_to_float(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4m3, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code));
    const float high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = low + (high - low) / 2;
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, 1000.0f);
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t bit = sign < 0 ? 0x80 : 0;
      EXPECT_EQ(e4m3_from_float(sign * below), code | bit);
      EXPECT_EQ(e4m3_from_float(sign * middle), (code % 2 == 0 ? code : code + 1) | bit);
      EXPECT_EQ(e4m3_from_float(sign * above), (code + 1) | bit);
    }
  }
}

TEST(E4m3, AgreesWithASlowSearchOnEveryBf16AndRandomValues) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(e4m3_from_float(value), slow_e4m3(value)) << value;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float value =
        std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random), static_cast<int>(random() % 22) - 11);
    ASSERT_EQ(e4m3_from_float(value), slow_e4m3(value)) << value;
  }
}

TEST(E4m3, Saturates) {
  for (const float value : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(e4m3_from_float(value), 0x7E);
    EXPECT_EQ(e4m3_from_float(-value), 0xFE);
  }
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::denorm_min()), 0x00);
  EXPECT_EQ(e4m3_from_float(-0.0f), 0x80);
}

}  // namespace
}  // namespace tandem::numeric
