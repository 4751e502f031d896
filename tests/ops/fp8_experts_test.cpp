// Experts in FP8 blocks: every kernel set against the scalar definition, bit for bit.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>

#include "numeric/expert_reference.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_units.h"
#include "numeric/int8_activation.h"
#include "ops/host/host_ops.h"
#include "tests/ops/columns.h"
#include "tests/ops/kernel_sets.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

uint8_t random_code(RandomData& random) {
  return static_cast<uint8_t>(random.between(0, 0x7E) | random.between(0, 1) << 7);
}

// What inputs and multipliers are like.
enum class Character { kOrdinary, kZeroBlocks, kExtreme };

std::vector<uint16_t> random_multipliers(RandomData& random, int64_t count, Character character) {
  std::vector<uint16_t> out;
  for (int64_t i = 0; i < count; ++i) {
    const bool zero = character == Character::kZeroBlocks && random.between(0, 2) == 0;
    out.push_back(static_cast<uint16_t>(zero                               ? 0
                                        : character == Character::kExtreme ? random.between(0, 0x7F7F)
                                                                           : random.between(0x3900, 0x3C00)));
  }
  return out;
}

std::vector<float> random_inputs(RandomData& random, int64_t count, Character character) {
  auto x = random.normal(count, character == Character::kExtreme ? 1e6F : 1.0F);
  if (character == Character::kOrdinary) return x;
  for (int64_t block = 0; block < count / 32; ++block) {
    if (random.between(0, 2) == 0) std::fill_n(x.begin() + block * 32, 32, 0.0F);
  }
  if (character == Character::kExtreme) x[0] = 0x1p126F;
  return x;
}

class Fp8Tiles : public testing::Test {
 protected:
  // One tile through the definition and through every kernel set.
  void compare(const std::vector<uint8_t>& codes, const std::vector<uint16_t>& scales, const std::vector<float>& x,
               int64_t columns) {
    const auto inputs = static_cast<int64_t>(codes.size()) / 16;
    std::vector<std::byte> tile(codes.size());
    numeric::pack_fp8_units(codes, 16, inputs, tile);
    std::vector<float> want;
    for (int64_t c = 0; c < columns; ++c) {
      std::vector<int8_t> q(static_cast<size_t>(inputs));
      std::vector<float> s(static_cast<size_t>(inputs / 32));
      ASSERT_TRUE(numeric::quantise_int8(std::span(x).subspan(static_cast<size_t>(c * inputs), q.size()), q, s));
      for (size_t r = 0; r < 16; ++r) {
        want.push_back(numeric::fp8_row_product(std::span(codes).subspan(r * q.size(), q.size()), scales, q, s));
      }
    }
    for (const Kernels* set : kernel_sets()) {
      std::vector<Int8Block> blocks(static_cast<size_t>(columns * inputs / 32));
      std::vector<const Int8Block*> pointers;
      for (int64_t c = 0; c < columns; ++c) {
        Int8Block* to = blocks.data() + c * inputs / 32;
        pointers.push_back(to);
        ASSERT_TRUE(set->quantise_int8(ExpertFormat::kFp8Block, x.data() + c * inputs, inputs, to));
      }
      auto out = poisoned(columns * 16);
      set->int8_product(ExpertFormat::kFp8Block, {tile.data(), tile.data(), scales.data()}, inputs, pointers.data(),
                        columns, out.data());
      ASSERT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0)
          << set->name << ", " << columns << " columns of " << inputs;
    }
  }

  RandomData random_;
};

TEST_F(Fp8Tiles, GiveTheBitsOfTheDefinitionForAnyNumberOfColumns) {
  for (int round = 0; round < 120; ++round) {
    const auto character = static_cast<Character>(round % 3);
    const int64_t inputs = 32 * random_.between(1, 13);  // the last block of 128 need not be whole
    const int64_t columns = round < 60 ? round % 8 + 1 : random_.between(9, 20);
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < 16 * inputs; ++i) codes.push_back(random_code(random_));
    compare(codes, random_multipliers(random_, numeric::fp8_blocks(inputs), character),
            random_inputs(random_, columns * inputs, character), columns);
  }
}

TEST_F(Fp8Tiles, KnowEveryCodeInEveryPlace) {
  for (int code = 0; code < 256; ++code) {
    if (numeric::e4m3_is_nan(static_cast<uint8_t>(code))) continue;
    const std::vector<uint8_t> codes(16 * 32, static_cast<uint8_t>(code));
    compare(codes, {0x3F80}, random_.normal(32), 1);
    std::vector<uint8_t> alone(16 * 32, 0);
    alone[static_cast<size_t>(random_.between(0, 16 * 32 - 1))] = static_cast<uint8_t>(code);
    compare(alone, {0x3F80}, random_.normal(2 * 32), 2);
  }
}

TEST_F(Fp8Tiles, HoldTheLargestSums) {
  for (const uint8_t code : {0x7E, 0xFE}) {
    compare(std::vector<uint8_t>(16 * 64, code), {0x3F80}, std::vector<float>(64, 3.0F), 1);
    compare(std::vector<uint8_t>(16 * 64, code), {0x3F80}, std::vector<float>(64, -3.0F), 1);
  }
}

// A layer's experts as published and as records.
struct Fp8Layer {
  static constexpr int64_t kExperts = 4;
  int64_t inner, hidden;
  std::vector<uint8_t> codes[kExperts][3];
  std::vector<uint16_t> scales[kExperts][3];
  std::vector<std::byte> records;
  ExpertTable table;

  Fp8Layer(RandomData& random, int64_t inner_size, int64_t hidden_size, Character character)
      : inner(inner_size), hidden(hidden_size) {
    table.experts = kExperts;
    table.inner = inner;
    table.hidden = hidden;
    table.place({ExpertFormat::kFp8Block, ExpertFormat::kFp8Block, ExpertFormat::kFp8Block});
    records.resize(static_cast<size_t>(kExperts * table.record.bytes), std::byte{0xA5});
    table.records = records.data();
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int m = 0; m < 3; ++m) {
        const int64_t rows = m == 2 ? hidden : inner;
        const int64_t inputs = m == 2 ? inner : hidden;
        for (int64_t i = 0; i < rows * inputs; ++i) codes[e][m].push_back(random_code(random));
        scales[e][m] = random_multipliers(random, numeric::fp8_blocks(rows) * numeric::fp8_blocks(inputs), character);
        const auto& place = table.record.matrices[static_cast<size_t>(m)];
        std::byte* record = records.data() + e * table.record.bytes;
        numeric::pack_fp8_units(codes[e][m], rows, inputs, {record + place.offset, codes[e][m].size()});
        std::memcpy(record + place.scales_offset, scales[e][m].data(), 2 * scales[e][m].size());
      }
    }
  }
  numeric::Fp8Matrix matrix(int64_t e, int m) const {
    return {codes[e][m], scales[e][m], m == 2 ? hidden : inner, m == 2 ? inner : hidden};
  }
};

// The halves of a token's experts by the definition; false at a fault.
bool expected_halves(const Fp8Layer& layer, std::span<const float> x, std::span<const int32_t> ids,
                     std::span<const float> weights, std::vector<float>& lower, std::vector<float>& upper) {
  numeric::ExpertSum sum(layer.hidden);
  bool finite = true;
  for (size_t k = 0; k < ids.size(); ++k) {
    std::vector<float> y(static_cast<size_t>(layer.hidden));
    finite =
        numeric::fp8_expert(layer.matrix(ids[k], 0), layer.matrix(ids[k], 1), layer.matrix(ids[k], 2), x, y) && finite;
    sum.add(ids[k], weights[k], y);
  }
  for (int64_t i = 0; i < layer.hidden; ++i) {
    lower.push_back(sum.half(0, i));
    upper.push_back(sum.half(1, i));
  }
  return finite && !sum.fault();
}

TEST(Fp8Experts, GiveTheBitsOfTheDefinitionForAnyTokensAndThreads) {
  RandomData random;
  const int64_t top_k = 2;
  for (const Character character : {Character::kOrdinary, Character::kZeroBlocks, Character::kExtreme}) {
    // Partial blocks of 128 in both directions, and a last tile of its own in down.
    const Fp8Layer layer(random, 160, 272 + 16, character);
    for (const int64_t tokens : {1, 2, 8, 23}) {
      const auto x = random_inputs(random, tokens * layer.hidden, character);
      std::vector<int32_t> ids;
      std::vector<float> weights;
      std::vector<float> lower;
      std::vector<float> upper;
      int64_t fault = -1;
      for (int64_t t = 0; t < tokens; ++t) {
        const auto first = static_cast<int32_t>(random.between(0, Fp8Layer::kExperts - 1));
        ids.insert(ids.end(), {first, static_cast<int32_t>((first + 1) % Fp8Layer::kExperts)});
        weights.insert(weights.end(), {0.75F, 0.25F});
        const auto at = static_cast<size_t>(t * top_k);
        const bool finite = expected_halves(
            layer, std::span(x).subspan(static_cast<size_t>(t * layer.hidden), static_cast<size_t>(layer.hidden)),
            std::span(ids).subspan(at, top_k), std::span(weights).subspan(at, top_k), lower, upper);
        if (!finite && fault < 0) fault = t;
      }
      for (const Kernels* set : kernel_sets()) {
        for (const int threads : {1, 2, 5}) {
          base::WorkerPool pool(threads);
          HostOps ops(pool, true, *set);
          auto got_lower = poisoned(tokens * layer.hidden);
          auto got_upper = got_lower;
          ASSERT_EQ(first_faulty(ops, {.x = x.data(),
                                       .tokens = tokens,
                                       .top_k = top_k,
                                       .ids = ids.data(),
                                       .weights = weights.data(),
                                       .table = layer.table,
                                       .quantise_activations = true,
                                       .lower = got_lower.data(),
                                       .upper = got_upper.data()}),
                    fault)
              << set->name;
          if (fault >= 0) continue;
          ASSERT_EQ(got_lower, lower) << set->name << ", " << threads << " threads, " << tokens << " tokens";
          ASSERT_EQ(got_upper, upper) << set->name << ", " << threads << " threads, " << tokens << " tokens";
        }
      }
    }
  }
}

TEST(Fp8Experts, NameTheFirstColumnThatIsNotFinite) {
  RandomData random;
  const Fp8Layer layer(random, 64, 128, Character::kOrdinary);
  auto x = random.normal(3 * layer.hidden);
  x[static_cast<size_t>(layer.hidden + 77)] = INFINITY;
  const std::vector<int32_t> ids = {0, 3, 2};
  const std::vector<float> weights(3, 1.0F);
  base::WorkerPool pool(2);
  for (const Kernels* set : kernel_sets()) {
    HostOps ops(pool, false, *set);
    auto lower = poisoned(3 * layer.hidden);
    auto upper = lower;
    EXPECT_EQ(first_faulty(ops, {.x = x.data(),
                                 .tokens = 3,
                                 .top_k = 1,
                                 .ids = ids.data(),
                                 .weights = weights.data(),
                                 .table = layer.table,
                                 .quantise_activations = true,
                                 .lower = lower.data(),
                                 .upper = upper.data()}),
              1);
  }
}

}  // namespace
}  // namespace tandem::ops::host
