// The block decoders, weight by weight, against formulas that look up each weight's bits by its index, in double:
// another path than the decoders' own. tests/numeric/ggml compares them with ggml itself.
#include "numeric/ggml_types.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "numeric/f16.h"
#include "numeric/iq4_nl.h"
#include "numeric/iquant_grids.h"

namespace tandem::numeric {
namespace {

// The bytes of a block, by position.
struct BlockBytes {
  std::vector<std::byte> bytes;

  uint32_t at(size_t i) const { return std::to_integer<uint32_t>(bytes[i]); }
  uint32_t nibble_at(size_t i, size_t high) const { return (at(i) >> (4 * high)) & 15; }
  double f16(size_t i) const { return f16_to_float(static_cast<uint16_t>(at(i) | at(i + 1) << 8)); }
  void set_f16(size_t i, uint16_t bits) {
    bytes[i] = static_cast<std::byte>(bits & 255);
    bytes[i + 1] = static_cast<std::byte>(bits >> 8);
  }
};

double signed_grid(uint64_t entry, size_t place, uint32_t signs, size_t sign_bit) {
  const auto magnitude = static_cast<double>((entry >> (8 * place)) & 255);
  return (signs >> sign_bit & 1) != 0 ? -magnitude : magnitude;
}

double iq2s_weight(const BlockBytes& b, size_t i) {
  const size_t g = i / 8;
  const size_t ib = i / 32;
  const size_t l = g & 3;
  const uint32_t entry = b.at(2 + g) | ((b.at(66 + ib) >> (2 * l)) & 3) << 8;
  const double scale = 0.5 + b.nibble_at(74 + ib, l >> 1);
  return b.f16(0) * scale * 0.25 * signed_grid(iq2s_grid()[entry], i & 7, b.at(34 + g), i & 7);
}

double iq2xs_weight(const BlockBytes& b, size_t i) {
  const size_t g = i / 8;
  const uint32_t q = b.at(2 + 2 * g) | b.at(3 + 2 * g) << 8;
  const double scale = 0.5 + b.nibble_at(66 + i / 32, (g & 3) >> 1);
  return b.f16(0) * scale * 0.25 * signed_grid(iq2xs_grid()[q & 511], i & 7, iquant_signs(q >> 9), i & 7);
}

double iq3xxs_weight(const BlockBytes& b, size_t i) {
  const size_t at = 66 + i / 32 * 4;
  const uint32_t word = b.at(at) | b.at(at + 1) << 8 | b.at(at + 2) << 16 | b.at(at + 3) << 24;
  const uint32_t signs = iquant_signs((word >> (7 * ((i / 8) & 3))) & 127);
  return b.f16(0) * (0.5 + (word >> 28)) * 0.5 * signed_grid(iq3xxs_grid()[b.at(2 + i / 4)], i & 3, signs, i & 7);
}

double iq3s_weight(const BlockBytes& b, size_t i) {
  const size_t q = i / 4;
  const uint32_t entry = b.at(2 + q) | ((b.at(66 + i / 32) >> (q & 7)) & 1) << 8;
  const double scale = 1.0 + 2 * b.nibble_at(106 + i / 64, (i / 32) & 1);
  return b.f16(0) * scale * signed_grid(iq3s_grid()[entry], i & 3, b.at(74 + i / 8), i & 7);
}

double iq4nl_weight(const BlockBytes& b, size_t i) {
  return b.f16(0) * kIq4Steps[b.nibble_at(2 + (i & 15), i / 16)];
}

double iq4xs_weight(const BlockBytes& b, size_t i) {
  const size_t ib = i / 32;
  const uint32_t high = ((b.at(2) | b.at(3) << 8) >> (2 * ib)) & 3;
  const int scale = static_cast<int>(b.nibble_at(4 + ib / 2, ib & 1) | high << 4) - 32;
  return b.f16(0) * scale * kIq4Steps[b.nibble_at(8 + 16 * ib + (i & 15), (i & 31) / 16)];
}

double q2_0_weight(const BlockBytes& b, size_t i) {
  return b.f16(0) * (static_cast<double>((b.at(2 + i / 4) >> (2 * (i % 4))) & 3) - 1);
}

double q8_0_weight(const BlockBytes& b, size_t i) {
  return b.f16(0) * static_cast<int8_t>(b.at(2 + i));
}

// The minimum's and the scale's part of Q4_K and Q5_K; one rounding, to float, of their difference.
double k_weight(const BlockBytes& b, size_t j, double code) {
  const auto s = [&](size_t i) { return b.at(4 + i); };
  const double scale = j < 4 ? s(j) & 63 : (s(j + 4) & 15) | (s(j - 4) >> 6) << 4;
  const double minimum = j < 4 ? s(j + 4) & 63 : (s(j + 4) >> 4) | (s(j) >> 6) << 4;
  return static_cast<float>(b.f16(0) * scale * code - b.f16(2) * minimum);
}

double q4k_weight(const BlockBytes& b, size_t i) {
  return k_weight(b, i / 32, b.nibble_at(16 + i / 64 * 32 + (i & 31), (i / 32) & 1));
}

double q5k_weight(const BlockBytes& b, size_t i) {
  const uint32_t high = (b.at(16 + (i & 31)) >> (i / 32)) & 1;
  return k_weight(b, i / 32, b.nibble_at(48 + i / 64 * 32 + (i & 31), (i / 32) & 1) + 16.0 * high);
}

double q6k_weight(const BlockBytes& b, size_t i) {
  const size_t n = i / 128;
  const size_t k = (i & 127) / 32;
  const size_t c = i & 31;
  const uint32_t code = b.nibble_at(64 * n + 32 * (k & 1) + c, k >> 1) | ((b.at(128 + 32 * n + c) >> (2 * k)) & 3) << 4;
  return b.f16(208) * static_cast<int8_t>(b.at(192 + 8 * n + 2 * k + c / 16)) * (static_cast<int>(code) - 32);
}

struct Formula {
  double (*weight)(const BlockBytes& b, size_t i);
  std::vector<size_t> scales;  // where binary16 scales stand
};

const std::map<GgmlType, Formula>& formulas() {
  static const std::map<GgmlType, Formula> all = {
      {GgmlType::kIq2s, {iq2s_weight, {0}}},   {GgmlType::kIq2xs, {iq2xs_weight, {0}}},
      {GgmlType::kIq3s, {iq3s_weight, {0}}},   {GgmlType::kIq3xxs, {iq3xxs_weight, {0}}},
      {GgmlType::kIq4nl, {iq4nl_weight, {0}}}, {GgmlType::kIq4xs, {iq4xs_weight, {0}}},
      {GgmlType::kQ2_0, {q2_0_weight, {0}}},   {GgmlType::kQ8_0, {q8_0_weight, {0}}},
      {GgmlType::kQ4K, {q4k_weight, {0, 2}}},  {GgmlType::kQ5K, {q5k_weight, {0, 2}}},
      {GgmlType::kQ6K, {q6k_weight, {208}}},
  };
  return all;
}

BlockBytes random_block(const GgmlTraits& traits, const Formula& formula, std::mt19937& random) {
  BlockBytes block{std::vector<std::byte>(static_cast<size_t>(traits.block_bytes))};
  for (std::byte& byte : block.bytes) byte = static_cast<std::byte>(random() & 255);
  for (const size_t at : formula.scales) {
    uint16_t bits = 0;
    do bits = static_cast<uint16_t>(random());
    while ((bits & 0x7C00) == 0x7C00);
    block.set_f16(at, bits);
  }
  return block;
}

TEST(GgmlTypes, DecodeEachWeightByItsFormula) {
  const uint32_t seed = std::random_device{}();
  std::mt19937 random(seed);
  for (const auto& [type, formula] : formulas()) {
    const GgmlTraits& traits = ggml_type(type);
    SCOPED_TRACE(testing::Message() << traits.name << ", seed " << seed);
    std::vector<float> out(static_cast<size_t>(traits.block_elements) + 1);
    for (int trial = 0; trial < 2000; ++trial) {
      const BlockBytes block = random_block(traits, formula, random);
      std::fill(out.begin(), out.end(), 12345.0f);
      traits.decode(block.bytes.data(), out.data());
      for (size_t i = 0; i + 1 < out.size(); ++i) ASSERT_EQ(out[i], formula.weight(block, i)) << "weight " << i;
      ASSERT_EQ(out.back(), 12345.0f);
    }
  }
}

TEST(GgmlTypes, EveryBlockDecoderHasAFormulaHere) {
  for (const GgmlTraits& traits : ggml_types()) {
    const bool block = traits.decode != nullptr && traits.block_elements > 1;
    EXPECT_EQ(block, formulas().contains(traits.type)) << traits.name;
  }
}

TEST(GgmlTypes, ABlockIsInvalidWhereAScaleIsNotFinite) {
  std::mt19937 random(3);
  for (const auto& [type, formula] : formulas()) {
    const GgmlTraits& traits = ggml_type(type);
    SCOPED_TRACE(traits.name);
    for (const size_t at : formula.scales) {
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        BlockBytes block = random_block(traits, formula, random);
        block.set_f16(at, static_cast<uint16_t>(bits));
        ASSERT_EQ(traits.valid(block.bytes.data()), std::isfinite(f16_to_float(static_cast<uint16_t>(bits)))) << bits;
      }
    }
  }
}

TEST(GgmlTypes, TheFirstInvalidBlockIsFound) {
  std::vector<std::byte> data(5 * 34);
  EXPECT_EQ(ggml_first_invalid_block(GgmlType::kQ8_0, data), -1);
  data[3 * 34 + 1] = std::byte{0x7C};
  data[4 * 34 + 1] = std::byte{0xFE};
  EXPECT_EQ(ggml_first_invalid_block(GgmlType::kQ8_0, data), 3);
}

TEST(GgmlTypes, FloatsAreDecodedAsTheyAre) {
  const std::vector<uint16_t> bits = {0x3F80, 0x8000, 0x3C00, 0x0001};
  std::vector<float> out(4);
  ggml_decode(GgmlType::kBF16, std::as_bytes(std::span(bits)), out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_TRUE(std::signbit(out[1]));
  ggml_decode(GgmlType::kF16, std::as_bytes(std::span(bits)), out);
  EXPECT_EQ(out[2], 1.0f);
  EXPECT_EQ(out[3], 0x1p-24f);
  const std::vector<float> floats = {-0.0f, 3.5f, 1e-40f, 1e38f};
  ggml_decode(GgmlType::kF32, std::as_bytes(std::span(floats)), out);
  EXPECT_EQ(std::bit_cast<uint32_t>(out[0]), 0x80000000u);
  EXPECT_EQ(out, floats);
}

TEST(GgmlTypes, IdsAndNamesAreFoundOnce) {
  std::set<std::string_view> names;
  for (const GgmlTraits& traits : ggml_types()) {
    EXPECT_EQ(find_ggml_type(static_cast<uint32_t>(traits.type)), &traits);
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_EQ(refused_ggml_type(static_cast<uint32_t>(traits.type)), "");
  }
  for (const uint32_t id : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 142u, 143u}) {
    EXPECT_EQ(find_ggml_type(id), nullptr) << id;
    EXPECT_NE(refused_ggml_type(id), "") << id;
  }
  for (const uint32_t id : {43u, 141u, 144u, 0xFFFFFFFFu}) {
    EXPECT_EQ(find_ggml_type(id), nullptr) << id;
    EXPECT_EQ(refused_ggml_type(id), "") << id;
  }
}

TEST(GgmlTypes, SizesThatDoNotFitAreRefused) {
  std::vector<std::byte> data(34 * 2);
  std::vector<float> out(64);
  ggml_decode(GgmlType::kQ8_0, data, out);
  EXPECT_THROW(ggml_decode(GgmlType::kQ8_0, std::span(data).first(67), out), base::Error);
  EXPECT_THROW(ggml_decode(GgmlType::kQ8_0, data, std::span(out).first(63)), base::Error);
  EXPECT_THROW(ggml_decode(GgmlType::kQ4_0, data, out), base::Error);
  EXPECT_THROW((void)ggml_first_invalid_block(GgmlType::kQ8_0, std::span(data).first(1)), base::Error);
}

TEST(GgmlTypes, BitsAWeightAreThoseOfTheFormat) {
  EXPECT_EQ(ggml_type(GgmlType::kIq2s).bits_per_element(), 2.5625);
  EXPECT_EQ(ggml_type(GgmlType::kIq4nl).bits_per_element(), 4.5);
  EXPECT_EQ(ggml_type(GgmlType::kQ2_0).bits_per_element(), 2.25);
  EXPECT_EQ(ggml_type(GgmlType::kF32).bits_per_element(), 32);
}

}  // namespace
}  // namespace tandem::numeric
