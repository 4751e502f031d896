#include "engine/sampler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <random>

#include "engine/philox.h"

namespace tandem::engine {
namespace {

Sampling sampling_with(double temperature, uint64_t seed = 1) {
  Sampling sampling;
  sampling.temperature = temperature;
  sampling.seed = seed;
  return sampling;
}

std::vector<float> random_logits(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (auto& logit : logits) logit = normal(random);
  return logits;
}

std::map<int32_t, int> histogram(const Sampling& sampling, std::span<const float> logits, int draws) {
  Sampler sampler(sampling, static_cast<int64_t>(logits.size()));
  std::map<int32_t, int> counts;
  for (int position = 0; position < draws; ++position) ++counts[sampler.draw(logits, position)];
  return counts;
}

// Pearson's statistic of `counts` against probabilities; tokens without probability must not occur.
double chi_square(const std::map<int32_t, int>& counts, const std::map<int32_t, double>& expected, int draws) {
  double sum = 0;
  for (const auto& [token, probability] : expected) {
    const auto found = counts.find(token);
    const double difference = (found == counts.end() ? 0 : found->second) - probability * draws;
    sum += difference * difference / (probability * draws);
  }
  for (const auto& [token, count] : counts) EXPECT_TRUE(expected.contains(token)) << token << " x " << count;
  return sum;
}

std::map<int32_t, double> softmax(const std::map<int32_t, double>& logits, double temperature) {
  double total = 0;
  std::map<int32_t, double> result;
  for (const auto& [id, logit] : logits) total += result[id] = std::exp(logit / temperature);
  for (auto& [id, probability] : result) probability /= total;
  return result;
}

const std::vector<float> kLogits = {1.0f, 0.0f, 2.0f, -1.0f, 1.5f, 0.5f, -0.5f, 0.25f};

// The 0.999 quantile of chi-square with 7 degrees of freedom is 24.3; seeds are fixed, so a pass stays a pass.
constexpr double kChiSquareLimit = 24.3;
constexpr int kDraws = 20000;

TEST(Philox, AgreesWithThePublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, GreedyTakesTheHighestAndTheLowerIdAmongEquals) {
  Sampler sampler({.temperature = 0}, 5);
  EXPECT_EQ(sampler.draw(std::vector<float>{1, 3, 2, 3, 0}, 0), 1);
  EXPECT_EQ(sampler.draw(std::vector<float>{-1, -3, -2, -1, -1}, 0), 0);
}

TEST(Sampler, NeverDrawsTokensThatTheTokenizerLacks) {
  const std::vector<float> logits = {0, 0, 0, 50, 60};
  Sampler greedy({.temperature = 0}, 3);
  EXPECT_EQ(greedy.draw(logits, 0), 0);
  for (const auto& [token, count] : histogram(sampling_with(1.0), std::span(logits).first(3), 100)) EXPECT_LT(token, 3);
  Sampler sampler(sampling_with(1.0), 3);
  for (int position = 0; position < 200; ++position) EXPECT_LT(sampler.draw(logits, position), 3);
}

TEST(Sampler, TheSameSeedGivesTheSameDraws) {
  const auto logits = random_logits(500, 3);
  Sampling sampling = sampling_with(1.0, 42);
  sampling.top_p = 0.95;
  Sampler first(sampling, 500);
  Sampler second(sampling, 500);
  sampling.seed = 43;
  Sampler other(sampling, 500);
  int different = 0;
  for (int position = 0; position < 100; ++position) {
    const int32_t token = first.draw(logits, position);
    EXPECT_EQ(token, second.draw(logits, position));
    different += token != other.draw(logits, position);
  }
  EXPECT_GT(different, 50);
}

TEST(Sampler, TheDrawAtAPositionDoesNotDependOnEarlierDraws) {
  const auto logits = random_logits(500, 4);
  Sampler forwards(sampling_with(1.0, 7), 500);
  Sampler backwards(sampling_with(1.0, 7), 500);
  std::vector<int32_t> tokens;
  for (int position = 0; position < 50; ++position) tokens.push_back(forwards.draw(logits, position));
  for (int position = 49; position >= 0; --position) {
    EXPECT_EQ(backwards.draw(logits, position), tokens[static_cast<size_t>(position)]);
  }
}

TEST(Sampler, DrawsByProbabilityAtAnyTemperature) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    std::map<int32_t, double> logits;
    for (size_t i = 0; i < kLogits.size(); ++i) logits[static_cast<int32_t>(i)] = kLogits[i];
    const auto counts = histogram(sampling_with(temperature, 11), kLogits, kDraws);
    EXPECT_LT(chi_square(counts, softmax(logits, temperature), kDraws), kChiSquareLimit) << temperature;
  }
}

TEST(Sampler, TopKKeepsTheBestAndTheirProportions) {
  Sampling sampling = sampling_with(1.0, 12);
  sampling.top_k = 3;
  const auto counts = histogram(sampling, kLogits, kDraws);
  EXPECT_LT(chi_square(counts, softmax({{2, 2.0}, {4, 1.5}, {0, 1.0}}, 1.0), kDraws), kChiSquareLimit);
}

TEST(Sampler, TopKAmongEqualsKeepsTheLowerIds) {
  Sampling sampling = sampling_with(1.0, 13);
  sampling.top_k = 2;
  const auto counts = histogram(sampling, std::vector<float>{0, 1, 1, 1}, 500);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(Sampler, TopPKeepsTheFewestThatReachTheMass) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f), std::log(0.3f)};
  Sampling sampling = sampling_with(1.0, 14);
  sampling.top_p = 0.75;
  EXPECT_LT(chi_square(histogram(sampling, logits, kDraws), {{1, 0.625}, {3, 0.375}}, kDraws), kChiSquareLimit);
  sampling.top_p = 0.85;
  EXPECT_LT(
      chi_square(histogram(sampling, logits, kDraws), {{1, 0.5 / 0.95}, {3, 0.3 / 0.95}, {0, 0.15 / 0.95}}, kDraws),
      kChiSquareLimit);
  sampling.top_p = 1e-9;
  EXPECT_EQ(histogram(sampling, logits, 100).size(), 1u);
}

TEST(Sampler, TopPCountsTheMassOfWhatTopKLeft) {
  // Of 0.4, 0.3, 0.2, 0.1 top-k 2 leaves 4/7 and 3/7: 0.5 of that is reached by the first alone, of the whole it is
  // not.
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  Sampling sampling = sampling_with(1.0, 15);
  sampling.top_p = 0.5;
  EXPECT_EQ(histogram(sampling, logits, 500).size(), 2u);
  sampling.top_k = 2;
  EXPECT_EQ(histogram(sampling, logits, 500).size(), 1u);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  Sampling sampling = sampling_with(1.0, 16);
  sampling.min_p = 0.31;  // at least 0.155
  EXPECT_LT(chi_square(histogram(sampling, logits, kDraws), {{0, 0.625}, {1, 0.375}}, kDraws), kChiSquareLimit);
  sampling.min_p = 1;
  EXPECT_EQ(histogram(sampling, logits, 100).size(), 1u);
}

TEST(Sampler, PenaltiesCountTheTokensOfTheAnswer) {
  Sampling sampling{.temperature = 0, .presence_penalty = 1.0, .frequency_penalty = 0.5};
  Sampler sampler(sampling, 3);
  const std::vector<float> logits = {2.0f, 1.0f, -5.0f};
  EXPECT_EQ(sampler.draw(logits, 0), 0);
  sampler.accept(0);  // 2 - 1.5 = 0.5
  EXPECT_EQ(sampler.draw(logits, 1), 1);
  sampler.accept(1);  // 1 - 1.5 = -0.5
  EXPECT_EQ(sampler.draw(logits, 2), 0);
  sampler.accept(0);  // 2 - 2 = 0
  EXPECT_EQ(sampler.draw(logits, 3), 0);
  sampler.accept(0);  // 2 - 2.5 = -0.5: equal, the lower id
  EXPECT_EQ(sampler.draw(logits, 4), 0);
  sampler.accept(0);
  EXPECT_EQ(sampler.draw(logits, 5), 1);
}

TEST(Sampler, NegativePenaltiesEncourage) {
  Sampler sampler({.temperature = 0, .presence_penalty = -2}, 2);
  const std::vector<float> logits = {1.0f, 0.0f};
  sampler.accept(1);
  EXPECT_EQ(sampler.draw(logits, 1), 1);
}

TEST(Sampler, OneLogitThatIsNotFiniteIsFoundWhereverItStands) {
  const auto logits = random_logits(500, 6);
  for (size_t i = 0; i < logits.size(); ++i) {
    auto with = logits;
    with[i] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
    EXPECT_THROW(Sampler(sampling_with(1.0), 500).draw(with, 0), base::Error) << i;
    with[i] = i % 2 == 0 ? std::numeric_limits<float>::max() : std::numeric_limits<float>::lowest();
    EXPECT_NO_THROW(Sampler(sampling_with(1.0), 500).draw(with, 0)) << i;
  }
}

TEST(Sampler, LogitsThatAreNotFiniteAreAFaultWithTheFigures) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Sampler sampler(sampling_with(1.0), 4);
    try {
      sampler.draw(std::vector<float>{0, bad, bad, 1}, 7);
      FAIL();
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::kInternal);
      EXPECT_EQ(error.message(), "2 of 4 logits for token 7 of the answer are not finite");
    }
    // Padding is never drawn, so its values do not matter.
    EXPECT_EQ(Sampler({.temperature = 0}, 2).draw(std::vector<float>{0, 1, bad, bad}, 0), 1);
  }
  EXPECT_THROW(Sampler({.temperature = 0}, 4).draw({}, 0), base::Error);
}

TEST(Sampler, ExtremeTemperaturesStayDefined) {
  const std::vector<float> logits = {-3e38f, 3e38f, 0};
  EXPECT_EQ(histogram(sampling_with(1e-300, 5), logits, 50), (std::map<int32_t, int>{{1, 50}}));
  EXPECT_EQ(histogram(sampling_with(100, 5), kLogits, 2000).size(), kLogits.size());
}

// What the filters leave must not depend on how far the sorting went.
TEST(Sampler, FiltersOfALargeVocabularyAgreeWithAFullSort) {
  const auto logits = random_logits(20000, 9);
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  for (const double top_p : {0.3, 0.9, 0.999}) {
    Sampling sampling = sampling_with(1.5, 21);
    sampling.top_p = top_p;
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / 1.5);
    size_t kept = 0;
    for (double sum = 0; sum < top_p * total; ++kept) sum += std::exp(logits[static_cast<size_t>(order[kept])] / 1.5);
    Sampler sampler(sampling, 20000);
    for (int position = 0; position < 40; ++position) {
      double rest = uniform_draw(21, static_cast<uint64_t>(position));
      double mass = 0;
      for (size_t i = 0; i < kept; ++i) mass += std::exp(logits[static_cast<size_t>(order[i])] / 1.5);
      rest *= mass;
      size_t i = 0;
      while ((rest -= std::exp(logits[static_cast<size_t>(order[i])] / 1.5)) > 0) ++i;
      EXPECT_EQ(sampler.draw(logits, position), order[i]) << top_p << " at " << position;
    }
  }
}

TEST(Sampler, DrawsOnlyWhatIsAllowed) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const auto logits = random_logits(200, static_cast<uint32_t>(round));
    std::vector<uint64_t> mask(3);  // tokens from 192 on are beyond it
    for (auto& word : mask) word = uint64_t{random()} << 32 | random();
    const std::vector<int32_t> banned = {1, 2, 3, 70, 500};
    Sampling sampling = sampling_with(round % 3 == 0 ? 0 : 1.3, static_cast<uint64_t>(round));
    if (round % 2 == 1) sampling.top_k = 5;
    if (round % 5 == 1) sampling.top_p = 0.7;
    Sampler sampler(sampling, 200);
    const int32_t token = sampler.draw(logits, round, {.mask = mask, .banned = banned});
    const auto allowed = [&](int32_t id) {
      return id < 192 && (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0 &&
             std::find(banned.begin(), banned.end(), id) == banned.end();
    };
    ASSERT_TRUE(allowed(token)) << token << " in round " << round;
    if (sampling.temperature != 0) continue;
    for (int32_t id = 0; id < 200; ++id) {
      if (!allowed(id)) continue;
      EXPECT_LE(logits[static_cast<size_t>(id)], logits[static_cast<size_t>(token)]);
    }
  }
  Sampler sampler(sampling_with(1), 200);
  const std::vector<uint64_t> none(4, 0);
  EXPECT_THROW((void)sampler.draw(random_logits(200, 1), 0, {.mask = none}), base::Error);
}

TEST(Sampler, AMaskRenormalisesWhatItLeaves) {
  const uint64_t mask = 0b10110110;
  std::map<int32_t, double> left;
  for (int32_t id = 0; id < 8; ++id) {
    if ((mask >> id & 1) != 0) left[id] = kLogits[static_cast<size_t>(id)];
  }
  Sampler sampler(sampling_with(1), 8);
  std::map<int32_t, int> counts;
  for (int position = 0; position < kDraws; ++position) {
    ++counts[sampler.draw(kLogits, position, {.mask = std::span(&mask, 1)})];
  }
  EXPECT_LT(chi_square(counts, softmax(left, 1), kDraws), kChiSquareLimit);
}

TEST(Sampler, BiasesAndRepetitionPenaltyChangeTheLogits) {
  Sampling sampling = sampling_with(0);
  sampling.logit_bias = {{2, -100}, {3, 50}};
  EXPECT_EQ(Sampler(sampling, 8).draw(kLogits, 0), 3);
  sampling.logit_bias = {{2, -100}};
  EXPECT_EQ(Sampler(sampling, 8).draw(kLogits, 0), 4);

  Sampling penalised = sampling_with(0);
  penalised.repetition_penalty = 2;
  Sampler sampler(penalised, 8);
  const std::vector<int32_t> prompt = {2, 4};
  sampler.accept_prompt(prompt);
  EXPECT_EQ(sampler.draw(kLogits, 0), 0) << "2 / 2 = 1 ties with token 0, whose id is lower";
  sampler.accept(0);
  EXPECT_EQ(sampler.draw(kLogits, 1), 2);
}

}  // namespace
}  // namespace tandem::engine
