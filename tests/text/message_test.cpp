#include "text/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tandem::text {
namespace {

using base::Json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<Message> read(const char* json) {
  return messages_from_json(Json::parse(json));
}

// The error's text: the place and what is wrong with it.
std::string refusal(const char* json) {
  try {
    read(json);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(Messages, ContentMayBeTextNullAbsentOrParts) {
  const auto messages = read(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null},
    {"role": "assistant"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text":
    "b"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "video"}, {"image": "y"}, {"text": "c"}]}])");
  ASSERT_THAT(messages, SizeIs(4));
  EXPECT_EQ(content_text(messages[0]), "hi");
  EXPECT_THAT(messages[1].content, IsEmpty());
  EXPECT_THAT(messages[2].content, IsEmpty());
  ASSERT_THAT(messages[3].content, SizeIs(6));
  EXPECT_EQ(content_text(messages[3]), "abc");
  EXPECT_EQ(messages[3].content[2].kind, ContentPart::Kind::kImage);
  EXPECT_EQ(messages[3].content[3].kind, ContentPart::Kind::kVideo);
  EXPECT_EQ(messages[3].content[4].kind, ContentPart::Kind::kImage);
}

TEST(Messages, ToolCallArgumentsMayBeAnObjectOrItsText) {
  const auto messages = read(R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
    {"id": "2", "function": {"name": "g", "arguments": {"k": "v"}}}, {"name": "h", "arguments": ""},
    {"function": {"name": "i"}}, {"function": {"name": "j", "arguments": null}}]},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "done"}]}])");
  ASSERT_THAT(messages[1].tool_calls, SizeIs(5));
  EXPECT_EQ(messages[1].tool_calls[0].id, "1");
  EXPECT_EQ(messages[1].tool_calls[0].arguments.dump(), R"({"b":1,"a":[2]})");
  EXPECT_EQ(messages[1].tool_calls[1].arguments.dump(), R"({"k":"v"})");
  EXPECT_EQ(messages[1].tool_calls[2].name, "h");
  for (const size_t i : {2, 3, 4}) EXPECT_EQ(messages[1].tool_calls[i].arguments, Json::object());
  EXPECT_EQ(messages[2].tool_call_id, "1");
}

TEST(Messages, OlderFormsAreRead) {
  const auto messages = read(R"([{"role": "user", "content": "x"},
    {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": "done"}])");
  EXPECT_EQ(messages[1].tool_calls.at(0).name, "f");
  EXPECT_EQ(messages[2].role, Role::kTool);
}

TEST(Messages, ReasoningHasTwoNames) {
  const auto messages = read(R"([{"role": "assistant", "reasoning_content": "r1"},
    {"role": "assistant", "reasoning": "r2"}, {"role": "assistant", "reasoning": {"effort": "low"}}])");
  EXPECT_EQ(messages[0].reasoning, "r1");
  EXPECT_EQ(messages[1].reasoning, "r2");
  EXPECT_EQ(messages[2].reasoning, "");
}

TEST(Messages, SystemMessagesBecomeOneInFront) {
  const auto one = read(R"([{"role": "developer", "content": "D"}, {"role": "user", "content": "u"}])");
  ASSERT_THAT(one, SizeIs(2));
  EXPECT_EQ(one[0].role, Role::kSystem);
  const auto many = read(R"([{"role": "user", "content": "u"}, {"role": "system", "content": "A"},
    {"role": "assistant", "content": "x"}, {"role": "system", "content": ""}, {"role": "developer", "content":
    [{"type": "text", "text": "B"}]}, {"role": "user", "content": "v"}])");
  ASSERT_THAT(many, SizeIs(4));
  EXPECT_EQ(content_text(many[0]), "A\n\nB");
  EXPECT_EQ(many[1].role, Role::kUser);
  EXPECT_EQ(content_text(many[3]), "v");
  EXPECT_THAT(read(R"([{"role": "user", "content": "u"}, {"role": "system", "content": " "}])"), SizeIs(1));
}

TEST(Messages, ErrorsNameThePlace) {
  EXPECT_THAT(refusal("null"), HasSubstr("messages: must be an array, not absent"));
  EXPECT_THAT(refusal(R"({"role": "user"})"), HasSubstr("not object"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("messages[0]: must be an object, not number"));
  EXPECT_THAT(refusal(R"([{"content": "x"}])"), HasSubstr("messages[0].role"));
  EXPECT_THAT(refusal(R"([{"role": "user"}, {"role": "tutor"}])"), HasSubstr("messages[1].role: must be system"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": 5}])"), HasSubstr("messages[0].content: must be a string"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": ["x"]}])"), HasSubstr("messages[0].content[0]: must be an"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "smell"}]}])"),
              HasSubstr("messages[0].content[1].type: must be text, image_url or video_url, not \"smell\""));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "text"}]}])"), HasSubstr("content[0].text"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{}]}])"), HasSubstr("messages[0].content[0].type"));
}

TEST(Messages, ArgumentsThatAreNoObjectAreRefused) {
  const auto with = [](const std::string& arguments) {
    return refusal(
        (R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": )" + arguments + "}}]}]")
            .c_str());
  };
  const std::string place = "messages[0].tool_calls[0].function.arguments";
  EXPECT_THAT(with("5"), HasSubstr(place));
  EXPECT_THAT(with("\"[1]\""), HasSubstr(place + ": must hold a JSON object, not array"));
  EXPECT_THAT(with(R"("{\"a\": ")"), HasSubstr(place + ": is not valid JSON"));
  EXPECT_EQ(with("\" \""), "accepted");
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": {}}])"), HasSubstr("messages[0].tool_calls"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": [{"function": 1}]}])"), HasSubstr(".function: must be"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])"), HasSubstr(".function.name"));
}

TEST(Messages, ToolResultsStandInTheOrderOfTheirCalls) {
  const auto messages = messages_from_json(base::Json::parse(R"([{"role":"user","content":"go"},
      {"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"b","function":{"name":"g"}}]},
      {"role":"tool","tool_call_id":"b","content":"of b"},{"role":"tool","tool_call_id":"x","content":"of none"},
      {"role":"tool","tool_call_id":"a","content":"of a"},{"role":"user","content":"and"}])"));
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(content_text(messages[2]), "of a");
  EXPECT_EQ(content_text(messages[3]), "of b");
  EXPECT_EQ(content_text(messages[4]), "of none");
  EXPECT_EQ(messages[5].role, Role::kUser);
}

}  // namespace
}  // namespace tandem::text
