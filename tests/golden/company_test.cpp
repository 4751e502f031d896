// A sequence's numbers do not depend on what is computed beside it: the bits of its logits are the same token by token
// alone, in a batch with other sequences, and in windows of up to eight tokens.
#include <functional>
#include <gtest/gtest.h>
#include <random>

#include "base/hash.h"
#include "tests/golden/support.h"
#include "tests/support/test_device.h"

namespace tandem::golden {
namespace {

struct CompanyCase {
  std::string name, model;
  model::Activations activations;
  model::KvCache kv_cache;
};

// A hash of each step's logits.
using Trace = std::vector<std::string>;

class Company : public testing::TestWithParam<CompanyCase> {
 protected:
  void SetUp() override {
    const CompanyCase& c = GetParam();
    model::LoadOptions options;
    options.activations = c.activations;
    options.kv_cache = c.kv_cache;
    options.indexer_budget = c.model == "demo-flash" ? 64 : 0;  // so that the sparse form is taken early
    loaded_ = std::make_unique<Loaded>(c.model, options, 4096, 4);
    vocab_ = loaded_->model().config().vocab;
    std::mt19937 random(seed_);
    // The processor computes fewer steps, for time; cards compute what matters.
    const int64_t steps = testing_support::test_device().is_host() ? 40 : 512;
    for (int64_t i = 0; i < kPrompt + steps; ++i) ids_.push_back(static_cast<int32_t>(random() % vocab_));
  }

  context::Sequence after_prompt(int64_t skipped = 0) {
    context::Sequence sequence = loaded_->sequence();
    model::ForwardOutput output;
    sequence.forward(std::span(ids_).subspan(static_cast<size_t>(skipped), static_cast<size_t>(kPrompt - skipped)), {},
                     output);
    return sequence;
  }
  std::span<const int32_t> rest() const { return std::span(ids_).subspan(kPrompt); }
  std::string hash(const float* logits) const {
    return base::xxh3_128_hex(std::as_bytes(std::span(logits, static_cast<size_t>(vocab_))));
  }

  Trace in_windows(const std::function<int64_t()>& width) {
    context::Sequence sequence = after_prompt();
    Trace trace;
    model::ForwardOutput output;
    for (size_t at = 0; at < rest().size();) {
      const auto count = std::min(static_cast<size_t>(width()), rest().size() - at);
      model::ForwardRequest request;
      request.logits = static_cast<int64_t>(count);
      sequence.forward(rest().subspan(at, count), request, output);
      for (size_t i = 0; i < count; ++i) trace.push_back(hash(output.logits.data() + static_cast<int64_t>(i) * vocab_));
      at += count;
    }
    return trace;
  }

  static constexpr int64_t kPrompt = 301;
  const unsigned seed_ = std::random_device{}();
  std::unique_ptr<Loaded> loaded_;
  int64_t vocab_ = 0;
  std::vector<int32_t> ids_;
};

TEST_P(Company, WindowsGiveTheBitsOfSingleSteps) {
  const Trace alone = in_windows([] { return 1; });
  for (const int64_t width : {2, 3, 8}) EXPECT_EQ(in_windows([&] { return width; }), alone) << "seed " << seed_;
  std::mt19937 random(seed_);
  EXPECT_EQ(in_windows([&] { return 1 + static_cast<int64_t>(random() % 8); }), alone) << "seed " << seed_;
}

TEST_P(Company, BatchesGiveTheBitsOfTheSequenceAlone) {
  const Trace alone = in_windows([] { return 1; });
  context::Sequence sequence = after_prompt();
  context::Sequence shorter = after_prompt(123);
  context::Sequence longer = after_prompt(7);
  Trace trace;
  model::ForwardOutput output;
  std::mt19937 random(seed_);
  for (size_t at = 0; at < rest().size(); ++at) {
    // At another place among the others each time.
    std::vector<context::Sequence*> members = {&shorter, &longer};
    const size_t place = random() % 3;
    members.insert(members.begin() + static_cast<int64_t>(place), &sequence);
    const std::vector<std::span<const int32_t>> tokens(3, rest().subspan(at, 1));
    context::Sequence::forward(members, tokens, {}, output);
    trace.push_back(hash(output.logits.data() + static_cast<int64_t>(place) * vocab_));
  }
  EXPECT_EQ(trace, alone) << "seed " << seed_;
}

// Verification reads the state and leaves it as it was.
TEST_P(Company, StepsThatDoNotAdvanceChangeNothing) {
  context::Sequence sequence = after_prompt();
  context::Sequence twin = sequence.copy();
  model::ForwardOutput output;
  model::ForwardRequest request;
  request.logits = 5;
  request.advance = false;
  sequence.forward(rest().first(5), request, output);
  const auto tried = output.logits;
  request.advance = true;
  sequence.forward(rest().first(5), request, output);
  EXPECT_EQ(output.logits, tried);
  twin.forward(rest().first(5), request, output);
  EXPECT_EQ(output.logits, tried);
}

// Choosing where the logits were computed gives the token that a look at all of them gives, with and without masks.
TEST_P(Company, TheLikeliestTokenIsChosenFromTheLogits) {
  std::vector<context::Sequence> told;
  std::vector<context::Sequence> kept;
  for (const int64_t skipped : {0, 123}) {
    told.push_back(after_prompt(skipped));
    kept.push_back(after_prompt(skipped));
  }
  std::vector<context::Sequence*> members = {&told[0], &told[1]};
  std::vector<context::Sequence*> twins = {&kept[0], &kept[1]};
  std::mt19937_64 random(seed_);
  const int64_t tokens = vocab_ - 5;  // the rest is padding
  std::vector<std::vector<uint64_t>> masks(2);
  for (size_t at = 0; at < 6; ++at) {
    const std::vector<std::span<const int32_t>> step(2, rest().subspan(at, 1));
    model::ForwardOutput output;
    context::Sequence::forward(members, step, {}, output);
    model::ForwardOutput none;
    context::Sequence::forward(twins, step, {.logits = 1, .keep_logits = true}, none);
    EXPECT_TRUE(none.logits.empty());
    std::vector<std::span<const uint64_t>> allowed;
    for (size_t r = 0; r < 2 && at % 3 != 0; ++r) {
      masks[r].assign(static_cast<size_t>(r == 1 ? vocab_ / 128 : (vocab_ + 63) / 64), 0);
      for (uint64_t& word : masks[r]) word = random();
      allowed.push_back(r == 0 && at % 3 == 1 ? std::span<const uint64_t>() : masks[r]);
    }
    std::vector<int32_t> want;
    for (size_t r = 0; r < 2; ++r) {
      const float* row = output.logits.data() + static_cast<int64_t>(r) * vocab_;
      int32_t best = -1;
      for (int32_t i = 0; i < tokens; ++i) {
        const auto word = static_cast<size_t>(i) / 64;
        const bool may = allowed.empty() || allowed[r].empty() ||
                         (word < allowed[r].size() && (allowed[r][word] >> (i % 64) & 1) != 0);
        if (may && (best < 0 || row[i] > row[best])) best = i;
      }
      want.push_back(best);
    }
    auto& model = loaded_->model();
    EXPECT_EQ(model.greedy(tokens, allowed), want) << "seed " << seed_;
    const auto best = model.top_logits(tokens, allowed);
    for (size_t r = 0; r < 2; ++r) {
      ASSERT_FALSE(best.at(r).best.empty()) << "seed " << seed_;
      EXPECT_EQ(best[r].best[0].id, want[r]) << "seed " << seed_;
      for (const ops::TokenLogit& entry : best[r].best) {
        EXPECT_EQ(entry.logit, output.logits[r * static_cast<size_t>(vocab_) + static_cast<size_t>(entry.id)]);
      }
    }
    const auto logits = model.read_logits();
    EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), output.logits);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Company,
    testing::Values(CompanyCase{"Dense", "demo-dense", model::Activations::kBF16, model::KvCache::kActivations},
                    CompanyCase{"Flash", "demo-flash", model::Activations::kBF16, model::KvCache::kActivations},
                    CompanyCase{"FlashF32", "demo-flash", model::Activations::kF32, model::KvCache::kActivations},
                    CompanyCase{"Qsa", "qsa-random", model::Activations::kBF16, model::KvCache::kActivations}),
    [](const auto& item) { return item.param.name; });

}  // namespace
}  // namespace tandem::golden
