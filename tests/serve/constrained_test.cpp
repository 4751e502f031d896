// Answers that must have a form: JSON, grammars, forced calls; with and without thinking, streamed and whole.
#include <gmock/gmock.h>
#include <map>
#include <set>

#include "chat_server.h"

namespace tandem::serve {
namespace {

using base::Json;
using test::ask;
using test::ChatServer;
using testing::scripted_engine;

Json merged(Json members, const Json& more) {
  members.update(more);
  return members;
}

Json weather_format() {
  return Json::parse(R"({"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema":
      {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "degrees": {"type": "integer"}},
       "required": ["city", "degrees"], "additionalProperties": false}}}})");
}

Json move_tools() {
  return {{"tools", Json::parse(R"([{"type":"function","function":{"name":"move","parameters":{"type":"object",
      "properties":{"steps":{"type":"integer"},"where":{"type":"string","enum":["left","right"]}},
      "required":["steps","where"],"additionalProperties":false}}},
      {"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}])")}};
}

// The message of a whole answer, or what a stream adds up to.
struct Answer {
  std::string content, reasoning, finish_reason;
  std::vector<std::pair<std::string, Json>> calls;  // name, arguments
};

Answer whole(ChatServer& server, const Json& body) {
  Answer out;
  const Json choice = server.answer(body).at("choices").at(0);
  const Json& message = choice.at("message");
  if (message.at("content").is_string()) out.content = message.at("content");
  out.reasoning = message.value("reasoning_content", "");
  out.finish_reason = choice.at("finish_reason");
  for (const Json& call : message.value("tool_calls", Json::array())) {
    out.calls.emplace_back(call.at("function").at("name"),
                           base::parse_json(call.at("function").at("arguments").get<std::string>(), "arguments"));
  }
  return out;
}

Answer streamed(ChatServer& server, const Json& body) {
  Answer out;
  std::vector<std::pair<std::string, std::string>> calls;
  for (const Json& chunk : server.chunks(body)) {
    const Json& choice = chunk.at("choices").at(0);
    const Json& delta = choice.at("delta");
    out.content += delta.value("content", "");
    out.reasoning += delta.value("reasoning_content", "");
    if (choice.at("finish_reason").is_string()) out.finish_reason = choice.at("finish_reason");
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      if (call.contains("id")) calls.emplace_back(call.at("function").at("name"), "");
      calls.back().second += call.at("function").at("arguments").get<std::string>();
    }
  }
  for (const auto& [name, arguments] : calls) out.calls.emplace_back(name, base::parse_json(arguments, "arguments"));
  return out;
}

TEST(Constrained, TheContentIsJsonUnderTheSchemaAndTheReasoningIsApart) {
  for (const bool thinking : {false, true}) {
    // What the model would say does not hold under the schema.
    ChatServer server(
        {std::string(thinking ? "Which city?</think>\n\n" : "") + "The city is Rome and it is 20 degrees."});
    const Json body = ask(
        "weather", merged(weather_format(), {{"enable_thinking", thinking}, {"temperature", 0}, {"max_tokens", 400}}));
    for (const Answer& answer : {whole(server, body), streamed(server, body)}) {
      EXPECT_EQ(answer.reasoning, thinking ? "Which city?" : "");
      const Json value = base::parse_json(answer.content, "content");
      EXPECT_TRUE(value.at("city").is_string());
      EXPECT_TRUE(value.at("degrees").is_number_integer());
      EXPECT_EQ(value.size(), 2u);
    }
  }
}

TEST(Constrained, WhatHoldsAlreadyIsLeftAsItIs) {
  const std::string json = R"({"city": "Rome", "degrees": -3})";
  ChatServer server({json});
  EXPECT_EQ(whole(server, ask("weather", weather_format())).content, json);
  ChatServer cut({json});
  const Answer answer = whole(cut, ask("weather", merged(weather_format(), {{"max_tokens", 5}})));
  EXPECT_EQ(answer.finish_reason, "length");
}

TEST(Constrained, JsonModeGrammarsAndChoices) {
  ChatServer any({R"({"a": [1, {"b": null}]})"});
  EXPECT_TRUE(base::parse_json(whole(any, ask("x", {{"response_format", {{"type", "json_object"}}}})).content, "c")
                  .is_object());
  ChatServer words({"maybe"});
  EXPECT_THAT(whole(words, ask("x", {{"guided_choice", {"yes", "no"}}, {"temperature", 0}})).content,
              ::testing::AnyOf("yes", "no"));
  ChatServer digits({"42 is it"});
  EXPECT_EQ(whole(digits, ask("x", {{"grammar", "root ::= [0-9]{2}"}, {"temperature", 0}})).content, "42");
}

TEST(Constrained, ACallIsForcedByNameOrAnyAndNoneIsNone) {
  const Json named = {{"tool_choice", {{"type", "function"}, {"function", {{"name", "now"}}}}}};
  const std::vector<Json> choices = {Json{{"tool_choice", "required"}}, named};
  for (const bool thinking : {false, true}) {
    for (const Json& choice : choices) {
      ChatServer server({std::string(thinking ? "No tool, I think.</think>\n\n" : "") + "Hello, just words."});
      const Json body = ask("x", merged(merged(move_tools(), choice), {{"enable_thinking", thinking},
                                                                       {"temperature", 0},
                                                                       {"max_tokens", 300},
                                                                       {"parallel_tool_calls", false}}));
      for (const Answer& answer : {whole(server, body), streamed(server, body)}) {
        ASSERT_EQ(answer.calls.size(), 1u);
        EXPECT_EQ(answer.finish_reason, "tool_calls");
        EXPECT_EQ(answer.content, "");
        EXPECT_EQ(answer.reasoning, thinking ? "No tool, I think." : "");
        if (choice == named) {
          EXPECT_EQ(answer.calls[0].first, "now");
        }
        if (answer.calls[0].first == "now") {
          EXPECT_EQ(answer.calls[0].second, Json::object());
        } else {
          EXPECT_TRUE(answer.calls[0].second.at("steps").is_number_integer());
        }
      }
    }
  }
  ChatServer server({"Words."});
  EXPECT_EQ(server
                .chat(ask("x", merged(move_tools(),
                                      {{"tool_choice", {{"type", "function"}, {"function", {{"name", "fly"}}}}}})))
                .status,
            400);
  EXPECT_EQ(whole(server, ask("x", merged(move_tools(), {{"tool_choice", "none"}}))).content, "Words.");
}

TEST(Constrained, StrictToolsGetArgumentsThatHold) {
  Json body = ask("x", move_tools());
  body["tools"][0]["function"]["strict"] = true;
  body["temperature"] = 0;
  body["max_tokens"] = 300;
  ChatServer server(
      {"I go.\n\n<tool_call>\n<function=move>\n<parameter=steps>\nmany\n</parameter>\n<parameter=where>\n"
       "up\n</parameter>\n</function>\n</tool_call>"});
  for (const Answer& answer : {whole(server, body), streamed(server, body)}) {
    EXPECT_EQ(answer.content, "I go.");
    ASSERT_EQ(answer.calls.size(), 1u);
    EXPECT_TRUE(answer.calls[0].second.at("steps").is_number_integer());
    EXPECT_THAT(answer.calls[0].second.at("where").get<std::string>(), ::testing::AnyOf("left", "right"));
  }
}

TEST(Constrained, AFormAndToolsTogetherAreJsonOrACall) {
  const std::string json = R"({"city": "Rome", "degrees": 3})";
  ChatServer server({json, "<tool_call>\n<function=now>\n</function>\n</tool_call>"});
  const Json body = ask("x", merged(move_tools(), weather_format()));
  EXPECT_EQ(whole(server, body).content, json);
  const Answer called = whole(server, body);
  ASSERT_EQ(called.calls.size(), 1u);
  EXPECT_EQ(called.calls[0].first, "now");
}

TEST(Constrained, WhatCannotBeHonouredIsRefusedAndTheServerLives) {
  ChatServer server({"{}"});
  const auto status = [&](const Json& members) { return server.chat(ask("x", members)).status; };
  const auto schema = [](const Json& s) {
    return Json{{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", s}}}}}};
  };
  EXPECT_EQ(status(schema({{"type", "object"}, {"not", Json::object()}})), 400);
  EXPECT_EQ(status(schema({{"type", "string"}, {"pattern", "(?<=x)*"}})), 400);
  EXPECT_EQ(status(schema({{"type", "string"}, {"pattern", std::string(20000, '(')}})), 400);
  EXPECT_EQ(status({{"grammar", "root ::= " + std::string(60000, '(')}}), 400);
  EXPECT_EQ(status({{"grammar", "root ::= nothing-there"}}), 400);
  EXPECT_EQ(test::fetch(server.port(), test::get("/health")).status, 200);
}

TEST(Choices, AreDrawnEachWithItsOwnSeedAndCountedOnce) {
  ChatServer server({"one", "two", "three"});
  const Json answer = server.answer(ask("x", {{"n", 3}, {"seed", 5}}));
  ASSERT_EQ(answer.at("choices").size(), 3u);
  std::set<std::string> texts;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer.at("choices")[i].at("index"), i);
    texts.insert(answer.at("choices")[i].at("message").at("content").get<std::string>());
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("one", "three", "two"));
  EXPECT_GE(answer.at("usage").at("completion_tokens"), 6);
  std::map<int, std::string> streamed;
  int finished = 0;
  for (const Json& chunk : server.chunks(ask("x", {{"n", 3}}))) {
    const Json& choice = chunk.at("choices").at(0);
    streamed[choice.at("index")] += choice.at("delta").value("content", "");
    finished += choice.at("finish_reason").is_string() ? 1 : 0;
  }
  EXPECT_EQ(streamed.size(), 3u);
  EXPECT_EQ(finished, 3);
}

TEST(Logprobs, ComeWithEachTokenOfTheContent) {
  ChatServer server({"Hm.</think>\n\nHello there, Ünï."});
  const Json body = ask("x", {{"enable_thinking", true}, {"logprobs", true}, {"top_logprobs", 3}, {"temperature", 0}});
  const auto spelled = [](const Json& entries) {
    std::string text;
    for (const Json& entry : entries) {
      EXPECT_LE(entry.at("logprob"), 0);
      EXPECT_EQ(entry.at("top_logprobs").size(), 3u);
      EXPECT_EQ(entry.at("top_logprobs")[0].at("token"), entry.at("token")) << "a greedy token is the likeliest";
      for (const Json& byte : entry.at("bytes")) text += static_cast<char>(byte.get<int>());
    }
    return text;
  };
  const Json choice = server.answer(body).at("choices").at(0);
  EXPECT_EQ(spelled(choice.at("logprobs").at("content")), "\n\nHello there, Ünï.");
  std::string text;
  for (const Json& chunk : server.chunks(body)) {
    const Json& logprobs = chunk.at("choices").at(0).at("logprobs");
    if (!logprobs.is_null()) text += spelled(logprobs.at("content"));
  }
  EXPECT_EQ(text, "\n\nHello there, Ünï.");
}

TEST(Prefill, GoesOnFromTheAssistantsWordsWithoutRepeatingThem) {
  testing::ScriptedOptions options;
  options.script = testing::answer_by([](const std::string& prompt) {
    return prompt.ends_with("assistant\n<think>\n\n</think>\n\nOnce upon") ? " a time." : "From the start.";
  });
  ChatServer server(scripted_engine(std::move(options)));
  Json body = ask("Tell a story.");
  body["messages"].push_back({{"role", "assistant"}, {"content", "Once upon"}});
  EXPECT_EQ(whole(server, body).content, " a time.");
}

}  // namespace
}  // namespace tandem::serve
