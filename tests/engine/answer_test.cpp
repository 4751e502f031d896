#include "engine/answer.h"

#include <gtest/gtest.h>

#include "scripted_engine.h"

namespace tandem::engine {
namespace {

using Kind = text::OutputEvent::Kind;

struct Collected {
  std::string content;
  std::string reasoning;
  std::vector<Kind> kinds;
};

void collect(Collected& collected, const std::vector<text::OutputEvent>& events) {
  for (const auto& event : events) {
    collected.kinds.push_back(event.kind);
    if (event.kind == Kind::kContent) collected.content += event.text;
    if (event.kind == Kind::kReasoning) collected.reasoning += event.text;
  }
}

class AnswerTest : public ::testing::Test {
 protected:
  // Pushes the tokens of `text` until a stop string ends the answer.
  Collected play(Answer& answer, const std::string& text) {
    Collected collected;
    for (const int32_t token : tokenizer_.encode(text, text::AddedTokens::kParse)) {
      collect(collected, answer.push(token));
      if (answer.stop_string()) break;
    }
    collect(collected, answer.finish());
    return collected;
  }

  text::Tokenizer tokenizer_ = testing::demo_tokenizer();
};

TEST_F(AnswerTest, SplitsReasoningFromContent) {
  Answer answer(tokenizer_, {.starts_in_reasoning = true});
  EXPECT_TRUE(answer.in_reasoning());
  const auto collected = play(answer, "I think.\n</think>\n\nIt is 4.");
  EXPECT_EQ(collected.reasoning, "I think.");
  EXPECT_EQ(collected.content, "It is 4.");
  EXPECT_FALSE(answer.in_reasoning());
}

TEST_F(AnswerTest, RawKeepsEverythingAsContent) {
  Answer answer(tokenizer_, {.starts_in_reasoning = true, .raw = true});
  EXPECT_EQ(play(answer, "a</think>\n\nb").content, "a</think>\n\nb");
  EXPECT_FALSE(answer.has_tool_calls());
}

TEST_F(AnswerTest, StopStringsEndTheContentAndAreNoPartOfIt) {
  Answer answer(tokenizer_, {.stop = {"\n\nQ:"}});
  EXPECT_EQ(play(answer, "Paris.\n\nQ: What next?").content, "Paris.");
  EXPECT_EQ(answer.stop_string(), "\n\nQ:");
}

TEST_F(AnswerTest, StopStringsAreNotSoughtInReasoning) {
  Answer answer(tokenizer_, {.starts_in_reasoning = true, .stop = {"STOP"}});
  const auto collected = play(answer, "no STOP here\n</think>\n\nyes STOP there");
  EXPECT_EQ(collected.reasoning, "no STOP here");
  EXPECT_EQ(collected.content, "yes ");
}

TEST_F(AnswerTest, HeldBackTextComesOutBeforeAToolCall) {
  const base::Json tools = base::parse_json(R"([{"type": "function", "function": {"name": "f"}}])", "test");
  Answer answer(tokenizer_, {.tools = tools, .stop = {"!!"}});
  const auto collected = play(answer, "Wait!<tool_call>\n<function=f>\n</function>\n</tool_call>");
  EXPECT_EQ(collected.content, "Wait!");
  EXPECT_TRUE(answer.has_tool_calls());
  const auto first_content = std::find(collected.kinds.begin(), collected.kinds.end(), Kind::kContent);
  const auto first_call = std::find(collected.kinds.begin(), collected.kinds.end(), Kind::kToolCallBegin);
  EXPECT_LT(first_content, first_call);
}

TEST_F(AnswerTest, AnEndInsideAPossibleStopStringLosesNothing) {
  Answer answer(tokenizer_, {.stop = {"STOP"}});
  EXPECT_EQ(play(answer, "Full STO").content, "Full STO");
  EXPECT_FALSE(answer.stop_string());
}

TEST_F(AnswerTest, OpenThinkIsRecognisedFromThePromptsTokens) {
  const auto open = [&](const char* text) {
    return ends_in_open_think(tokenizer_.encode(text, text::AddedTokens::kParse), tokenizer_);
  };
  EXPECT_TRUE(open("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(open("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(open("<think>\n<|im_start|>user\nhello"));
  EXPECT_FALSE(open("plain text"));
  // Typed by a user and encoded as text, it opens nothing.
  EXPECT_FALSE(ends_in_open_think(tokenizer_.encode("<think>", text::AddedTokens::kPlain), tokenizer_));
}

}  // namespace
}  // namespace tandem::engine
