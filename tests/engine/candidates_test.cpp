// A token drawn from the best candidates is the one that all logits give.
#include <algorithm>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <random>

#include "engine/sampler.h"

namespace tandem::engine {
namespace {

constexpr auto kMostCandidates = static_cast<size_t>(ops::Ops::kTopLogits);

bool allows(const Allowed& allowed, int32_t id) {
  const auto word = static_cast<size_t>(id) / 64;
  const bool may = allowed.mask.empty() || (word < allowed.mask.size() && (allowed.mask[word] >> (id % 64) & 1) != 0);
  return may && std::find(allowed.banned.begin(), allowed.banned.end(), id) == allowed.banned.end();
}

// As ops::Ops::top_logits has them.
std::vector<ops::TokenLogit> best_of(const std::vector<float>& logits, const Allowed& allowed) {
  std::vector<ops::TokenLogit> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (allows(allowed, id)) best.push_back({logits[i], id});
  }
  std::stable_sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
  best.resize(std::min(best.size(), kMostCandidates));
  return best;
}

// What a case has, so that it can be told when it fails.
struct Case {
  Sampling sampling;
  std::vector<float> logits;
  std::vector<uint64_t> mask;
  std::vector<int32_t> banned;
  Allowed allowed() const { return {.mask = mask, .banned = banned}; }
};

class DrawFromCandidates : public ::testing::Test {
 protected:
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  std::vector<float> logits(size_t tokens) {
    std::normal_distribution<float> normal(0, one_of({0.1F, 2.0F, 5.0F}));
    std::vector<float> logits(tokens);
    const bool coarse = random_() % 3 == 0;  // many are equal
    for (float& logit : logits) logit = coarse ? std::round(normal(random_)) : normal(random_);
    return logits;
  }

  Sampling sampling() {
    Sampling sampling;
    sampling.temperature = one_of({0.0, 0.01, 0.7, 1.0, 3.0});
    sampling.top_p = one_of({1.0, 1.0, 0.8, 0.1, 0.999});
    sampling.top_k = one_of<int64_t>({0, 1, 2, 20, 20, 64, 256, 257, 2000});
    sampling.min_p = one_of({0.0, 0.0, 0.05, 0.5, 1e-6});
    sampling.presence_penalty = one_of({0.0, 0.0, 1.5, 2.0, -0.5});
    sampling.frequency_penalty = one_of({0.0, 0.0, 0.3, 2.0, -0.1});
    sampling.repetition_penalty = one_of({1.0, 1.0, 1.1, 2.0, 0.9});
    for (int i = 0; i < 4 && random_() % 3 == 0; ++i) {
      sampling.logit_bias.push_back({static_cast<int32_t>(random_() % 3000), one_of({-100.0F, -0.5F, -3.0F, 1.0F})});
    }
    sampling.seed = random_();
    return sampling;
  }

  Case any() {
    Case c{.sampling = sampling(),
           .logits = logits(one_of<size_t>({1, 5, 100, 256, 257, 3000})),
           .mask = {},
           .banned = {}};
    if (random_() % 2 == 0) {
      const size_t words = (c.logits.size() + 63) / 64;
      const auto sparse = random_() % 3;
      for (size_t i = 0; i < words; ++i) c.mask.push_back(sparse == 0 ? random_() & random_() & random_() : random_());
    }
    if (random_() % 4 == 0) c.banned = {0, 3, 700, 5000};
    return c;
  }

  std::mt19937_64 random_{20261130};
};

TEST_F(DrawFromCandidates, TellsTheTokenThatAllLogitsTell) {
  int told = 0;
  int refused = 0;
  for (int round = 0; round < 6000; ++round) {
    const Case c = any();
    const auto best = best_of(c.logits, c.allowed());
    if (best.empty()) continue;
    const auto tokens = static_cast<int64_t>(c.logits.size());
    Sampler sampler(c.sampling, tokens);
    if (!sampler.takes_candidates()) continue;
    std::vector<int32_t> prompt;
    for (size_t i = random_() % 40; i > 0; --i) prompt.push_back(static_cast<int32_t>(random_() % c.logits.size()));
    sampler.accept_prompt(prompt);
    for (int position = 0; position < 5; ++position) {
      const int32_t want = sampler.draw(c.logits, position, c.allowed());
      const auto token = sampler.draw_from({.best = best, .tokens = tokens}, position);
      ++(token ? told : refused);
      ASSERT_EQ(token.value_or(want), want) << "round " << round << " position " << position;
      sampler.accept(want);
      for (size_t i = random_() % 8; i > 0; --i) sampler.accept(best[random_() % best.size()].id);
    }
  }
  EXPECT_GT(told, 3000);
  EXPECT_GT(refused, 100);
}

// With the published sampling, also when all likely tokens occurred before.
TEST_F(DrawFromCandidates, SufficeForThePresets) {
  std::vector<float> logits(100000);
  std::normal_distribution<float> normal(0, 2);
  for (float& logit : logits) logit = normal(random_);
  const auto best = best_of(logits, {});
  for (const double presence : {0.0, 1.5}) {
    Sampling sampling{.temperature = 0.7, .top_p = 0.8, .top_k = 20, .presence_penalty = presence};
    for (uint64_t seed = 0; seed < 200; ++seed) {
      sampling.seed = seed;
      Sampler sampler(sampling, static_cast<int64_t>(logits.size()));
      ASSERT_TRUE(sampler.takes_candidates());
      for (size_t i = 0; i < seed / 20; ++i) sampler.accept(best[i].id);
      EXPECT_EQ(sampler.draw_from({.best = best, .tokens = 100000}, 3), sampler.draw(logits, 3)) << "seed " << seed;
    }
  }
}

TEST_F(DrawFromCandidates, DoNotTellWhereOthersMayComeFirst) {
  std::vector<float> logits(1000, 1.0F);
  const auto best = best_of(logits, {});
  Sampling sampling{.temperature = 1, .top_k = 250, .presence_penalty = 0.5, .seed = 1};
  Sampler sampler(sampling, 1000);
  const Candidates given{.best = best, .tokens = 1000};
  EXPECT_EQ(sampler.draw_from(given, 0), sampler.draw(logits, 0));
  for (int32_t id = 0; id < 7; ++id) sampler.accept(id);  // 249 are left as good as those that were not given
  EXPECT_FALSE(sampler.draw_from(given, 0));
}

TEST_F(DrawFromCandidates, AreNotAskedForWhatTheyCannotTell) {
  const Sampling base{.temperature = 1, .top_p = 0.9, .top_k = 20, .seed = 1};
  const auto takes = [&](const std::function<void(Sampling&)>& change) {
    Sampling sampling = base;
    change(sampling);
    return Sampler(sampling, 1000).takes_candidates();
  };
  EXPECT_TRUE(takes([](Sampling&) {}));
  EXPECT_TRUE(takes([](Sampling& s) { s.top_k = 256; }));
  EXPECT_FALSE(takes([](Sampling& s) { s.top_k = 257; }));
  EXPECT_FALSE(takes([](Sampling& s) { s.top_k = 0; }));
  EXPECT_TRUE(takes([](Sampling& s) { s.top_k = 0, s.top_p = 1, s.min_p = 0.1; }));
  EXPECT_TRUE(takes([](Sampling& s) { s.logit_bias = {{3, -5}}; }));
  EXPECT_FALSE(takes([](Sampling& s) { s.logit_bias = {{3, 5}}; }));
  EXPECT_FALSE(takes([](Sampling& s) { s.presence_penalty = -1; }));
  EXPECT_FALSE(takes([](Sampling& s) { s.repetition_penalty = 0.5; }));
}

}  // namespace
}  // namespace tandem::engine
