#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "ops/host/host_ops.h"
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
    kv_ = {reinterpret_cast<std::byte*>(pages_.data()),
           kPageFloats * 4,
           0,
           table_,
           kKvHeads,
           kDim,
           kIndexDim,
           kRatio,
           false};
  }

  // Appends `tokens` random tokens; returns their queries.
  std::vector<float> append(int64_t tokens, int64_t position) {
    const auto q_gate = random_.normal(tokens * kHeads * 2 * kDim);
    const auto k = random_.normal(tokens * kKvHeads * kDim);
    const auto v = random_.normal(tokens * kKvHeads * kDim);
    keys_.insert(keys_.end(), k.begin(), k.end());
    values_.insert(values_.end(), v.begin(), v.end());
    auto q = poisoned(tokens * kHeads * kDim);
    auto gate = q;
    ops_.attention_inputs({.q_gate = q_gate.data(),
                           .k = k.data(),
                           .v = v.data(),
                           .q_norm = norm_.data(),
                           .k_norm = norm_.data(),
                           .tokens = tokens,
                           .position = position,
                           .heads = kHeads,
                           .rotary = rotary_,
                           .kv = kv_,
                           .q = q.data(),
                           .gate = gate.data()});
    for (int64_t i = 0; i < tokens * kHeads; ++i) {
      EXPECT_EQ(gate[static_cast<size_t>(i * kDim)], q_gate[static_cast<size_t>((2 * i + 1) * kDim)]);
    }
    return q;
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
  ops_.attention({.q = q.data(),
                  .tokens = tokens,
                  .position = 0,
                  .heads = kHeads,
                  .scale = 0.125F,
                  .kv = kv_,
                  .selection = nullptr,
                  .out = out.data()});
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
  const Ops::Attention many{.q = q.data(),
                            .tokens = tokens,
                            .position = 0,
                            .heads = kHeads,
                            .scale = 0.125F,
                            .kv = kv_,
                            .selection = nullptr,
                            .out = all.data()};
  ops_.attention(many);
  Ops::Attention one = many;
  one.q = q.data() + (tokens - 1) * kHeads * kDim;
  one.tokens = 1;
  one.position = tokens - 1;
  one.out = last.data();
  base::WorkerPool wide(8);  // more threads than heads: the pieces are shared out and merged
  HostOps(wide, false).attention(one);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - kHeads * kDim));
}

TEST_F(AttentionTest, SelectionAttendsToChosenBlocksAndTheUnfinishedOne) {
  const int64_t tokens = 331;  // 82 whole blocks and three tokens
  const auto q = append(tokens, 0);
  BlockSelection selection;
  selection.rows = {{.all = false, .blocks = {0, 7, 80}}};
  auto out = poisoned(kHeads * kDim);
  const int64_t at = (tokens - 1) * kHeads * kDim;
  ops_.attention({.q = q.data() + at,
                  .tokens = 1,
                  .position = tokens - 1,
                  .heads = kHeads,
                  .scale = 0.125F,
                  .kv = kv_,
                  .selection = &selection,
                  .out = out.data()});
  const std::vector<int64_t> seen = {0, 1, 2, 3, 28, 29, 30, 31, 320, 321, 322, 323, 328, 329, 330};
  for (int64_t h = 0; h < kHeads; ++h) {
    EXPECT_LT(relative_error({out.begin() + h * kDim, out.begin() + (h + 1) * kDim},
                             reference(q.data() + at + h * kDim, seen, h)),
              1e-4);
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
    ops_.index_inputs({.qk = qk.data() + begin * width,
                       .q_norm = zero.data(),
                       .k_norm = zero.data(),
                       .tokens = count,
                       .position = begin,
                       .heads = kIndexHeads,
                       .rotary = rotary_,
                       .kv = kv_,
                       .recent = recent.data(),
                       .q = q.data() + begin * kIndexHeads * kIndexDim});
  }
  BlockSelection selection;
  ops_.select_blocks({.q = q.data() + (tokens - 1) * kIndexHeads * kIndexDim,
                      .tokens = 1,
                      .position = tokens - 1,
                      .heads = kIndexHeads,
                      .budget_blocks = 4,
                      .kv = kv_},
                     selection);
  ASSERT_EQ(selection.rows.size(), 1u);
  EXPECT_FALSE(selection.rows[0].all);
  EXPECT_EQ(selection.rows[0].blocks, (std::vector<int32_t>{0, 1, 3, 9}));
}

TEST_F(AttentionTest, EverythingIsSelectedWhileTheBudgetHoldsIt) {
  auto q = random_.normal(2 * kIndexHeads * kIndexDim);
  BlockSelection selection;
  ops_.select_blocks({.q = q.data(), .tokens = 2, .position = 14, .heads = kIndexHeads, .budget_blocks = 4, .kv = kv_},
                     selection);
  EXPECT_TRUE(selection.rows[0].all);  // positions 0 to 14 hold three whole blocks
  EXPECT_TRUE(selection.rows[1].all);  // and 15 completes the fourth
}

}  // namespace
}  // namespace tandem::ops::host
