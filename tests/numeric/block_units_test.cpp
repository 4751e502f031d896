#include "numeric/block_units.h"

#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "numeric/int8_activation.h"

namespace tandem::numeric {
namespace {

constexpr GgmlType kExpertTypes[] = {GgmlType::kIq2s,  GgmlType::kIq3xxs, GgmlType::kIq3s,
                                     GgmlType::kIq4xs, GgmlType::kIq4nl,  GgmlType::kQ2_0};

class BlockUnits : public testing::TestWithParam<GgmlType> {
 protected:
  const BlockUnit& unit() const { return *find_block_unit(GetParam()); }
  std::vector<std::byte> random_rows(int64_t rows, int64_t inputs) {
    std::vector<std::byte> out(static_cast<size_t>(block_unit_bytes(unit(), rows, inputs)));
    for (auto& byte : out) byte = static_cast<std::byte>(random_());
    const auto& traits = ggml_type(GetParam());
    for (size_t at = 0; at < out.size(); at += static_cast<size_t>(traits.block_bytes)) {
      out[at + 1] &= std::byte{0xBB};  // a finite d of moderate size
    }
    return out;
  }
  uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
};

TEST_P(BlockUnits, HoldTheFilesBlocksExactly) {
  const int64_t rows = 48;
  const int64_t inputs = 3 * unit().inputs;
  const auto source = random_rows(rows, inputs);
  std::vector<std::byte> units(source.size(), std::byte{0xA5});
  std::vector<std::byte> back(source.size(), std::byte{0x5A});
  pack_block_units(unit(), source, rows, inputs, units);
  unpack_block_units(unit(), units, rows, inputs, back);
  EXPECT_EQ(back, source) << "seed " << seed_;
  EXPECT_NE(units, source);
  // Unit 1 of tile 2: the last word of row 5, which every format has from the file, stands where the layout says.
  const int64_t row = 2 * kBlockUnitRows + 5;
  const int64_t from = (row * 3 + 2) * unit().row_bytes() - 4;
  const int64_t to = (2 * 3 + 1) * unit().bytes + ((unit().words - 1) * 16 + 5) * 4;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(units[static_cast<size_t>(to + i)], source[static_cast<size_t>(from + i)]);
}

TEST_P(BlockUnits, IntegersTimesTheFactorAreTheDecodedWeights) {
  for (int round = 0; round < 200; ++round) {
    const int64_t inputs = unit().inputs;
    auto row = random_rows(16, inputs);
    row.resize(static_cast<size_t>(unit().row_bytes()));
    std::vector<float> decoded(static_cast<size_t>(inputs));
    ggml_decode(GetParam(), row, decoded);
    for (int64_t b = 0; b < inputs / 32; ++b) {
      const IntegerWeights weights = integer_weights(GetParam(), row, b);
      for (int64_t i = 0; i < 32; ++i) {
        ASSERT_EQ(static_cast<float>(weights.w[i]) * weights.factor, decoded[static_cast<size_t>(32 * b + i)])
            << "seed " << seed_ << " block " << b << " weight " << i;
      }
    }
  }
}

TEST_P(BlockUnits, ProductIsTheDecodedOneWithinTheQuantisersError) {
  const int64_t inputs = 2 * unit().inputs;
  auto rows = random_rows(16, inputs);
  rows.resize(static_cast<size_t>(2 * unit().row_bytes()));
  std::vector<float> decoded(static_cast<size_t>(inputs));
  ggml_decode(GetParam(), rows, decoded);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(inputs));
  for (float& value : x) value = normal(random_);
  std::vector<int8_t> q(x.size());
  std::vector<float> s(x.size() / 32);
  ASSERT_TRUE(quantise_int8(x, q, s));
  double want = 0;
  double size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    want += static_cast<double>(decoded[i]) * x[i];
    size += std::fabs(static_cast<double>(decoded[i])) * s[i / 32];
  }
  EXPECT_NEAR(int8_row_product(GetParam(), rows, q, s), want, 0.51 * size) << "seed " << seed_;
}

TEST_P(BlockUnits, RefuseShapesThatAreNotWholeUnits) {
  EXPECT_THROW(block_unit_bytes(unit(), 17, unit().inputs), base::Error);
  EXPECT_THROW(block_unit_bytes(unit(), 16, unit().inputs / 2), base::Error);
  EXPECT_THROW(block_unit_bytes(unit(), 0, unit().inputs), base::Error);
}

INSTANTIATE_TEST_SUITE_P(Formats, BlockUnits, testing::ValuesIn(kExpertTypes),
                         [](const auto& type) { return std::string(ggml_type(type.param).name); });

TEST(BlockUnit, OtherTypesHaveNone) {
  const std::set<GgmlType> with(std::begin(kExpertTypes), std::end(kExpertTypes));
  for (const auto& traits : ggml_types())
    EXPECT_EQ(find_block_unit(traits.type) != nullptr, with.contains(traits.type));
}

TEST(Int8Activation, RoundsToEvenAndKeepsItsBounds) {
  float x[32] = {127.0f, 0.5f, 1.5f, -2.5f, -127.0f};
  int8_t q[32];
  bool finite = true;
  EXPECT_EQ(quantise_int8_block(x, q, finite), 1.0f);
  EXPECT_EQ(std::vector<int>(q, q + 6), (std::vector<int>{127, 0, 2, -2, -127, 0}));
  EXPECT_TRUE(finite);
}

TEST(Int8Activation, ScalesBelowTheNormalRangeAreZero) {
  float x[32] = {};
  int8_t q[32];
  bool finite = true;
  x[3] = 0x1p-120f;  // amax / 127 is subnormal
  EXPECT_EQ(quantise_int8_block(x, q, finite), 0.0f);
  EXPECT_EQ(q[3], 0);
  EXPECT_TRUE(finite);
}

TEST(Int8Activation, NonFiniteValuesAreAFault) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    float x[32] = {1.0f};
    int8_t q[32] = {9};
    bool finite = true;
    x[31] = bad;
    EXPECT_EQ(quantise_int8_block(x, q, finite), 0.0f);
    EXPECT_FALSE(finite);
    EXPECT_EQ(q[0], 0);
  }
}

}  // namespace
}  // namespace tandem::numeric
