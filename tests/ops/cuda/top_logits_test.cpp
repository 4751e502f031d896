// The largest logits, on the card against the host's, and those against a full sort.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "base/pool.h"
#include "ops/cuda/sampling.h"
#include "ops/host/host_ops.h"
#include "tests/ops/cuda/skip_without_card.h"
#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kMost = Ops::kTopLogits;
constexpr TokenLogit kPoison{-77.5F, -77};

// Rows of logits, behind whose tokens lies what is none.
struct Rows {
  int64_t tokens;
  int64_t vocab = tokens + 45;
  std::vector<float> logits;
  std::vector<uint32_t> allowed;

  Rows(int64_t count, RandomData& random) : tokens(count), logits(random.normal(kRows * vocab)) {
    const int64_t words = (tokens + 31) / 32;
    allowed.resize(static_cast<size_t>(kRows * words));
    for (uint32_t& word : allowed) word = static_cast<uint32_t>(random.engine()());
    for (int64_t r = 0; r < kRows; ++r) {
      float* row = logits.data() + r * vocab;
      row[tokens] = 200.0F;
      row[tokens + 1] = std::numeric_limits<float>::quiet_NaN();
      const auto any = [&] { return row + random.between(0, tokens - 1); };
      if (r == 1) std::transform(row, row + tokens, row, [](float x) { return std::round(4 * x); });  // and both zeros
      if (r == 2) std::fill_n(row, tokens, -1.5F);
      if (r == 3) std::transform(row, row + tokens, row, [](float x) { return std::round(x) * 0x1p120F; });
      if (r == 4) std::fill_n(allowed.begin() + r * words, words, 0);
      if (r == 5) {  // few are allowed, and the best are neighbours
        std::fill_n(allowed.begin() + r * words, words, 0);
        for (int64_t w = words / 3; w < std::min(words, words / 3 + 9); ++w)
          allowed[static_cast<size_t>(r * words + w)] = ~0U >> 3;
        std::fill_n(row, std::min<int64_t>(tokens, 5000), 9.0F);
      }
      if (r == 6) *any() = std::numeric_limits<float>::quiet_NaN();
      if (r == 7) *any() = (random.engine()() & 1) == 0 ? INFINITY : -INFINITY;
    }
    logits[0] = std::numeric_limits<float>::lowest();
  }
  Ops::TopLogits args(bool masked, TokenLogit* best, int32_t* counts) const {
    return {.logits = logits.data(),
            .rows = kRows,
            .vocab = vocab,
            .tokens = tokens,
            .allowed = masked ? allowed.data() : nullptr,
            .best = best,
            .counts = counts};
  }
};

// Counts, then ids and bits of what was counted, of the first rows.
std::vector<int64_t> told(int64_t rows, const TokenLogit* best, const int32_t* counts) {
  std::vector<int64_t> all(counts, counts + rows);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * kMost; i < r * kMost + counts[r]; ++i) {
      const float logit = best[i].logit + 0.0F;  // there is one zero
      int32_t bits = 0;
      std::memcpy(&bits, &logit, 4);
      all.insert(all.end(), {best[i].id, bits});
    }
  }
  return all;
}

class TopLogits : public testing::TestWithParam<int64_t> {};
class CudaTopLogits : public testing::TestWithParam<int64_t> {};
const auto kSizes = testing::Values(248077, 262145, 8192, 7936, 300, 256, 255, 33, 1);
INSTANTIATE_TEST_SUITE_P(Tokens, TopLogits, kSizes, testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Tokens, CudaTopLogits, kSizes, testing::PrintToStringParamName());

TEST_P(TopLogits, OfTheHostAreThoseOfAFullSort) {
  RandomData random;
  base::WorkerPool pool{1};
  host::HostOps host{pool, true};
  const int64_t tokens = GetParam();
  const Rows rows(tokens, random);
  for (const bool masked : {false, true}) {
    std::vector<TokenLogit> best(kRows * kMost, kPoison);
    std::vector<int32_t> counts(kRows);
    host.top_logits(rows.args(masked, best.data(), counts.data()));
    for (int64_t r = 0; r < kRows; ++r) {
      const int32_t count = counts[static_cast<size_t>(r)];
      if (r >= 6) {
        EXPECT_EQ(count, -1);
        continue;
      }
      std::vector<TokenLogit> want;
      for (int64_t i = 0; i < tokens; ++i) {
        const uint32_t word = rows.allowed[static_cast<size_t>(r * ((tokens + 31) / 32) + i / 32)];
        if (masked && (word >> (i % 32) & 1) == 0) continue;
        want.push_back({rows.logits[static_cast<size_t>(r * rows.vocab + i)], static_cast<int32_t>(i)});
      }
      std::stable_sort(want.begin(), want.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
      ASSERT_EQ(count, std::min(kMost, static_cast<int64_t>(want.size())));
      for (int64_t i = 0; i < count; ++i) {
        const TokenLogit& got = best[static_cast<size_t>(r * kMost + i)];
        ASSERT_EQ(got.id, want[static_cast<size_t>(i)].id) << "row " << r << " entry " << i;
        ASSERT_EQ(got.logit, want[static_cast<size_t>(i)].logit);
      }
    }
  }
}

TEST_P(CudaTopLogits, AreTheHosts) {
  SKIP_WITHOUT_A_CARD();
  RandomData random;
  StateCard card;
  base::WorkerPool pool{1};
  host::HostOps host{pool, true};
  auto best = device::Buffer::shared(*card.device, kRows * kMost * static_cast<int64_t>(sizeof(TokenLogit)));
  auto counts = device::Buffer::shared(*card.device, kRows * 4);
  const Rows rows(GetParam(), random);
  Array<float> logits(card, rows.logits);
  Array<uint32_t> allowed(card, rows.allowed);
  for (const bool masked : {false, true}) {
    std::vector<TokenLogit> want_best(kRows * kMost);
    std::vector<int32_t> want_counts(kRows);
    host.top_logits(rows.args(masked, want_best.data(), want_counts.data()));
    for (const int64_t count : {kRows, kRows, int64_t{3}}) {  // a row does not depend on the others
      std::fill_n(best.as<TokenLogit>(), kRows * kMost, kPoison);
      std::fill_n(counts.as<int32_t>(), kRows, -77);
      Ops::TopLogits args = rows.args(masked, best.as<TokenLogit>(), counts.as<int32_t>());
      args.logits = logits.data();
      args.allowed = masked ? allowed.data() : nullptr;
      args.rows = count;
      top_logits(card.context, args);
      card.device->finish();
      EXPECT_EQ(told(count, best.as<TokenLogit>(), counts.as<int32_t>()),
                told(count, want_best.data(), want_counts.data()))
          << (masked ? "masked" : "all");
      for (int64_t r = count; r < kRows; ++r) EXPECT_EQ(counts.as<int32_t>()[r], -77);
      for (int64_t i = count * kMost; i < kRows * kMost; ++i) EXPECT_EQ(best.as<TokenLogit>()[i].id, kPoison.id);
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cuda
