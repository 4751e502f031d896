// A million random tiles of every expert format through every kernel set, bit for bit against the scalar definition:
// every code, zero and subnormal scales, zero blocks, magnitudes up to overflow.
#include <cstring>
#include <gtest/gtest.h>

#include "numeric/block_units.h"
#include "numeric/expert_record.h"
#include "numeric/expert_reference.h"
#include "numeric/fp8_units.h"
#include "numeric/int8_activation.h"
#include "ops/host/kernels.h"
#include "tests/ops/kernel_sets.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

constexpr int kTiles = 1000000;
constexpr size_t kColumns = 3;

// Inputs of one of several characters: ordinary, all alike, with zero blocks, tiny, huge.
void fill_inputs(RandomData& random, std::vector<float>& x) {
  const int64_t character = random.between(0, 4);
  const float size = character == 3 ? 0x1p-130F : character == 4 ? 0x1p100F : 1.0F;
  for (float& value : x) value = size * static_cast<float>(random.between(-1000, 1000)) * 0.001F;
  if (character == 1) std::fill(x.begin(), x.end(), x[0]);
  if (character == 2) std::fill_n(x.begin(), 32, 0.0F);
}

TEST(ExpertTiles, Nvfp4) {
  RandomData random;
  const int64_t inputs = 64;
  std::vector<uint8_t> codes(16 * 32);
  std::vector<uint8_t> scales(16 * 4);
  std::vector<std::byte> tile(576);
  std::vector<float> x(kColumns * inputs);
  for (int round = 0; round < kTiles; ++round) {
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.engine()());
    const bool any = round % 2 == 0;
    for (uint8_t& scale : scales)
      scale = static_cast<uint8_t>(any ? random.engine()() % 0x7F : 0x30 + random.engine()() % 16);
    numeric::pack_units(codes, scales, 16, inputs, tile);
    fill_inputs(random, x);
    const float input_scale =
        std::ldexp(1.0F + static_cast<float>(random.between(0, 7)) / 8, static_cast<int>(random.between(-60, 59)));
    float scales_of_columns[kColumns];
    for (float& scale : scales_of_columns) {
      scale = input_scale * std::ldexp(1.0F, static_cast<int>(random.between(-20, 0)));
    }
    float want[kColumns * 16];
    for (size_t c = 0; c < kColumns; ++c) {
      std::vector<int8_t> a(inputs);
      std::vector<int32_t> t(inputs / 16);
      ASSERT_TRUE(numeric::quantise_activations(std::span(x).subspan(c * inputs, inputs), input_scale, a, t));
      for (size_t r = 0; r < 16; ++r) {
        const int64_t sum =
            numeric::nvfp4_row_sum(std::span(codes).subspan(r * 32, 32), std::span(scales).subspan(r * 4, 4), a, t);
        want[c * 16 + r] = static_cast<float>(sum) * 0x1p-20F * scales_of_columns[c];
      }
    }
    for (const Kernels* set : kernel_sets()) {
      Nvfp4Block blocks[kColumns][inputs / 16];
      const Nvfp4Block* columns[kColumns];
      for (size_t c = 0; c < kColumns; ++c) {
        ASSERT_TRUE(set->quantise_nvfp4(x.data() + c * inputs, inputs, input_scale, blocks[c]));
        columns[c] = blocks[c];
      }
      auto out = poisoned(kColumns * 16);
      set->nvfp4_w4a4({tile.data(), tile.data()}, inputs, columns, kColumns, scales_of_columns, out.data());
      ASSERT_EQ(std::memcmp(out.data(), want, out.size() * sizeof(float)), 0) << set->name << ", tile " << round;
    }
  }
}

TEST(ExpertTiles, Fp8Block) {
  RandomData random;
  const int64_t inputs = 64;
  std::vector<uint8_t> codes(16 * inputs);
  std::vector<std::byte> tile(codes.size());
  std::vector<float> x(kColumns * inputs);
  for (int round = 0; round < kTiles; ++round) {
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(random.engine()());
      if (numeric::e4m3_is_nan(code)) code ^= 0x7F;
    }
    numeric::pack_fp8_units(codes, 16, inputs, tile);
    const std::vector<uint16_t> scales = {static_cast<uint16_t>(random.between(0, 0x7F7F))};  // finite
    fill_inputs(random, x);
    float want[kColumns * 16];
    for (size_t c = 0; c < kColumns; ++c) {
      std::vector<int8_t> q(inputs);
      std::vector<float> s(inputs / 32);
      ASSERT_TRUE(numeric::quantise_int8(std::span(x).subspan(c * inputs, inputs), q, s));
      for (size_t r = 0; r < 16; ++r) {
        want[c * 16 + r] = numeric::fp8_row_product(std::span(codes).subspan(r * inputs, inputs), scales, q, s);
      }
    }
    for (const Kernels* set : kernel_sets()) {
      Int8Block blocks[kColumns][inputs / 32];
      const Int8Block* columns[kColumns];
      for (size_t c = 0; c < kColumns; ++c) {
        ASSERT_TRUE(set->quantise_int8(ExpertFormat::kFp8Block, x.data() + c * inputs, inputs, blocks[c]));
        columns[c] = blocks[c];
      }
      auto out = poisoned(kColumns * 16);
      set->int8_product(ExpertFormat::kFp8Block, {tile.data(), tile.data(), scales.data()}, inputs, columns, kColumns,
                        out.data());
      ASSERT_EQ(std::memcmp(out.data(), want, out.size() * sizeof(float)), 0) << set->name << ", tile " << round;
    }
  }
}

class BlockTiles : public testing::TestWithParam<ExpertFormat> {};

TEST_P(BlockTiles, GiveTheBitsOfTheDefinition) {
  RandomData random;
  const numeric::GgmlType type = ggml_type_of(GetParam());
  const numeric::BlockUnit& unit = *numeric::find_block_unit(type);
  const auto inputs = static_cast<size_t>(unit.inputs);
  const int64_t block_bytes = numeric::ggml_type(type).block_bytes;
  std::vector<std::byte> rows(static_cast<size_t>(unit.bytes));
  std::vector<std::byte> tile(rows.size());
  std::vector<float> x(kColumns * inputs);
  // A tile of 256 inputs holds four times the weights of NVFP4's.
  for (int round = 0; round < kTiles * 64 / unit.inputs; ++round) {
    for (std::byte& byte : rows) byte = static_cast<std::byte>(random.engine()());
    for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(block_bytes)) {
      const auto bits = static_cast<uint16_t>(random.between(0, 0x7BFF) | random.between(0, 1) << 15);  // finite
      std::memcpy(rows.data() + at, &bits, sizeof bits);
    }
    numeric::pack_block_units(unit, rows, 16, unit.inputs, tile);
    fill_inputs(random, x);
    std::vector<float> want;
    for (size_t c = 0; c < kColumns; ++c) {
      std::vector<int8_t> q(inputs);
      std::vector<float> s(inputs / 32);
      ASSERT_TRUE(numeric::quantise_int8(std::span(x).subspan(c * inputs, inputs), q, s));
      for (size_t r = 0; r < 16; ++r) {
        want.push_back(
            numeric::int8_row_product(type, std::span(rows).subspan(r * rows.size() / 16, rows.size() / 16), q, s));
      }
    }
    for (const Kernels* set : kernel_sets()) {
      std::vector<Int8Block> blocks(kColumns * inputs / 32);
      const Int8Block* columns[kColumns];
      for (size_t c = 0; c < kColumns; ++c) {
        columns[c] = blocks.data() + c * inputs / 32;
        ASSERT_TRUE(
            set->quantise_int8(GetParam(), x.data() + c * inputs, unit.inputs, blocks.data() + c * inputs / 32));
      }
      auto out = poisoned(static_cast<int64_t>(want.size()));
      set->int8_product(GetParam(), {tile.data(), tile.data()}, unit.inputs, columns, kColumns, out.data());
      ASSERT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0)
          << set->name << ", tile " << round;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BlockTiles,
                         testing::Values(ExpertFormat::kIq2s, ExpertFormat::kIq3xxs, ExpertFormat::kIq3s,
                                         ExpertFormat::kIq4xs, ExpertFormat::kIq4nl, ExpertFormat::kQ2_0),
                         [](const auto& format) {
                           return std::string(numeric::ggml_type(ggml_type_of(format.param)).name);
                         });

}  // namespace
}  // namespace tandem::ops::host
