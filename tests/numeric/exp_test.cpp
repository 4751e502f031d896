#include "numeric/exp.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>

namespace tandem::numeric {
namespace {

// Distance of exp_f32 from the exact value in units of the last place of the FP32 result.
double error_in_ulp(float x) {
  const long double exact = std::exp(static_cast<long double>(x));
  int exponent;
  (void)std::frexp(exact, &exponent);
  const long double ulp = std::ldexp(1.0L, std::max(exponent - 24, -149));
  return static_cast<double>(std::fabs(exp_f32(x) - exact) / ulp);
}

TEST(Exp, IsWithinItsStatedErrorOverADenseSample) {
  double worst = 0;
  double worst_subnormal = 0;
  for (uint64_t bits = 0; bits < 0xC2D00000u; bits += 2003) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x <= 88.72f && x >= -103.9f)) continue;
    double& error = x < -87.3f ? worst_subnormal : worst;
    error = std::max(error, error_in_ulp(x));
  }
  EXPECT_LE(worst, 0.952);
  EXPECT_LE(worst_subnormal, 0.952);
  EXPECT_GT(worst, 0.5);  // the sample met hard cases
}

TEST(Exp, IsExactWhereItMatters) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(1e-30f), 1.0f);
}

TEST(Exp, GoesToInfinityAndThroughSubnormalsToZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(kInfinity), kInfinity);
  EXPECT_EQ(exp_f32(88.72284f), kInfinity);
  EXPECT_LT(exp_f32(88.72283f), kInfinity);
  EXPECT_EQ(exp_f32(3e38f), kInfinity);
  EXPECT_EQ(exp_f32(-kInfinity), 0.0f);
  EXPECT_EQ(exp_f32(-3e38f), 0.0f);
  EXPECT_EQ(exp_f32(-104.0f), 0.0f);
  EXPECT_EQ(exp_f32(-103.97f), std::numeric_limits<float>::denorm_min());
  EXPECT_GT(exp_f32(-100.0f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Exp, Ascends) {
  float previous = 0;
  for (int i = -1'050'000; i < 900'000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const float value = exp_f32(x);
    ASSERT_GE(value, previous) << x;
    previous = value;
  }
}

TEST(Silu, HasItsLimits) {
  EXPECT_EQ(silu_f32(0.0f), 0.0f);
  EXPECT_EQ(silu_f32(100.0f), 100.0f);
  EXPECT_EQ(silu_f32(-200.0f), 0.0f);
  EXPECT_NEAR(silu_f32(1.0f), 0.7310585786, 1e-7);
  EXPECT_NEAR(silu_f32(-1.0f), -0.2689414214, 1e-7);
}

}  // namespace
}  // namespace tandem::numeric
