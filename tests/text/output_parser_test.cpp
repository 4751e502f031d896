#include "text/output_parser.h"

#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "text/python_json.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

using base::Json;
using testing::ElementsAre;
using testing::IsEmpty;
using Kind = OutputEvent::Kind;

Json tools() {
  return Json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "detailed": {"type": "boolean"},
      "limits": {"type": "object"}, "tags": {"type": "array", "items": {"type": "string"}},
      "note": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}])");
}

// An answer, joined from its events.
struct Answer {
  std::string reasoning, content;
  std::vector<std::string> names, arguments;  // by call
  std::string order;                          // R, C, B, A, E as they came, neighbours once
  bool operator==(const Answer&) const = default;
};

void add(Answer& answer, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    EXPECT_EQ(utf8_valid_prefix(event.text, 0), event.text.size());
    const auto call = static_cast<size_t>(event.tool_call);
    const char letter = "RCBAE"[static_cast<int>(event.kind)];
    if (answer.order.empty() || answer.order.back() != letter) answer.order += letter;
    switch (event.kind) {
      case Kind::kReasoning:
        answer.reasoning += event.text;
        break;
      case Kind::kContent:
        answer.content += event.text;
        break;
      case Kind::kToolCallBegin:
        EXPECT_EQ(call, answer.names.size());
        answer.names.push_back(event.text);
        answer.arguments.emplace_back();
        break;
      case Kind::kToolCallArguments:
        answer.arguments.at(call) += event.text;
        break;
      case Kind::kToolCallEnd:
        EXPECT_EQ(call + 1, answer.names.size());
        break;
    }
  }
}

Answer parse(const std::vector<std::string>& parts, bool thinking = false, const Json& with = tools()) {
  OutputParser parser(with, thinking);
  Answer answer;
  for (const std::string& part : parts) add(answer, parser.push(part));
  add(answer, parser.finish());
  EXPECT_EQ(parser.tool_calls().size(), answer.names.size());
  for (size_t i = 0; i < answer.names.size(); ++i) {
    EXPECT_EQ(parser.tool_calls()[i].name, answer.names[i]);
    EXPECT_EQ(python_json(parser.tool_calls()[i].arguments), answer.arguments[i]);
  }
  return answer;
}
Answer parse(const std::string& text, bool thinking = false, const Json& with = tools()) {
  return parse(std::vector{text}, thinking, with);
}

std::string call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}
std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}

const std::vector<std::string>& outputs() {
  static const std::vector<std::string> kOutputs = {
      "I think \xF0\x9F\x9A\x80 so.\n</think>\n\nHello \xE4\xB8\x96\xE7\x95\x8C!\n",
      "r</think>" + call("get_time", ""),
      "r\n</think>\n\nLet me look.\n\n" +
          call("get_weather", parameter("city", "M\xC3\xBCnchen \"Ost\"\n\xE6\x9D\xB1") + parameter("days", " 3") +
                                  parameter("limits", "{\"a\": [1, 2.50]}") + parameter("detailed", "true")) +
          "\n" + call("unknown_tool", parameter("x", "1")) + "\n",
      "a < b <tool_call> c </think> <tool_call>\n<func </thin\n</think>\n<tool_call> </tool_call> <<tool_call>\n x",
      "x</think>" + call("get_weather", parameter("city", "</parameter>\n</function> <parameter= \r\n") +
                                            parameter("city", "again") + parameter("tags", "[1") + "junk"),
      "never ends " + call("get_time", "") + " more\n\n",
      "x</think>  cut <tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
      "x</think>cut <tool_call>\n<function=get_weather>\n<parameter=days>\n12\n</param",
      "\xFF\xC3 \xE2\x82</think>\xF0\x9F",
  };
  return kOutputs;
}

TEST(OutputParser, AnySplitOfTheBytesGivesTheSame) {
  for (const std::string& output : outputs()) {
    for (const bool thinking : {true, false}) {
      const Answer whole = parse(output, thinking);
      for (size_t cut = 0; cut <= output.size(); ++cut) {
        EXPECT_EQ(parse({output.substr(0, cut), output.substr(cut)}, thinking), whole) << output << " at " << cut;
      }
      std::vector<std::string> bytes;
      for (const char byte : output) bytes.emplace_back(1, byte);
      EXPECT_EQ(parse(bytes, thinking), whole) << output;
    }
  }
}

TEST(OutputParser, RandomTextAtRandomSplitsGivesTheSame) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "<function=get_weather>",
                                           "</function>",
                                           "\n",
                                           "<parameter=city>",
                                           "<parameter=days>",
                                           "</parameter>",
                                           "</think>",
                                           " ",
                                           "5",
                                           "<",
                                           "text",
                                           "\xE6\x9D\xB1",
                                           "\r\n",
                                           "\"",
                                           "=",
                                           ">",
                                           "<function=",
                                           "\xC3"};
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string output;
    for (size_t i = random() % 30; i > 0; --i) output += pieces[random() % pieces.size()];
    std::vector<std::string> parts;
    for (size_t at = 0; at < output.size(); at += parts.back().size())
      parts.push_back(output.substr(at, 1 + random() % 9));
    const bool thinking = random() % 2 == 0;
    EXPECT_EQ(parse(parts, thinking), parse(output, thinking)) << output;
  }
}

TEST(OutputParser, SeparatesReasoningFromContent) {
  const Answer answer = parse("\n I think so. \n</think>\n\n Hello\nyou \n", true);
  EXPECT_EQ(answer.reasoning, "I think so.");
  EXPECT_EQ(answer.content, "Hello\nyou \n");
  EXPECT_EQ(answer.order, "RC");
}

TEST(OutputParser, TellsWhetherItIsInReasoning) {
  OutputParser parser(nullptr, true);
  parser.push("a</thi");
  EXPECT_TRUE(parser.in_reasoning());
  parser.push("nk>");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(OutputParser, ReasoningThatNeverEndsStaysReasoning) {
  const Answer answer = parse("I think </thin", true);
  EXPECT_EQ(answer.reasoning, "I think </thin");
  EXPECT_EQ(answer.content, "");
}

TEST(OutputParser, AThinkTagAfterReasoningIsContent) {
  EXPECT_EQ(parse("x</think>\n\na </think> b", true).content, "a </think> b");
  EXPECT_EQ(parse("a </think> b <think>").content, "a </think> b <think>");
}

TEST(OutputParser, ContentStreamsWithoutDelay) {
  OutputParser parser(tools(), false);
  Answer answer;
  add(answer, parser.push("Hello wor"));
  EXPECT_EQ(answer.content, "Hello wor");
  add(answer, parser.push("ld <"));
  EXPECT_EQ(answer.content, "Hello world");
  add(answer, parser.push("b>"));
  EXPECT_EQ(answer.content, "Hello world <b>");
}

TEST(OutputParser, StringArgumentsStreamAsTheyCome) {
  OutputParser parser(tools(), false);
  Answer answer;
  add(answer, parser.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nNew Y"));
  EXPECT_THAT(answer.names, ElementsAre("get_weather"));
  EXPECT_EQ(answer.arguments[0], "{\"city\": \"New Y");
  add(answer, parser.push("ork\n"));
  EXPECT_EQ(answer.arguments[0], "{\"city\": \"New York");
  EXPECT_THAT(parser.tool_calls(), IsEmpty());
  add(answer, parser.push("</parameter>\n</function>"));
  EXPECT_EQ(answer.arguments[0], "{\"city\": \"New York\"}");
  EXPECT_EQ(parser.tool_calls().size(), 1u);
}

TEST(OutputParser, ThinkingMayCloseRightIntoACall) {
  for (const char* between : {"", "\n", "\n\n"}) {
    const Answer answer = parse("r</think>" + std::string(between) + call("get_time", ""), true);
    EXPECT_EQ(answer.reasoning, "r");
    EXPECT_EQ(answer.content, "");
    EXPECT_EQ(answer.order, "RBAE");
  }
}

TEST(OutputParser, ACallWithoutParametersHasAnEmptyObject) {
  for (const char* text : {"<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
                           "<tool_call><function=get_time></function></tool_call>",
                           "<tool_call>\n<function=get_time>\n</tool_call>", "<tool_call>\n<function=get_time>"}) {
    EXPECT_THAT(parse(text).arguments, ElementsAre("{}")) << text;
  }
}

TEST(OutputParser, BlanksAroundCallsAreNoContent) {
  const Answer answer = parse("Look:\n\n" + call("get_time", "") + "\n" + call("get_time", "") + "\n");
  EXPECT_EQ(answer.content, "Look:");
  EXPECT_EQ(answer.order, "CBAEBAE");
  EXPECT_EQ(parse("\n\n" + call("get_time", "")).content, "");
  EXPECT_EQ(parse("A " + call("get_time", "") + "\nB").content, "A\nB");
}

TEST(OutputParser, MentionedTagsAreText) {
  for (const char* text : {"Write <tool_call> first, then </tool_call>.", "<tool_call>", "<tool_call>\n<function",
                           "<tool_call>\n{\"name\": 1}\n</tool_call>", "<function=f>", "<tool_call>\n<function=>x",
                           "<tool_call>\n<function=a\nb>"}) {
    const Answer answer = parse(text);
    EXPECT_EQ(answer.content, text);
    EXPECT_THAT(answer.names, IsEmpty());
  }
  EXPECT_EQ(parse("<tool_call>" + std::string(100, ' ') + "<function=get_time>").order, "C");
}

TEST(OutputParser, WithoutToolsNothingIsACall) {
  const std::string text = call("get_time", "");
  for (const Json& none : {Json(nullptr), Json::array(), Json("x")}) EXPECT_EQ(parse(text, false, none).content, text);
}

TEST(OutputParser, WithinReasoningOnlyAKnownToolIsCalled) {
  EXPECT_EQ(parse("form: " + call("example", "") + "</think>x", true).reasoning, "form: " + call("example", ""));
  const Answer answer = parse("I must look.\n" + call("get_time", ""), true);
  EXPECT_EQ(answer.reasoning, "I must look.");
  EXPECT_THAT(answer.names, ElementsAre("get_time"));
}

TEST(OutputParser, ValuesMayQuoteTags) {
  const std::string value = "a\n</parameter>\nb </function> <parameter=c> </tool_call>\n";
  const Answer answer = parse(call("get_weather", parameter("city", value) + parameter("days", "1")));
  EXPECT_EQ(Json::parse(answer.arguments.at(0))["city"], value);
  EXPECT_EQ(Json::parse(answer.arguments.at(0))["days"], 1);
}

TEST(OutputParser, ForgottenClosingTagsAreMadeUpFor) {
  EXPECT_THAT(parse("<tool_call>\n<function=get_weather>\n<parameter=city>\nX\n</function>\n</tool_call>").arguments,
              ElementsAre("{\"city\": \"X\"}"));
  EXPECT_THAT(parse("<tool_call>\n<function=get_weather>\n<parameter=city>X</parameter></tool_call> ok").arguments,
              ElementsAre("{\"city\": \"X\"}"));
  const Answer two =
      parse("<tool_call>\n<function=get_time>\n</function>\n<function=get_time>\n</function>\n</tool_call>");
  EXPECT_THAT(two.arguments, ElementsAre("{}", "{}"));
  EXPECT_EQ(parse("<tool_call>\n<function=get_time>\n</function>\n" + call("get_time", "")).names.size(), 2u);
}

TEST(OutputParser, TheFirstOfEqualParametersCounts) {
  const Answer answer =
      parse(call("get_weather", parameter("city", "A") + parameter("city", "B") + parameter("days", "2")));
  EXPECT_THAT(answer.arguments, ElementsAre("{\"city\": \"A\", \"days\": 2}"));
}

TEST(OutputParser, ACutCallIsClosed) {
  const std::string whole = call("get_weather", parameter("city", "Paris") + parameter("days", "12"));
  for (size_t length = 0; length <= whole.size(); ++length) {
    const Answer answer = parse(whole.substr(0, length));
    for (const std::string& arguments : answer.arguments) {
      EXPECT_TRUE(Json::accept(arguments)) << arguments;
      EXPECT_EQ(answer.content, "");
    }
  }
}

TEST(OutputParser, BlanksOnlyLineBreaksNextToTheTagsAreNotOfTheValue) {
  const auto city = [](const std::string& between) {
    const Answer answer = parse(call("get_weather", "<parameter=city>" + between + "</parameter>\n"));
    return Json::parse(answer.arguments.at(0))["city"].get<std::string>();
  };
  EXPECT_EQ(city("\n  x  \n"), "  x  ");
  EXPECT_EQ(city("\n\nx\n\n"), "\nx\n");
  EXPECT_EQ(city("\r\nx\r\n"), "x");
  EXPECT_EQ(city("\nx\r\n\n"), "x\r\n");
  EXPECT_EQ(city("\nx\r\n"), "x\r");
  EXPECT_EQ(city("x"), "x");
  EXPECT_EQ(city("\n\n"), "");
  EXPECT_EQ(city("\n"), "");
  EXPECT_EQ(city(""), "");
}

TEST(OutputParser, TakesLinearTime) {
  const std::vector<std::string> units = {" ",
                                          "<",
                                          "\n",
                                          "<tool_call>",
                                          "\xF0\x9F\x9A\x80",
                                          "</think",
                                          "<tool_call>\n<function=",
                                          "<parameter=city>",
                                          "\n</parameter>",
                                          "\xFF"};
  for (const std::string& unit : units) {
    for (const std::string& prefix :
         {std::string(), "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + unit}) {
      const auto start = std::chrono::steady_clock::now();
      OutputParser parser(tools(), false);
      size_t bytes = 0;
      parser.push(prefix);
      for (int i = 0; i < 30'000; ++i) {
        for (const OutputEvent& event : parser.push(unit)) bytes += event.text.size();
      }
      for (const OutputEvent& event : parser.finish()) bytes += event.text.size();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      EXPECT_LT(seconds.count(), 20.0) << unit;
      EXPECT_GT(bytes, 0u);
    }
  }
}

}  // namespace
}  // namespace tandem::text
