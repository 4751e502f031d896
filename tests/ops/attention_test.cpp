#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "numeric/int8_kv.h"
#include "ops/host/host_ops.h"
#include "tests/ops/columns.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::host {
namespace {

constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kDim = 64;
constexpr int64_t kIndexHeads = 2;
constexpr int64_t kIndexDim = 32;
constexpr int64_t kRatio = 4;
constexpr int64_t kPage = 64;

// Pages in a shuffled order, as a block table has them after a while.
class AttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int32_t i = 0; i < kPages; ++i) table_.push_back(i);
    std::shuffle(table_.begin(), table_.end(), random_.engine());
    pages_ = poisoned(kPages * kPageFloats);
    kv_ = {.pages = reinterpret_cast<std::byte*>(pages_.data()),
           .page_bytes = kPageFloats * 4,
           .layer_offset = 0,
           .kv_heads = kKvHeads,
           .head_dim = kDim,
           .index_dim = kIndexDim,
           .ratio = kRatio,
           .type = KvType::kF32};
  }

  // Appends `tokens` random tokens; returns their queries.
  std::vector<float> append(int64_t tokens, int64_t position) {
    const auto q_gate = random_.normal(tokens * kHeads * 2 * kDim);
    const auto k = random_.normal(tokens * kKvHeads * kDim);
    const auto v = random_.normal(tokens * kKvHeads * kDim);
    keys_.insert(keys_.end(), k.begin(), k.end());
    values_.insert(values_.end(), v.begin(), v.end());
    auto q = poisoned(tokens * kHeads * kDim);
    ops_.attention_inputs(run(position, tokens).columns(), {.q_gate = q_gate.data(),
                                                            .k = k.data(),
                                                            .v = v.data(),
                                                            .q_norm = norm_.data(),
                                                            .k_norm = norm_.data(),
                                                            .heads = kHeads,
                                                            .rotary = rotary_,
                                                            .kv = kv_,
                                                            .q = q.data()});
    return q;
  }

  OneRun run(int64_t position, int64_t tokens, void* slot = nullptr) const {
    return {position, tokens, slot, table_.data()};
  }

  // Key of a token after norm and rotation, in double.
  std::vector<double> rotated_key(int64_t token, int64_t head) const {
    const float* k = keys_.data() + (token * kKvHeads + head) * kDim;
    double squares = 0;
    for (int64_t i = 0; i < kDim; ++i) squares += static_cast<double>(k[i]) * k[i];
    std::vector<double> out;
    for (int64_t i = 0; i < kDim; ++i)
      out.push_back(k[i] / std::sqrt(squares / kDim + 1e-6) * (1 + norm_[static_cast<size_t>(i)]));
    const int64_t pairs = rotary_.dims / 2;
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(token) *
                           std::pow(rotary_.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_.dims));
      const double a = out[static_cast<size_t>(i)];
      const double b = out[static_cast<size_t>(pairs + i)];
      out[static_cast<size_t>(i)] = a * std::cos(angle) - b * std::sin(angle);
      out[static_cast<size_t>(pairs + i)] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  }

  std::vector<double> reference(const float* q, const std::vector<int64_t>& tokens, int64_t head) const {
    std::vector<double> weights;
    double sum = 0;
    for (const int64_t token : tokens) {
      const auto key = rotated_key(token, head / 2);
      double dot = 0;
      for (int64_t i = 0; i < kDim; ++i) dot += key[static_cast<size_t>(i)] * q[i];
      weights.push_back(std::exp(dot * 0.125));
      sum += weights.back();
    }
    std::vector<double> out(kDim, 0.0);
    for (size_t j = 0; j < tokens.size(); ++j) {
      for (int64_t i = 0; i < kDim; ++i) {
        out[static_cast<size_t>(i)] +=
            weights[j] / sum * values_[static_cast<size_t>((tokens[j] * kKvHeads + head / 2) * kDim + i)];
      }
    }
    return out;
  }

  static constexpr int64_t kPages = 12;
  static constexpr int64_t kPageFloats = kPage * (2 * kKvHeads * kDim) + kPage / kRatio * kIndexDim;
  base::WorkerPool pool_{2};
  HostOps ops_{pool_, false};
  RandomData random_;
  const Rotary rotary_{16, 1e4};
  const std::vector<float> norm_ = random_.normal(kDim, 0.1F);
  std::vector<int32_t> table_;
  std::vector<float> pages_;
  std::vector<float> keys_, values_;
  KvLayer kv_;
};

TEST_F(AttentionTest, AttendsCausallyOverPages) {
  const int64_t tokens = 600;
  const auto q = append(tokens, 0);
  auto out = poisoned(tokens * kHeads * kDim);
  ops_.attention(run(0, tokens).columns(),
                 {.q = q.data(), .heads = kHeads, .scale = 0.125F, .kv = kv_, .selection = nullptr, .out = out.data()});
  for (const int64_t t : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{257}, tokens - 1}) {
    std::vector<int64_t> seen;
    for (int64_t j = 0; j <= t; ++j) seen.push_back(j);
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t at = (t * kHeads + h) * kDim;
      EXPECT_LT(relative_error({out.begin() + at, out.begin() + at + kDim}, reference(q.data() + at, seen, h)), 1e-4);
    }
  }
}

TEST_F(AttentionTest, OneColumnSharedOverThreadsGivesTheBitsOfManyColumns) {
  const int64_t tokens = 700;
  const auto q = append(tokens, 0);
  auto all = poisoned(tokens * kHeads * kDim);
  auto last = poisoned(kHeads * kDim);
  const Ops::Attention many{
      .q = q.data(), .heads = kHeads, .scale = 0.125F, .kv = kv_, .selection = nullptr, .out = all.data()};
  ops_.attention(run(0, tokens).columns(), many);
  Ops::Attention one = many;
  one.q = q.data() + (tokens - 1) * kHeads * kDim;
  one.out = last.data();
  base::WorkerPool wide(8);  // more threads than heads: the pieces are shared out and merged
  HostOps(wide, false).attention(run(tokens - 1, 1).columns(), one);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - kHeads * kDim));
}

TEST_F(AttentionTest, AnswersAreMultipliedByTheSigmoidOfTheirGates) {
  const int64_t tokens = 70;
  const auto q = append(tokens, 0);
  const auto q_gate = random_.normal(2 * tokens * kHeads * kDim, 3.0F);
  auto plain = poisoned(tokens * kHeads * kDim);
  auto gated = plain;
  Ops::Attention attention{.q = q.data(), .heads = kHeads, .scale = 0.125F, .kv = kv_, .out = plain.data()};
  ops_.attention(run(0, tokens).columns(), attention);
  attention.q_gate = q_gate.data();
  attention.out = gated.data();
  ops_.attention(run(0, tokens).columns(), attention);
  for (int64_t row = 0; row < tokens * kHeads; ++row) {
    for (int64_t d = 0; d < kDim; ++d) {
      const float gate = q_gate[static_cast<size_t>((2 * row + 1) * kDim + d)];
      const auto at = static_cast<size_t>(row * kDim + d);
      ASSERT_NEAR(gated[at], plain[at] / (1.0F + std::exp(-gate)), std::abs(plain[at]) * 1e-6F);
    }
  }
}

TEST_F(AttentionTest, SelectionAttendsToChosenBlocksAndTheUnfinishedOne) {
  const int64_t tokens = 331;  // 82 whole blocks and three tokens
  const auto q = append(tokens, 0);
  HostSelection selection(1, 3);
  selection.blocks = {0, 7, 80};
  selection.counts = {3};
  selection.view.blocks = selection.blocks.data();
  selection.view.counts = selection.counts.data();
  auto out = poisoned(kHeads * kDim);
  const int64_t at = (tokens - 1) * kHeads * kDim;
  ops_.attention(run(tokens - 1, 1).columns(), {.q = q.data() + at,
                                                .heads = kHeads,
                                                .scale = 0.125F,
                                                .kv = kv_,
                                                .selection = &selection.view,
                                                .out = out.data()});
  const std::vector<int64_t> seen = {0, 1, 2, 3, 28, 29, 30, 31, 320, 321, 322, 323, 328, 329, 330};
  for (int64_t h = 0; h < kHeads; ++h) {
    EXPECT_LT(relative_error({out.begin() + h * kDim, out.begin() + (h + 1) * kDim},
                             reference(q.data() + at + h * kDim, seen, h)),
              1e-4);
  }
}

// A window whose first column has a longer list than its last: 512 chosen tokens and one of the unfinished block, which
// the last column completes.
TEST_F(AttentionTest, WindowsHoldListsOfUnequalLength) {
  const int64_t tokens = 700;
  const int64_t budget = 128;
  append(tokens, 0);
  const int64_t begin = 600;
  const int64_t window = 4;
  HostSelection selection(window, budget);
  for (int64_t t = 0; t < window; ++t) {
    for (int64_t i = 0; i < budget; ++i)
      selection.blocks[static_cast<size_t>(t * budget + i)] = static_cast<int32_t>(i);
    selection.counts[static_cast<size_t>(t)] = budget;
  }
  const auto q = random_.normal(window * kHeads * kDim);
  auto together = poisoned(window * kHeads * kDim);
  base::WorkerPool wide(8);  // the pieces are shared out
  HostOps ops(wide, false);
  ops.attention(run(begin, window).columns(), {.q = q.data(),
                                               .heads = kHeads,
                                               .scale = 0.125F,
                                               .kv = kv_,
                                               .selection = &selection.view,
                                               .out = together.data()});
  for (int64_t t = 0; t < window; ++t) {
    std::vector<float> alone(static_cast<size_t>(kHeads * kDim));
    BlockSelection own = selection.view;
    own.blocks += t * budget;
    own.counts += t;
    ops.attention(run(begin + t, 1).columns(), {.q = q.data() + t * kHeads * kDim,
                                                .heads = kHeads,
                                                .scale = 0.125F,
                                                .kv = kv_,
                                                .selection = &own,
                                                .out = alone.data()});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + t * kHeads * kDim)) << "column " << t;
  }
}

TEST_F(AttentionTest, SelectsTheBestBlocksAndTheLowerAmongEquals) {
  const int64_t tokens = 64;
  const int64_t width = (kIndexHeads + 1) * kIndexDim;
  std::vector<float> qk(static_cast<size_t>(tokens * width), 0.0F);
  // Every key points along one axis but for blocks 3 and 9; the last query looks along it.
  for (int64_t t = 0; t < tokens; ++t) {
    float* key = qk.data() + t * width + kIndexHeads * kIndexDim;
    key[20] = t / kRatio == 3 || t / kRatio == 9 ? 1.0F : 0.0F;
    key[21] = t / kRatio == 3 || t / kRatio == 9 ? 0.0F : 1.0F;
  }
  for (int64_t h = 0; h < kIndexHeads; ++h) qk[static_cast<size_t>((tokens - 1) * width + h * kIndexDim + 20)] = 1.0F;
  const std::vector<float> zero(kIndexDim, 0.0F);
  std::vector<float> recent(static_cast<size_t>(Ops::kRecentKeys * kIndexDim), NAN);
  auto q = poisoned(tokens * kIndexHeads * kIndexDim);
  // In two calls whose border cuts a block, so that its mean needs the kept keys.
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 38}, {38, 26}}) {
    ops_.index_inputs(run(begin, count, recent.data()).columns(), {.qk = qk.data() + begin * width,
                                                                   .q_norm = zero.data(),
                                                                   .k_norm = zero.data(),
                                                                   .heads = kIndexHeads,
                                                                   .rotary = rotary_,
                                                                   .kv = kv_,
                                                                   .recent = 0,
                                                                   .q = q.data() + begin * kIndexHeads * kIndexDim});
  }
  const HostSelection selection(1, 4);
  ops_.select_blocks(run(tokens - 1, 1).columns(),
                     {.q = q.data() + (tokens - 1) * kIndexHeads * kIndexDim, .heads = kIndexHeads, .kv = kv_},
                     selection.view);
  EXPECT_EQ(selection.counts[0], 4);
  EXPECT_EQ(selection.blocks, (std::vector<int32_t>{0, 1, 3, 9}));
}

TEST_F(AttentionTest, EverythingIsSelectedWhileTheBudgetHoldsIt) {
  auto q = random_.normal(2 * kIndexHeads * kIndexDim);
  const HostSelection selection(2, 4);
  ops_.select_blocks(run(14, 2).columns(), {.q = q.data(), .heads = kIndexHeads, .kv = kv_}, selection.view);
  EXPECT_EQ(selection.counts[0], BlockSelection::kEverything);  // positions 0 to 14 hold three whole blocks
  EXPECT_EQ(selection.counts[1], BlockSelection::kEverything);  // and 15 completes the fourth
}

// Pages of 8 bits with a head whose last group is no whole one, and pages of FP32 with the numbers that the codes stand
// for: the same answers bit for bit.
TEST_F(AttentionTest, EightBitPagesGiveWhatTheirDecodedNumbersGive) {
  constexpr int64_t dim = 80;
  constexpr int64_t tokens = 300;
  const int64_t page_bytes = 4 * 2 * kKvHeads * kPage * dim;
  std::vector<std::byte> codes(static_cast<size_t>(kPages * page_bytes), std::byte{0xFF});
  std::vector<std::byte> floats = codes;
  KvLayer coded{.pages = codes.data(),
                .page_bytes = page_bytes,
                .layer_offset = 64,
                .kv_heads = kKvHeads,
                .head_dim = dim,
                .type = KvType::kInt8};
  KvLayer plain = coded;
  plain.pages = floats.data();
  plain.layer_offset = 0;
  plain.type = KvType::kF32;
  const auto q_gate = random_.normal(tokens * kHeads * 2 * dim);
  const auto k = random_.normal(tokens * kKvHeads * dim);
  const auto v = random_.normal(tokens * kKvHeads * dim, 3.0F);
  const auto norm = random_.normal(dim, 0.1F);
  auto q = poisoned(tokens * kHeads * dim);
  Ops::AttentionInputs inputs{.q_gate = q_gate.data(),
                              .k = k.data(),
                              .v = v.data(),
                              .q_norm = norm.data(),
                              .k_norm = norm.data(),
                              .heads = kHeads,
                              .rotary = rotary_,
                              .kv = coded,
                              .q = q.data()};
  ops_.attention_inputs(run(0, tokens).columns(), inputs);
  inputs.kv = plain;
  ops_.attention_inputs(run(0, tokens).columns(), inputs);
  for (int64_t row = 0; row < 2 * kKvHeads; ++row) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t page = table_[static_cast<size_t>(t / kPage)] * page_bytes;
      const int64_t place = row * kPage + t % kPage;
      auto* numbers = reinterpret_cast<float*>(floats.data() + page) + place * dim;
      const std::byte* base = codes.data() + page + coded.layer_offset;
      const auto* scales = reinterpret_cast<const uint16_t*>(base + 2 * kKvHeads * kPage * dim) + place * 2;
      for (int64_t g = 0; g < 2; ++g) {
        std::vector<int8_t> own(64);
        const uint16_t scale = numeric::int8_kv_encode(numbers + 64 * g, g == 0 ? 64 : 16, own.data());
        ASSERT_EQ(scales[g], scale);
        for (int64_t d = 64 * g; d < std::min(dim, 64 * g + 64); ++d) {
          const auto code = static_cast<int8_t>(base[place * dim + d]);
          ASSERT_EQ(code, own[static_cast<size_t>(d - 64 * g)]);
          numbers[d] = numeric::int8_kv_decode(code, scale);
        }
      }
    }
  }
  auto from_codes = poisoned(tokens * kHeads * dim);
  auto from_floats = from_codes;
  Ops::Attention attention{.q = q.data(), .heads = kHeads, .scale = 0.1F, .kv = coded, .out = from_codes.data()};
  ops_.attention(run(0, tokens).columns(), attention);
  attention.kv = plain;
  attention.out = from_floats.data();
  ops_.attention(run(0, tokens).columns(), attention);
  EXPECT_EQ(from_codes, from_floats);
}

}  // namespace
}  // namespace tandem::ops::host
