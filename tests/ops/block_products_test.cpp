// Experts in GGUF's block formats: every kernel set against the scalar definition, bit for bit.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "numeric/block_units.h"
#include "numeric/expert_record.h"
#include "numeric/expert_reference.h"
#include "numeric/int8_activation.h"
#include "ops/host/host_ops.h"
#include "tests/ops/columns.h"
#include "tests/ops/kernel_sets.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

constexpr ExpertFormat kBlockFormats[] = {ExpertFormat::kIq2s,  ExpertFormat::kIq3xxs, ExpertFormat::kIq3s,
                                          ExpertFormat::kIq4xs, ExpertFormat::kIq4nl,  ExpertFormat::kQ2_0};

// Rows of random blocks, of every code; scales of all finite magnitudes or of moderate ones.
std::vector<std::byte> random_blocks(RandomData& random, ExpertFormat format, int64_t rows, int64_t inputs,
                                     bool extreme) {
  const auto& traits = numeric::ggml_type(ggml_type_of(format));
  std::vector<std::byte> out(static_cast<size_t>(rows * inputs / traits.block_elements * traits.block_bytes));
  for (auto& byte : out) byte = static_cast<std::byte>(random.between(0, 255));
  for (size_t at = 0; at < out.size(); at += static_cast<size_t>(traits.block_bytes)) {
    const auto scale = static_cast<uint16_t>(extreme ? random.between(0, 0x7BFF) : random.between(0x1C00, 0x2800));
    const auto bits = static_cast<uint16_t>(scale | random.between(0, 1) << 15);
    std::memcpy(out.data() + at, &bits, 2);
  }
  return out;
}

class BlockProducts : public testing::TestWithParam<ExpertFormat> {
 protected:
  RandomData random_;
};

TEST_P(BlockProducts, GiveTheBitsOfTheDefinitionForAnyNumberOfColumns) {
  const numeric::BlockUnit& unit = *numeric::find_block_unit(ggml_type_of(GetParam()));
  for (int round = 0; round < 60; ++round) {
    const int64_t inputs = unit.inputs * random_.between(1, 4);
    const int64_t columns = random_.between(1, 9);
    const bool extreme = round % 3 == 0;
    const auto rows = random_blocks(random_, GetParam(), 16, inputs, extreme);
    std::vector<std::byte> tile(rows.size());
    numeric::pack_block_units(unit, rows, 16, inputs, tile);
    auto x = random_.normal(columns * inputs, extreme ? 1e6F : 1.0F);
    if (extreme) std::fill_n(x.begin(), 32, 0.0F);
    std::vector<float> want;
    for (int64_t c = 0; c < columns; ++c) {
      std::vector<int8_t> q(static_cast<size_t>(inputs));
      std::vector<float> s(static_cast<size_t>(inputs / 32));
      ASSERT_TRUE(numeric::quantise_int8(std::span(x).subspan(static_cast<size_t>(c * inputs), q.size()), q, s));
      for (size_t r = 0; r < 16; ++r) {
        const auto row = std::span(rows).subspan(r * rows.size() / 16, rows.size() / 16);
        want.push_back(numeric::int8_row_product(ggml_type_of(GetParam()), row, q, s));
      }
    }
    for (const Kernels* set : kernel_sets()) {
      std::vector<Int8Block> blocks(static_cast<size_t>(columns * inputs / 32));
      std::vector<const Int8Block*> pointers;
      for (int64_t c = 0; c < columns; ++c) {
        pointers.push_back(blocks.data() + c * inputs / 32);
        ASSERT_TRUE(set->quantise_int8(GetParam(), x.data() + c * inputs, inputs, blocks.data() + c * inputs / 32));
      }
      auto out = poisoned(columns * 16);
      set->int8_product(GetParam(), {tile.data(), tile.data()}, inputs, pointers.data(), columns, out.data());
      ASSERT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0)
          << set->name << ", " << columns << " columns of " << inputs << ", round " << round;
    }
  }
}

TEST_P(BlockProducts, QuantisersReportWhatIsNotFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    auto x = random_.normal(256);
    x[77] = bad;
    for (const Kernels* set : kernel_sets()) {
      std::vector<Int8Block> blocks(8);
      EXPECT_FALSE(set->quantise_int8(GetParam(), x.data(), 256, blocks.data())) << set->name;
    }
  }
}

// A whole layer: gate and up in the format (where it fits), down in one that fits 64 inputs.
TEST_P(BlockProducts, MakeALayerOfExperts) {
  constexpr int64_t kExperts = 4;
  constexpr int64_t kTopK = 2;
  const int64_t hidden = 256;
  const int64_t inner = 128;
  const numeric::BlockUnit& unit = *numeric::find_block_unit(ggml_type_of(GetParam()));
  const ExpertFormat down_format = unit.inputs <= inner ? GetParam() : ExpertFormat::kIq4nl;
  const ExpertFormat up_format = GetParam() == ExpertFormat::kIq3s ? ExpertFormat::kIq2s : GetParam();
  const ExpertFormat formats[3] = {GetParam(), up_format, down_format};
  ExpertTable table;
  table.experts = kExperts;
  table.inner = inner;
  table.hidden = hidden;
  table.place({formats[0], formats[1], formats[2]});
  std::vector<std::byte> records(static_cast<size_t>(kExperts * table.record.bytes), std::byte{0xA5});
  table.records = records.data();
  std::vector<std::byte> matrices[kExperts][3];
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int m = 0; m < 3; ++m) {
      const int64_t rows = m == 2 ? hidden : inner;
      const int64_t inputs = m == 2 ? inner : hidden;
      matrices[e][m] = random_blocks(random_, formats[m], rows, inputs, false);
      numeric::pack_block_units(
          *numeric::find_block_unit(ggml_type_of(formats[m])), matrices[e][m], rows, inputs,
          std::span(records).subspan(static_cast<size_t>(e * table.record.bytes + table.record.matrices[m].offset),
                                     matrices[e][m].size()));
    }
  }
  const int64_t tokens = 11;
  const auto x = random_.normal(tokens * hidden);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<float> want;
  for (int64_t t = 0; t < tokens; ++t) {
    numeric::ExpertSum sum(hidden);
    const auto first = static_cast<int32_t>(random_.between(0, kExperts - 1));
    for (const int32_t e : {first, static_cast<int32_t>((first + 1) % kExperts)}) {
      const auto matrix = [&](int m) {
        return numeric::BlockMatrix{ggml_type_of(formats[m]), matrices[e][m], m == 2 ? hidden : inner,
                                    m == 2 ? inner : hidden};
      };
      std::vector<float> y(static_cast<size_t>(hidden));
      const auto column = std::span(x).subspan(static_cast<size_t>(t * hidden), static_cast<size_t>(hidden));
      ASSERT_TRUE(numeric::int8_expert(matrix(0), matrix(1), matrix(2), column, y));
      ids.push_back(e);
      weights.push_back(0.5F);
      sum.add(e, 0.5F, y);
    }
    ASSERT_FALSE(sum.fault());
    std::vector<float> row(static_cast<size_t>(hidden));
    sum.finish(row);
    want.insert(want.end(), row.begin(), row.end());
  }
  for (const Kernels* set : kernel_sets()) {
    for (const int threads : {1, 3}) {
      base::WorkerPool pool(threads);
      HostOps ops(pool, false, *set);
      auto lower = poisoned(tokens * hidden);
      auto upper = lower;
      ASSERT_EQ(first_faulty(ops, {.x = x.data(),
                                   .tokens = tokens,
                                   .top_k = kTopK,
                                   .ids = ids.data(),
                                   .weights = weights.data(),
                                   .table = table,
                                   .quantise_activations = true,
                                   .lower = lower.data(),
                                   .upper = upper.data()}),
                -1);
      for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(lower[i] + upper[i], want[i]) << set->name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BlockProducts, testing::ValuesIn(kBlockFormats), [](const auto& format) {
  return std::string(numeric::ggml_type(ggml_type_of(format.param)).name);
});

}  // namespace
}  // namespace tandem::ops::host
