// What steers an answer beside the model: guards, the budget of reasoning, least lengths, log probabilities.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "engine/engine.h"
#include "grammar/grammar.h"
#include "scripted_engine.h"
#include "update_log.h"

namespace tandem::engine {
namespace {

using testing::answer_by;
using testing::demo_tokenizer;
using testing::scripted_engine;
using testing::scripted_limits;
using testing::ScriptedForward;
using testing::ScriptedOptions;
using testing::UpdateLog;

Request thoughtful(bool thinking = true) {
  Request request;
  text::Message message;
  message.content.push_back({.text = "Hi"});
  request.messages.push_back(std::move(message));
  request.template_options.thinking = thinking;
  request.sampling.temperature = 0;
  return request;
}

struct Answered {
  std::string reasoning, content;
  Outcome outcome;
};

Answered answer(Engine& engine, Request request) {
  auto log = UpdateLog::create();
  engine.submit(std::move(request), UpdateLog::sink(log));
  Answered out{.reasoning = {}, .content = {}, .outcome = log->wait()};
  out.reasoning = log->reasoning();
  out.content = log->content();
  return out;
}

std::unique_ptr<Engine> engine_with(const std::string& text, const Guards& guards = {}) {
  auto limits = scripted_limits();
  limits.guards = guards;
  ScriptedOptions options;
  options.script = answer_by([text](const std::string&) { return text; });
  return scripted_engine(std::move(options), limits);
}

std::unique_ptr<Engine> engine_with_tokens(std::vector<int32_t> tokens, const Guards& guards = {}) {
  auto limits = scripted_limits();
  limits.guards = guards;
  ScriptedOptions options;
  options.script = [tokens](std::span<const int32_t>) { return tokens; };
  return scripted_engine(std::move(options), limits);
}

TEST(Guards, ReasoningThatEndsTheAnswerIsClosedOnceAndTheAnswerGoesOn) {
  const auto engine = engine_with("Let me see.");
  Request request = thoughtful();
  request.max_tokens = 40;
  const Answered guarded = answer(*engine, request);
  EXPECT_EQ(guarded.reasoning, "Let me see.");
  EXPECT_NE(guarded.content, "");
  EXPECT_EQ(guarded.outcome.guards.reasoning_closed, 1);

  const auto unguarded = engine_with("Let me see.", {.open_thinking = false});
  const Answered open = answer(*unguarded, request);
  EXPECT_EQ(open.content, "");
  EXPECT_EQ(open.outcome.reason, FinishReason::kStop);
  EXPECT_EQ(open.outcome.guards.reasoning_closed, 0);
}

TEST(Guards, AnEndRightAfterTheReasoningIsDrawnAgain) {
  const auto engine = engine_with("Hm.</think>\n\n");
  const Answered guarded = answer(*engine, thoughtful());
  EXPECT_EQ(guarded.reasoning, "Hm.");
  EXPECT_NE(guarded.content, "");
  EXPECT_GE(guarded.outcome.guards.ends_redrawn, 1);
  EXPECT_EQ(guarded.outcome.reason, FinishReason::kStop);

  const auto unguarded = engine_with("Hm.</think>\n\n", {.empty_answer = false});
  EXPECT_EQ(answer(*unguarded, thoughtful()).content, "");
  // Without thinking an empty answer is the model's will.
  const auto plain = engine_with("");
  EXPECT_EQ(answer(*plain, thoughtful(false)).content, "");
}

TEST(Guards, OneTokenAgainAndAgainEndsTheAnswer) {
  const auto tokenizer = demo_tokenizer();
  const int32_t mark = tokenizer.encode("!", text::AddedTokens::kPlain).at(0);
  std::vector<int32_t> tokens(1000, mark);
  tokens[100] = tokenizer.encode("a", text::AddedTokens::kPlain).at(0);  // a run must be unbroken
  const auto engine = engine_with_tokens(tokens);
  const Answered guarded = answer(*engine, thoughtful(false));
  EXPECT_EQ(guarded.outcome.reason, FinishReason::kRepeat);
  EXPECT_EQ(finish_reason_name(guarded.outcome.reason), "repeat");
  EXPECT_EQ(guarded.outcome.completion_tokens, 101 + 256);
  EXPECT_EQ(guarded.outcome.guards.repeats_ended, 1);

  const auto unguarded = engine_with_tokens(tokens, {.repeat = false});
  EXPECT_EQ(answer(*unguarded, thoughtful(false)).outcome.completion_tokens, 1001);
  Request measured = thoughtful(false);
  measured.ignore_end_tokens = true;
  measured.max_tokens = 600;
  EXPECT_EQ(answer(*engine, measured).outcome.completion_tokens, 600) << "measurements run to their end";
}

TEST(Budget, ClosesTheReasoningAfterSoManyTokens) {
  const std::string thought = "one two three four five six seven eight nine ten eleven twelve";
  for (const int64_t budget : {0, 1, 5, 8}) {
    const auto engine = engine_with(thought + "</think>\n\nDone.");
    Request request = thoughtful();
    request.max_reasoning_tokens = budget;
    const Answered out = answer(*engine, request);
    EXPECT_EQ(out.outcome.reasoning_tokens, budget);
    EXPECT_TRUE(thought.starts_with(out.reasoning)) << out.reasoning;
    EXPECT_LT(out.reasoning.size(), thought.size());
    EXPECT_NE(out.content, "");
  }
  const auto engine = engine_with("Short.</think>\n\nDone.");
  Request request = thoughtful();
  request.max_reasoning_tokens = 1000;
  const Answered out = answer(*engine, request);
  EXPECT_EQ(out.reasoning, "Short.");
  EXPECT_EQ(out.content, "Done.");
}

TEST(Length, NoEndIsDrawnBeforeTheLeast) {
  const auto engine = engine_with("Hi.");
  Request request = thoughtful(false);
  request.min_tokens = 20;
  EXPECT_EQ(answer(*engine, request).outcome.token_ids.size(), 20u);
}

TEST(Steering, TheContentFollowsItsGrammarAfterTheReasoning) {
  const auto engine = engine_with("I think.</think>\n\nNo JSON at all, but words.");
  Request request = thoughtful();
  request.max_tokens = 200;
  request.grammar = grammar::compile_json_schema(
      base::Json::parse(R"({"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],
                            "additionalProperties":false})"),
      {.leading_newlines = 4});
  const Answered out = answer(*engine, request);
  EXPECT_EQ(out.reasoning, "I think.");
  const auto value = base::Json::parse(out.content, nullptr, false);
  ASSERT_TRUE(value.is_object()) << out.content;
  EXPECT_TRUE(value.at("ok").is_boolean());
  EXPECT_EQ(out.outcome.reason, FinishReason::kStop);
}

// Logits that differ at every step, the same for the same position.
void noisy_logits(const ScriptedForward& forward) {
  if (forward.logits == nullptr) return;
  std::mt19937 random(static_cast<uint32_t>(forward.begin));
  std::normal_distribution<float> normal(0, 3);
  for (float& logit : *forward.logits) logit = normal(random);
}

TEST(Logprobs, AreTheModelsOwnWhateverIsDrawn) {
  ScriptedOptions options;
  options.script = answer_by([](const std::string&) { return ""; });
  std::vector<std::vector<float>> seen;
  options.hook = [&](const ScriptedForward& forward) {
    noisy_logits(forward);
    if (forward.logits != nullptr) seen.push_back(*forward.logits);
  };
  const auto engine = scripted_engine(std::move(options));
  Request request = thoughtful(false);
  request.sampling.temperature = 1.5;
  request.sampling.seed = 3;
  request.max_tokens = 30;
  request.ignore_end_tokens = true;
  request.top_logprobs = 5;
  auto log = UpdateLog::create();
  engine->submit(request, UpdateLog::sink(log));
  const Outcome outcome = log->wait();
  std::vector<StepLogprobs> steps;
  for (const Update& update : log->updates()) {
    if (update.logprobs) steps.push_back(*update.logprobs);
  }
  ASSERT_EQ(steps.size(), 30u);
  ASSERT_GE(seen.size(), 30u);
  const auto tokens = static_cast<size_t>(engine->tokenizer().size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::vector<float> logits(seen[i].begin(), seen[i].begin() + static_cast<std::ptrdiff_t>(tokens));
    long double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<long double>(logit));
    const auto logprob = [&](int32_t token) {
      return static_cast<float>(static_cast<long double>(logits.at(static_cast<size_t>(token))) - std::log(total));
    };
    EXPECT_EQ(steps[i].drawn.token, outcome.token_ids.at(i));
    EXPECT_NEAR(steps[i].drawn.logprob, logprob(steps[i].drawn.token), 1e-4);
    ASSERT_EQ(steps[i].top.size(), 5u);
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(logits[static_cast<size_t>(steps[i].top[k].token)], sorted[k]);
      EXPECT_NEAR(steps[i].top[k].logprob, logprob(steps[i].top[k].token), 1e-4);
    }
  }
}

TEST(Progress, IsToldChunkByChunkWhereAsked) {
  const auto engine = engine_with("Yes.");
  Request request;
  request.prompt_ids = std::vector<int32_t>(200, 40);
  request.progress = true;
  auto log = UpdateLog::create();
  engine->submit(request, UpdateLog::sink(log));
  log->wait();
  std::vector<int64_t> done;
  for (const Update& update : log->updates()) {
    if (update.progress) done.push_back(update.progress->done);
  }
  EXPECT_EQ(done, (std::vector<int64_t>{64, 128, 192, 200})) << "chunks are of 64 tokens here";
}

TEST(Refusals, NameTheField) {
  const auto engine = engine_with("x");
  const auto refusal = [&](auto change) {
    Request request = thoughtful(false);
    change(request);
    try {
      engine->submit(std::move(request), [](const Update&) {});
    } catch (const base::Error& error) {
      return error.source();
    }
    return std::string("taken");
  };
  EXPECT_EQ(refusal([](Request& r) { r.top_logprobs = 21; }), "top_logprobs");
  EXPECT_EQ(refusal([](Request& r) { r.min_tokens = -1; }), "min_tokens");
  EXPECT_EQ(refusal([](Request& r) { r.max_reasoning_tokens = -1; }), "max_reasoning_tokens");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.logit_bias = {{1 << 30, 1}}; }), "logit_bias");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.logit_bias = {{5, 101}}; }), "logit_bias");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.repetition_penalty = 0; }), "repetition_penalty");
}

}  // namespace
}  // namespace tandem::engine
