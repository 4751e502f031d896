#include "numeric/bf16.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace tandem::numeric {
namespace {

TEST(Bf16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_EQ(bf16_from_float(value), bits | 0x40u);  // quiet
    } else {
      ASSERT_EQ(bf16_from_float(value), bits);
    }
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t low = bits << 16;
    const auto up = static_cast<uint16_t>(bits + 1);
    const auto even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto encode = [sign](uint32_t pattern) {
        return static_cast<uint16_t>(bf16_from_float(std::bit_cast<float>(pattern | sign)) ^ (sign >> 16));
      };
      ASSERT_EQ(encode(low | 0x7FFF), bits);
      ASSERT_EQ(encode(low | 0x8000), even);
      ASSERT_EQ(encode(low | 0x8001), up);
    }
  }
}

TEST(Bf16, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xFF80);
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(std::bit_cast<float>(0xFFFFFFFFu)))));
}

}  // namespace
}  // namespace tandem::numeric
