// Answers of an engine are the same whether its model gives the best candidates or all logits: a request that wants log
// probabilities is drawn from all of them.
#include <cstdlib>
#include <functional>
#include <future>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "grammar/grammar.h"
#include "tests/golden/support.h"

namespace tandem::golden {
namespace {

using engine::Request;

struct Way {
  const char* name;
  std::function<void(Request&)> ask;
};

const Way kWays[] = {
    {"preset", [](Request&) {}},
    {"greedy with penalties",
     [](Request& r) { r.sampling.temperature = 0, r.sampling.frequency_penalty = 0.5, r.sampling.top_k = 0; }},
    {"all penalties",
     [](Request& r) { r.sampling.repetition_penalty = 1.2, r.sampling.frequency_penalty = 2, r.sampling.top_k = 200; }},
    {"min-p",
     [](Request& r) {
       r.sampling.temperature = 1.5, r.sampling.top_k = 0, r.sampling.top_p = 1, r.sampling.min_p = 0.05;
     }},
    {"top-p alone", [](Request& r) { r.sampling.top_k = 0, r.sampling.top_p = 0.95; }},
    {"biases", [](Request& r) { r.sampling.logit_bias = {{65, -100}, {66, -1}}; }},
    {"a raising bias", [](Request& r) { r.sampling.logit_bias = {{65, 10}}; }},
    {"a grammar", [](Request& r) { r.grammar = grammar::compile_ebnf("root ::= [a-z ]*"); }},
    {"no end", [](Request& r) { r.min_tokens = 24, r.ignore_end_tokens = false; }},
};

std::vector<int32_t> answer(engine::Engine& engine, const Way& way, uint64_t seed, bool from_all) {
  Request request;
  request.prompt_ids = std::vector<int32_t>{72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100, 33};
  request.raw = true;
  request.max_tokens = 24;
  request.ignore_end_tokens = true;
  request.sampling.seed = seed;
  way.ask(request);
  if (from_all) request.top_logprobs = 0;
  std::promise<engine::Outcome> ended;
  engine.submit(std::move(request), [&](const engine::Update& update) {
    if (update.outcome) ended.set_value(*update.outcome);
  });
  const engine::Outcome outcome = ended.get_future().get();
  EXPECT_EQ(outcome.token_ids.size(), 24) << outcome.error;
  return outcome.token_ids;
}

TEST(Sampled, AnswersAreThoseOfAllLogits) {
  engine::EngineOptions options;
  options.artifact = demo_artifact("demo-dense").folder();
  options.max_context = 256;
  if (const char* device = std::getenv("TANDEM_TEST_DEVICE"); device != nullptr) options.device = device;
  engine::Engine engine(options);
  for (const Way& way : kWays) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      EXPECT_EQ(answer(engine, way, seed, false), answer(engine, way, seed, true)) << way.name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace tandem::golden
