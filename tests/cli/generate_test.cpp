#include "generate.h"

#include <gtest/gtest.h>

#include "bench_report.h"
#include "scripted_engine.h"

namespace tandem::app {
namespace {

engine::Request ask(const std::string& text) {
  engine::Request request;
  request.messages.push_back(text_message(text::Role::kUser, text));
  request.template_options.thinking = false;
  return request;
}

TEST(Generate, StreamsAndReturnsTheWholeAnswer) {
  const auto engine = testing::scripted_engine({"Hello there, friend."});
  std::string streamed;
  const auto answer = generate(*engine, ask("Hi"), [&](const text::OutputEvent& event) { streamed += event.text; });
  EXPECT_EQ(answer.text, "Hello there, friend.");
  EXPECT_EQ(streamed, answer.text);
}

TEST(Generate, TheJsonHoldsWhatTheAnswerHeld) {
  const auto engine = testing::scripted_engine(
      {"Let me see.\n\n<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"});
  engine::Request request = ask("2 + 2?");
  request.tools = base::parse_json(
      R"([{"type": "function", "function": {"name": "add", "parameters":
          {"type": "object", "properties": {"a": {"type": "integer"}}}}}])",
      "test");
  const auto answer = generate(*engine, request, [](const text::OutputEvent&) {});
  const base::Json json = answer_json(answer);
  EXPECT_EQ(json["text"], "Let me see.");
  EXPECT_EQ(json["reasoning"], "");
  EXPECT_EQ(json["tool_calls"].dump(), R"([{"name":"add","arguments":{"a":2}}])");
  EXPECT_EQ(json["finish_reason"], "tool_calls");
  EXPECT_EQ(json["token_ids"].size(), answer.outcome.token_ids.size());
  EXPECT_EQ(json["prompt_tokens"], answer.outcome.prompt_tokens);
  EXPECT_TRUE(json["timings"]["decode_seconds"].is_number());
}

TEST(Generate, AFaultOfTheEngineIsAnError) {
  testing::ScriptedOptions options;
  options.script = testing::answer_in_turn(testing::demo_tokenizer(), {"one two three"});
  options.hook = [](const testing::ScriptedForward& forward) {
    if (forward.tokens.size() == 1) base::unavailable("pages", "none are left");
  };
  const auto engine = testing::scripted_engine(std::move(options));
  try {
    generate(*engine, ask("Hi"), [](const text::OutputEvent&) {});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kUnavailable);
    EXPECT_STREQ(error.what(), "pages: none are left");
  }
}

TEST(Generate, AnInterruptEndsTheAnswer) {
  testing::ScriptedOptions options;
  options.script = [](std::span<const int32_t>) { return std::vector<int32_t>(4000, 65); };
  options.step_time = std::chrono::milliseconds(1);
  const auto engine = testing::scripted_engine(std::move(options));
  std::atomic<bool> interrupted = false;
  const auto answer =
      generate(*engine, ask("Go on"), [&](const text::OutputEvent&) { interrupted = true; }, &interrupted);
  EXPECT_EQ(answer.outcome.reason, engine::FinishReason::kCancelled);
  EXPECT_LT(answer.outcome.completion_tokens, 2000);
}

TEST(BenchReport, HasTheOneShape) {
  BenchReport report;
  report.bench = "x";
  report.raw["a_s"] = {1.0, 2.0};
  report.figures["a_gb_s"] = 3.0;
  const base::Json json = report.to_json();
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"bench", "date", "build", "machine", "command", "raw", "figures"}));
  EXPECT_NE(json["command"].get<std::string>().find("cli_test"), std::string::npos);
  EXPECT_EQ(json["date"].get<std::string>().size(), std::string("2026-01-01T00:00:00Z").size());
}

TEST(BenchReport, MediansAreOfTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

}  // namespace
}  // namespace tandem::app
