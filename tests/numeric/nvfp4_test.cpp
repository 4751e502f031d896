#include "numeric/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"

namespace tandem::numeric {
namespace {

using testing::HasSubstr;

template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    return error.what();
  }
  return "";
}

std::vector<uint8_t> random_bytes(size_t count, uint32_t seed, uint32_t below = 256) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % below);
  return bytes;
}

TEST(Nvfp4, EveryCodeTimesEveryScaleIsExactBeforeTheTensorScale) {
  for (uint32_t scale = 0; scale < 0x7F; ++scale) {
    for (uint32_t pair = 0; pair < 8; ++pair) {
      std::vector<uint8_t> codes(8, static_cast<uint8_t>((2 * pair) | ((2 * pair + 1) << 4)));
      float out[16];
      nvfp4_decode_block(codes.data(), static_cast<uint8_t>(scale), {1.0f}, out);
      for (size_t i = 0; i < 16; ++i) {
        const double exact = double{kE2m1Values[2 * pair + i % 2]} * double{kE4m3Values[scale]};
        ASSERT_EQ(out[i], exact);  // the low nibble is the even input
      }
    }
  }
}

TEST(Nvfp4, AMultiplierMultipliesAndADivisorDivides) {
  const std::vector<uint8_t> codes(8, 0x52);  // 1 and 3
  float out[16];
  nvfp4_decode_block(codes.data(), e4m3_from_float(5.0f), {3e-5f, Nvfp4Scale::Direction::kMultiplier}, out);
  EXPECT_EQ(out[0], 5.0f * 3e-5f);
  EXPECT_EQ(out[1], 15.0f * 3e-5f);
  nvfp4_decode_block(codes.data(), e4m3_from_float(5.0f), {33333.0f, Nvfp4Scale::Direction::kDivisor}, out);
  EXPECT_EQ(out[0], 5.0f / 33333.0f);
  EXPECT_EQ(out[1], 15.0f / 33333.0f);
  EXPECT_EQ((Nvfp4Scale{33333.0f, Nvfp4Scale::Direction::kDivisor}).multiplier(), 1.0f / 33333.0f);
}

TEST(Nvfp4, TensorScalesOutsideTheBoundsAreNotValid) {
  for (const float bad :
       {0.0f, -1.0f, 1e-30f, 1e30f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE((Nvfp4Scale{bad}).valid()) << bad;
  }
  EXPECT_TRUE((Nvfp4Scale{5e-5f}).valid());
}

TEST(Nvfp4, AMistakenDirectionIsNoticed) {
  EXPECT_TRUE((Nvfp4Scale{5e-5f}).plausible_for_weights());
  EXPECT_FALSE((Nvfp4Scale{20000.0f}).plausible_for_weights());
  EXPECT_TRUE((Nvfp4Scale{20000.0f, Nvfp4Scale::Direction::kDivisor}).plausible_for_weights());
  EXPECT_FALSE((Nvfp4Scale{5e-5f, Nvfp4Scale::Direction::kDivisor}).plausible_for_weights());
}

TEST(Nvfp4, WritingFollowsTheRule) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kInputs = 64;
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> weights(kRows * kInputs);
  for (float& weight : weights) weight = normal(random);
  std::fill_n(weights.begin() + 16, 16, 0.0f);
  for (int i = 32; i < 48; ++i) weights[static_cast<size_t>(i)] *= 1e-6f;  // below the smallest block scale
  std::vector<uint8_t> codes(kRows * kInputs / 2);
  std::vector<uint8_t> scales(kRows * kInputs / 16);
  const float tensor_scale = nvfp4_encode(weights, kRows, kInputs, codes, scales);
  float amax = 0;
  for (const float weight : weights) amax = std::max(amax, std::fabs(weight));
  EXPECT_EQ(tensor_scale, amax / 2688.0f);
  EXPECT_EQ(scales[1], e4m3_from_float(1.0f));
  EXPECT_EQ(scales[2], 0x01);  // 2^-9
  EXPECT_EQ(*std::max_element(scales.begin(), scales.end()), 0x7E);
  std::vector<float> decoded(weights.size());
  nvfp4_decode(codes, scales, kRows, kInputs, {tensor_scale}, decoded);
  for (size_t i = 0; i < weights.size(); ++i) {
    const float step = e4m3_to_float(scales[i / 16]) * tensor_scale;
    const uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
    EXPECT_EQ(kE2m1Values[code], kE2m1Values[e2m1_from_float(weights[i] / step)]);
    // The widest gap of E2M1 is 2, between 4 and 6; a block scale rounded down saturates by at most 1/16 of 6.
    EXPECT_LE(std::fabs(decoded[i] - weights[i]), step * 1.0001f);
  }
}

TEST(Nvfp4, DecodedMatricesEncodeToThemselves) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kInputs = 128;
  std::vector<uint8_t> codes = random_bytes(kRows * kInputs / 2, 11);
  for (uint8_t& byte : codes) {  // a decoded zero has lost nothing but its sign
    if ((byte & 0x0F) == 0x08) byte &= 0xF0;
    if ((byte & 0xF0) == 0x80) byte &= 0x0F;
  }
  std::vector<uint8_t> scales = random_bytes(kRows * kInputs / 16, 12, 0x7E);
  for (uint8_t& scale : scales) scale = std::max<uint8_t>(scale, 0x08);
  for (size_t block = 0; block < scales.size(); ++block) codes[block * 8] = 0x17;  // each block has a 6
  scales[0] = 0x7E;
  std::vector<float> weights(kRows * kInputs);
  nvfp4_decode(codes, scales, kRows, kInputs, {0x1p-14f}, weights);
  std::vector<uint8_t> codes_again(codes.size());
  std::vector<uint8_t> scales_again(scales.size());
  EXPECT_EQ(nvfp4_encode(weights, kRows, kInputs, codes_again, scales_again), 0x1p-14f);
  EXPECT_EQ(codes_again, codes);
  EXPECT_EQ(scales_again, scales);
}

TEST(Nvfp4, ExtremeMatricesStayFinite) {
  for (const float weight : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-42f, 1e-38f, 3e38f}) {
    const std::vector<float> weights(16, weight);
    std::vector<uint8_t> codes(8);
    std::vector<uint8_t> scales(1);
    std::vector<float> decoded(16);
    const float tensor_scale = nvfp4_encode(weights, 1, 16, codes, scales);
    nvfp4_check_scales(scales, 1, "weights");
    nvfp4_decode(codes, scales, 1, 16, {tensor_scale}, decoded);
    for (const float value : decoded) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_LE(value, weight * 1.0001f);
    }
    if (weight >= 1e-38f || weight == 0) {
      EXPECT_NEAR(decoded[0], weight, 1e-4f * weight);
    }
  }
}

TEST(Nvfp4, WritingNamesTheNonFiniteWeight) {
  std::vector<float> weights(64);
  weights[37] = std::numeric_limits<float>::infinity();
  std::vector<uint8_t> codes(32);
  std::vector<uint8_t> scales(4);
  EXPECT_THAT(refusal([&] { (void)nvfp4_encode(weights, 2, 32, codes, scales); }), HasSubstr("row 1, input 5 is inf"));
}

TEST(Nvfp4, RefusesEveryScaleThatIsNaNOrNegative) {
  std::vector<uint8_t> scales(160 * 3);
  for (uint32_t code = 0; code < 256; ++code) {
    scales[160 * 2 + 7] = static_cast<uint8_t>(code);
    const std::string message = refusal([&] { nvfp4_check_scales(scales, 160, "gate_proj.weight_scale"); });
    if (code < 0x7F) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_THAT(message, HasSubstr("gate_proj.weight_scale: the block scale at row 2, block 7 is 0x"));
      EXPECT_THAT(message, HasSubstr(e4m3_is_nan(static_cast<uint8_t>(code)) ? "not a number" : "negative"));
    }
  }
}

TEST(Nvfp4Units, PackingAndUnpackingAreInverse) {
  for (const auto& [rows, inputs] : {std::pair{16, 64}, {16, 192}, {48, 64}, {64, 256}, {640, 2560}}) {
    const std::vector<uint8_t> codes = random_bytes(static_cast<size_t>(rows * inputs / 2), 1);
    const std::vector<uint8_t> scales = random_bytes(static_cast<size_t>(rows * inputs / 16), 2);
    std::vector<std::byte> units(static_cast<size_t>(nvfp4_record_bytes(rows, inputs)));
    EXPECT_EQ(units.size(), codes.size() + scales.size());
    pack_units(codes, scales, rows, inputs, units);
    std::vector<uint8_t> codes_back(codes.size());
    std::vector<uint8_t> scales_back(scales.size());
    unpack_units(units, rows, inputs, codes_back, scales_back);
    EXPECT_EQ(codes_back, codes);
    EXPECT_EQ(scales_back, scales);
    std::vector<std::byte> again(units.size());
    pack_units(codes_back, scales_back, rows, inputs, again);
    EXPECT_EQ(again, units);
  }
}

TEST(Nvfp4Units, EveryInputStandsWhereTheLayoutSays) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kInputs = 192;
  const std::vector<uint8_t> codes = random_bytes(kRows * kInputs / 2, 3);
  const std::vector<uint8_t> scales = random_bytes(kRows * kInputs / 16, 4);
  std::vector<std::byte> bytes(static_cast<size_t>(nvfp4_record_bytes(kRows, kInputs)));
  pack_units(codes, scales, kRows, kInputs, bytes);
  std::vector<Nvfp4Unit> units(bytes.size() / sizeof(Nvfp4Unit));
  std::memcpy(units.data(), bytes.data(), bytes.size());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t input = 0; input < kInputs; ++input) {
      const Nvfp4Unit& unit = units[static_cast<size_t>(row / 16 * (kInputs / 64) + input / 64)];
      const uint8_t byte = codes[static_cast<size_t>(row * kInputs / 2 + input / 2)];
      const uint32_t code = input % 2 == 0 ? byte & 15 : byte >> 4;
      ASSERT_EQ((unit.codes[input % 64 / 8][row % 16] >> (4 * (input % 8))) & 15, code);
      ASSERT_EQ(unit.scales[row % 16][input % 64 / 16], scales[static_cast<size_t>(row * kInputs / 16 + input / 16)]);
    }
  }
}

TEST(Nvfp4Units, AFlashNextExpertHas4800Units) {
  EXPECT_EQ(2 * nvfp4_record_bytes(640, 2560) + nvfp4_record_bytes(2560, 640), 2764800);
}

TEST(Nvfp4Units, RefusesShapesThatCanNotBeCut) {
  for (const auto& [rows, inputs] : {std::pair{24, 64}, {16, 32}, {16, 96}, {0, 64}, {16, 0}, {-16, 64}}) {
    const std::string figures = "[" + std::to_string(rows) + ", " + std::to_string(inputs) + "]";
    EXPECT_THAT(refusal([&] { (void)nvfp4_record_bytes(rows, inputs); }), HasSubstr(figures));
  }
}

}  // namespace
}  // namespace tandem::numeric
