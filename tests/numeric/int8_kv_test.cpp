#include "numeric/int8_kv.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace tandem::numeric {
namespace {

struct Encoded {
  std::vector<int8_t> codes;
  uint16_t scale;

  explicit Encoded(const std::vector<float>& x) : codes(x.size(), int8_t{99}) {
    scale = int8_kv_encode(x.data(), static_cast<int64_t>(x.size()), codes.data());
  }
  float operator[](size_t i) const { return int8_kv_decode(codes[i], scale); }
};

TEST(Int8Kv, CodesAreWithinHalfAStepOfTheScale) {
  std::mt19937 engine(7);
  for (const float spread : {1e-3F, 1.0F, 300.0F}) {
    std::normal_distribution<float> normal(0.0F, spread);
    std::vector<float> x(64);
    for (float& v : x) v = normal(engine);
    const Encoded encoded(x);
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::abs(v));
    EXPECT_EQ(encoded.scale, f16_from_float(amax / 127.0F));
    for (size_t i = 0; i < x.size(); ++i) {
      // The largest may fall short by the rounding of the scale: 127 steps of 2^-11 each.
      const float step = f16_to_float(encoded.scale);
      EXPECT_LE(std::abs(encoded[i] - x[i]), step * (std::abs(encoded.codes[i]) == 127 ? 0.57F : 0.5F)) << x[i];
    }
  }
}

TEST(Int8Kv, TiesGoToEvenCodes) {
  std::vector<float> x = {127.0F, 0.5F, 1.5F, -2.5F, -127.0F};
  const Encoded encoded(x);
  EXPECT_EQ(encoded.scale, f16_from_float(1.0F));
  EXPECT_EQ(encoded.codes, (std::vector<int8_t>{127, 0, 2, -2, -127}));
}

TEST(Int8Kv, ScalesThatRoundDownDoNotPassTheLargestCode) {
  // amax / 127 = 1 + 2^-11 rounds to even, 1: the largest number is 127.06 steps.
  const Encoded encoded({127.0F * (1.0F + 0x1p-11F), -127.0F * (1.0F + 0x1p-11F)});
  EXPECT_EQ(encoded.scale, f16_from_float(1.0F));
  EXPECT_EQ(encoded.codes, (std::vector<int8_t>{127, -127}));
}

TEST(Int8Kv, ZerosAndWhatFp16CannotScaleBecomeZero) {
  for (const std::vector<float>& x : {std::vector<float>{0.0F, -0.0F}, {1e-9F, -2e-6F}}) {
    const Encoded encoded(x);
    EXPECT_EQ(encoded.scale, 0);
    EXPECT_EQ(encoded.codes, (std::vector<int8_t>{0, 0}));
  }
}

TEST(Int8Kv, NumbersTooLargeForAScaleAreBounded) {
  const Encoded encoded({1e8F, -1e8F, 65504.0F});
  EXPECT_EQ(encoded.scale, 0x7BFF);
  EXPECT_EQ(encoded.codes, (std::vector<int8_t>{127, -127, 1}));
}

TEST(Int8Kv, ANumberThatIsNotFiniteIsSeenInTheWholeGroup) {
  for (const float fault : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    const Encoded encoded({1.0F, fault, 0.0F});
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(encoded[i]));
  }
}

TEST(Int8Kv, ATailIsAGroupOfItsOwn) {
  EXPECT_EQ(int8_kv_groups(16), 1);
  EXPECT_EQ(int8_kv_groups(64), 1);
  EXPECT_EQ(int8_kv_groups(80), 2);
  EXPECT_EQ(int8_kv_groups(256), 4);
}

}  // namespace
}  // namespace tandem::numeric
