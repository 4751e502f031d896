#include "engine/sampling_defaults.h"

#include <gtest/gtest.h>

#include "scripted_engine.h"

namespace tandem::engine {
namespace {

GenerationDefaults defaults_of(const char* json) {
  return GenerationDefaults::from_json(base::parse_json(json, "test"), "generation_config.json");
}

const char* const kPublished = R"({"do_sample": true, "temperature": 1.0, "top_p": 0.95, "top_k": 20})";

void expect_same(const Sampling& actual, const Sampling& expected) {
  EXPECT_EQ(actual.temperature, expected.temperature);
  EXPECT_EQ(actual.top_p, expected.top_p);
  EXPECT_EQ(actual.top_k, expected.top_k);
  EXPECT_EQ(actual.min_p, expected.min_p);
  EXPECT_EQ(actual.presence_penalty, expected.presence_penalty);
  EXPECT_EQ(actual.frequency_penalty, expected.frequency_penalty);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    return error.what();
  }
  return "no error";
}

TEST(SamplingDefaults, ThePublishedFileLeavesThePresetOfEachMode) {
  const auto defaults = defaults_of(kPublished);
  expect_same(resolve_sampling({}, defaults, true), {.temperature = 1.0, .top_p = 0.95, .top_k = 20});
  expect_same(resolve_sampling({}, defaults, false),
              {.temperature = 0.7, .top_p = 0.8, .top_k = 20, .presence_penalty = 1.5});
}

TEST(SamplingDefaults, WithoutAFileThePresetsHold) {
  const GenerationDefaults none = GenerationDefaults::from_json(nullptr, "test");
  expect_same(resolve_sampling({}, none, true), kThinkingPreset);
  expect_same(resolve_sampling({}, none, false), kPlainPreset);
  EXPECT_TRUE(none.end_tokens.empty());
}

TEST(SamplingDefaults, ACheckpointsOwnAdviceHoldsInBothModes) {
  const auto defaults = defaults_of(R"({"temperature": 0.3, "top_p": 0.95})");
  expect_same(resolve_sampling({}, defaults, true), {.temperature = 0.3, .top_p = 0.95, .top_k = 20});
  expect_same(resolve_sampling({}, defaults, false),
              {.temperature = 0.3, .top_p = 0.95, .top_k = 20, .presence_penalty = 1.5});
}

TEST(SamplingDefaults, TheRequestComesFirstFieldByField) {
  const auto defaults = defaults_of(kPublished);
  SamplingRequest request;
  request.temperature = 0.5;
  request.min_p = 0.05;
  request.presence_penalty = 0.0;
  request.seed = 9;
  const Sampling sampling = resolve_sampling(request, defaults, false);
  expect_same(sampling, {.temperature = 0.5, .top_p = 0.8, .top_k = 20, .min_p = 0.05});
  EXPECT_EQ(sampling.seed, 9u);
}

TEST(SamplingDefaults, WithoutSamplingTheCheckpointIsGreedyUnlessTheRequestNamesATemperature) {
  const auto defaults = defaults_of(R"({"do_sample": false, "temperature": 1.0})");
  EXPECT_EQ(resolve_sampling({}, defaults, true).temperature, 0);
  EXPECT_EQ(resolve_sampling({}, defaults, false).temperature, 0);
  SamplingRequest request;
  request.temperature = 0.9;
  EXPECT_EQ(resolve_sampling(request, defaults, true).temperature, 0.9);
}

TEST(SamplingDefaults, AGreedyAnswerGetsNoPenaltyThatTheRequestDoesNotName) {
  SamplingRequest request;
  request.temperature = 0.0;
  EXPECT_EQ(resolve_sampling(request, {}, false).presence_penalty, 0);
  request.presence_penalty = 1.0;
  EXPECT_EQ(resolve_sampling(request, {}, false).presence_penalty, 1.0);
}

TEST(SamplingDefaults, RefuseValuesOutOfRangeNamingFieldAndFigures) {
  const auto with = [](auto set) {
    SamplingRequest request;
    set(request);
    return message_of([&] { resolve_sampling(request, {}, true); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(with([](auto& r) { r.temperature = -0.1; }), "temperature: -0.1 is outside [0, 100]");
  EXPECT_EQ(with([&](auto& r) { r.temperature = nan; }), "temperature: nan is outside [0, 100]");
  EXPECT_EQ(with([](auto& r) { r.top_p = 0.0; }), "top_p: 0 is outside (0, 1]");
  EXPECT_EQ(with([](auto& r) { r.top_p = 1.01; }), "top_p: 1.01 is outside (0, 1]");
  EXPECT_EQ(with([](auto& r) { r.top_k = -1; }), "top_k: -1 is negative; 0 switches it off");
  EXPECT_EQ(with([](auto& r) { r.min_p = 2.0; }), "min_p: 2 is outside [0, 1]");
  EXPECT_EQ(with([](auto& r) { r.presence_penalty = 2.5; }), "presence_penalty: 2.5 is outside [-2, 2]");
  EXPECT_EQ(with([](auto& r) { r.frequency_penalty = -3.0; }), "frequency_penalty: -3 is outside [-2, 2]");
  EXPECT_EQ(message_of([] { defaults_of(R"({"top_p": 7})"); }), "generation_config.json: top_p: 7 is outside (0, 1]");
}

TEST(EndTokens, AreOneOrAListAndTheFamilysOwn) {
  const auto tokenizer = testing::demo_tokenizer();
  const int32_t turn = tokenizer.added_token("<|im_end|>").value();
  const int32_t text = tokenizer.added_token("<|endoftext|>").value();
  const auto tokens = [&](const char* json) { return end_tokens(defaults_of(json), tokenizer, "test"); };
  std::vector<int32_t> family = {turn, text};
  std::sort(family.begin(), family.end());
  EXPECT_EQ(tokens("{}"), family);
  EXPECT_EQ(tokens(R"({"eos_token_id": 7})"), (std::vector<int32_t>{7, family[0], family[1]}));
  EXPECT_EQ(tokens(R"({"eos_token_id": [9, 3, 9]})"), (std::vector<int32_t>{3, 9, family[0], family[1]}));
}

TEST(EndTokens, OutsideTheTokenizerAreRefused) {
  const auto tokenizer = testing::demo_tokenizer();
  EXPECT_EQ(message_of([&] { end_tokens(defaults_of(R"({"eos_token_id": 100000})"), tokenizer, "test"); }),
            fmt::format("test: eos_token_id 100000 is outside the tokenizer's {} tokens", tokenizer.size()));
  for (const char* bad : {R"({"eos_token_id": -1})", R"({"eos_token_id": "x"})", R"({"eos_token_id": [1.5]})",
                          R"({"eos_token_id": 99999999999})"}) {
    EXPECT_NE(message_of([&] { defaults_of(bad); }).find("no token id"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace tandem::engine
