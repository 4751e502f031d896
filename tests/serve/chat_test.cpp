#include <algorithm>
#include <atomic>
#include <gmock/gmock.h>

#include "chat_server.h"
#include "serve/media.h"

namespace tandem::serve {
namespace {

using namespace std::chrono_literals;
using base::Json;
using test::ask;
using test::ChatServer;
using test::fetch;
using test::get;
using test::HttpClient;
using test::post;
using testing::answer_by;
using ::testing::HasSubstr;
using testing::scripted_engine;
using testing::ScriptedOptions;

const char* const kThought = "Add them.</think>\n\nIt is 85.";
const char* const kTwoCalls =
    "Looking.\n\n<tool_call>\n<function=list>\n<parameter=path>\na \"b\"\n</parameter>\n<parameter=depth>\n2\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";

Json tools() {
  return Json::parse(R"([{"type":"function","function":{"name":"list","parameters":{"type":"object",
      "properties":{"path":{"type":"string"},"depth":{"type":"integer"}}}}},
      {"type":"function","function":{"name":"now"}}])");
}

// What the chunks' deltas add up to.
struct Sum {
  std::string content;
  std::string reasoning;
  std::vector<Json> calls;  // {"id", "name", "arguments"}
  std::string finish_reason;
};

Sum sum(const std::vector<Json>& chunks) {
  Sum out;
  for (const Json& chunk : chunks) {
    for (const Json& choice : chunk.at("choices")) {
      const Json& delta = choice.at("delta");
      out.content += delta.value("content", "");
      out.reasoning += delta.value("reasoning_content", "");
      if (!choice.at("finish_reason").is_null()) out.finish_reason = choice.at("finish_reason");
      if (!delta.contains("tool_calls")) continue;
      for (const Json& part : delta.at("tool_calls")) {
        const size_t index = part.at("index");
        if (index == out.calls.size()) {
          out.calls.push_back({{"id", part.at("id")}, {"name", part.at("function").at("name")}, {"arguments", ""}});
        }
        Json& call = out.calls.at(index);
        call["arguments"] =
            call["arguments"].get<std::string>() + part.at("function").at("arguments").get<std::string>();
      }
    }
  }
  return out;
}

TEST(ChatCompletion, AnswersWholeWithReasoningApart) {
  ChatServer server({kThought});
  const Json answer = server.answer(ask("27 + 58?", {{"enable_thinking", true}}));
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_EQ(answer.at("model"), "scripted");
  EXPECT_THAT(answer.at("id").get<std::string>(), ::testing::StartsWith("chatcmpl-"));
  const Json& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "It is 85.");
  EXPECT_EQ(choice.at("message").at("reasoning_content"), "Add them.");
  EXPECT_FALSE(choice.at("message").contains("tool_calls"));
  const Json& usage = answer.at("usage");
  EXPECT_GT(usage.at("prompt_tokens"), 5);
  EXPECT_GT(usage.at("completion_tokens_details").at("reasoning_tokens"), 2);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 0);
  EXPECT_EQ(usage.at("total_tokens"), usage.at("prompt_tokens").get<int>() + usage.at("completion_tokens").get<int>());
}

TEST(ChatCompletion, StreamsTheRoleThenTheTextThenTheReason) {
  ChatServer server({kThought});
  const auto chunks = server.chunks(ask("27 + 58?", {{"enable_thinking", true}}));
  ASSERT_GT(chunks.size(), 4u);
  EXPECT_EQ(chunks[0].at("choices").at(0).at("delta"), Json({{"role", "assistant"}, {"content", ""}}));
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    EXPECT_EQ(chunk.at("id"), chunks[0].at("id"));
    EXPECT_FALSE(chunk.contains("usage")) << "it was not asked for";
    EXPECT_EQ(chunk.at("choices").size(), 1u);
  }
  const Sum all = sum(chunks);
  EXPECT_EQ(all.reasoning, "Add them.");
  EXPECT_EQ(all.content, "It is 85.");
  EXPECT_EQ(all.finish_reason, "stop");
  EXPECT_EQ(chunks.back().at("choices").at(0).at("delta"), Json::object());
}

TEST(ChatCompletion, StreamsTheUsageLastWhereAsked) {
  ChatServer server({"Hello."});
  const Json body = ask("hi", {{"stream_options", {{"include_usage", true}}}});
  const auto chunks = server.chunks(body);
  EXPECT_EQ(chunks.back().at("choices"), Json::array());
  EXPECT_EQ(chunks.back().at("usage"), server.answer(body).at("usage"));
  for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_TRUE(chunks[i].at("usage").is_null());
}

TEST(ChatCompletion, GivesToolCallsWithTypedArguments) {
  ChatServer server({kTwoCalls});
  const Json answer = server.answer(ask("look", {{"tools", tools()}}));
  const Json& message = answer.at("choices").at(0).at("message");
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "tool_calls");
  EXPECT_EQ(message.at("content"), "Looking.");
  const Json& calls = message.at("tool_calls");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_THAT(calls[0].at("id").get<std::string>(), ::testing::StartsWith("call_"));
  EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  EXPECT_EQ(calls[0].at("type"), "function");
  EXPECT_EQ(calls[0].at("function").at("name"), "list");
  EXPECT_EQ(Json::parse(calls[0].at("function").at("arguments").get<std::string>()),
            Json({{"path", "a \"b\""}, {"depth", 2}}));
  EXPECT_EQ(calls[1].at("function").at("arguments"), "{}") << "no parameters are an empty object";
}

TEST(ChatCompletion, StreamsToolCallsNameFirst) {
  ChatServer server({kTwoCalls});
  const auto chunks = server.chunks(ask("look", {{"tools", tools()}}));
  const Sum all = sum(chunks);
  EXPECT_EQ(all.content, "Looking.");
  EXPECT_EQ(all.finish_reason, "tool_calls");
  ASSERT_EQ(all.calls.size(), 2u);
  EXPECT_EQ(all.calls[0].at("name"), "list");
  EXPECT_EQ(Json::parse(all.calls[0].at("arguments").get<std::string>()), Json({{"path", "a \"b\""}, {"depth", 2}}));
  EXPECT_EQ(all.calls[1].at("arguments"), "{}");
  for (const Json& chunk : chunks) {
    const Json& delta = chunk.at("choices").at(0).at("delta");
    EXPECT_FALSE(delta.contains("content") && delta.contains("tool_calls"));
    EXPECT_EQ(chunk.dump().find("<tool_call>"), std::string::npos);
  }
}

TEST(ChatCompletion, PassesOnOneCallWhereParallelCallsAreOff) {
  ChatServer server({kTwoCalls});
  const Json body = ask("look", {{"tools", tools()}, {"parallel_tool_calls", false}});
  EXPECT_EQ(server.answer(body).at("choices").at(0).at("message").at("tool_calls").size(), 1u);
  EXPECT_EQ(sum(server.chunks(body)).calls.size(), 1u);
}

TEST(ChatCompletion, CallsNothingWhereToolChoiceIsNone) {
  ChatServer server({kTwoCalls});
  const Json answer = server.answer(ask("look", {{"tools", tools()}, {"tool_choice", "none"}}));
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_FALSE(answer.at("choices").at(0).at("message").contains("tool_calls"));
}

TEST(ChatCompletion, AToolResultAndAPictureReachThePrompt) {
  ScriptedOptions options;
  options.script = answer_by([](std::string prompt) {
    std::replace(prompt.begin(), prompt.end(), '<', '(');  // so that no control token ends the answer
    return prompt;
  });
  ChatServer server(scripted_engine(std::move(options)));
  Json body = ask("x");
  body["messages"] = Json::parse(R"([{"role":"user","content":"list"},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"ls","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"a.txt "},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}])");
  const std::string echo = server.answer(body).at("choices").at(0).at("message").at("content");
  EXPECT_THAT(echo, HasSubstr("a.txt " + std::string(kOmittedMedia)));
}

TEST(ChatCompletion, EndsAtStopStringsAndLimits) {
  ChatServer server({"one two three four five six"});
  const auto choice = [&](const Json& members) { return server.answer(ask("count", members)).at("choices").at(0); };
  const Json stopped = choice({{"stop", "three"}});
  EXPECT_EQ(stopped.at("message").at("content"), "one two ");
  EXPECT_EQ(stopped.at("finish_reason"), "stop");
  const Json cut = choice({{"max_tokens", 3}});
  EXPECT_EQ(cut.at("finish_reason"), "length");
  EXPECT_EQ(sum(server.chunks(ask("count", {{"max_completion_tokens", 3}}))).content,
            cut.at("message").at("content").get<std::string>());
}

TEST(ChatCompletion, BadRequestsAreNamedAndTheServerLives) {
  ChatServer server({"Hello."});
  const auto refusal = [&](const std::string& body) {
    const auto response = fetch(server.port(), post(ChatServer::kPath, body));
    EXPECT_EQ(response.status, 400) << body.substr(0, 200);
    const Json error = base::parse_json(response.body, "error").at("error");
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_NE(error.at("message"), "");
    return error;
  };
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("[]"), std::string(100'000, '['),
        std::string("{\"a\":\"\xff\"}"), std::string(R"({"messages":[{"role":"user","content":"\ud800"}]})"),
        std::string("\0{}", 3)}) {
    EXPECT_TRUE(refusal(body).at("param").is_null()) << body.substr(0, 50);
  }
  std::string many = "[0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  EXPECT_THAT(refusal("{\"a\":" + many + "]}").at("message").get<std::string>(), HasSubstr("1000000 keys and values"));
  EXPECT_EQ(refusal(R"({"messages":[]})").at("param"), "messages");
  EXPECT_EQ(refusal(R"({"messages":[{"role":"user","content":5}]})").at("param"), "messages[0].content");
  EXPECT_EQ(refusal(ask("x", {{"temperature", -1}}).dump()).at("param"), "temperature");
  EXPECT_EQ(refusal(ask("x", {{"top_p", 0}}).dump()).at("param"), "top_p");
  EXPECT_EQ(refusal(ask("x", {{"presence_penalty", 3}}).dump()).at("param"), "presence_penalty");
  EXPECT_EQ(refusal(ask("x", {{"stop", Json::array({""})}}).dump()).at("param"), "stop");
  EXPECT_EQ(refusal(ask("x", {{"functions", Json::array({1})}}).dump()).at("param"), "functions");
  EXPECT_EQ(server.answer(ask("hi")).at("choices").at(0).at("message").at("content"), "Hello.");
}

TEST(ChatCompletion, APromptBeyondTheContextIsRefusedWithTheFigures) {
  ChatServer server({"Hello."});
  for (const std::string& text : {std::string(200'000, 'Z'), std::string(100'000, '\n')}) {
    const auto response =
        server.chat(ask("say", {{"messages", Json::array({{{"role", "user"}, {"content", text + "x"}}})}}));
    EXPECT_EQ(response.status, 400);
    const Json error = base::parse_json(response.body, "error").at("error");
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_EQ(error.at("param"), "messages");
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("> 4095 maximum"));
    EXPECT_EQ(error.at("n_ctx"), 4096);
    EXPECT_GT(error.at("n_prompt_tokens"), 4096);
  }
  EXPECT_EQ(server.chat(ask("hi")).status, 200);
}

TEST(ChatCompletion, AnyModelNameIsServedUnlessNamesAreStrict) {
  ChatServer lenient({"Hello."});
  EXPECT_EQ(lenient.chat(ask("hi", {{"model", "gpt-5"}})).status, 200);
  ChatServer strict(scripted_engine({"Hello."}), {.model_id = "qwen", .strict_model = true});
  EXPECT_EQ(strict.answer(ask("hi", {{"model", "qwen"}})).at("model"), "qwen");
  const auto refused = strict.chat(ask("hi", {{"model", "gpt-5"}}));
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(base::parse_json(refused.body, "error").at("error").at("code"), "model_not_found");
  EXPECT_EQ(fetch(strict.port(), get("/v1/models/qwen")).status, 200);
  EXPECT_EQ(fetch(strict.port(), get("/v1/models/gpt-5")).status, 404);
}

TEST(Models, AreListedWithTheirContext) {
  ChatServer server(scripted_engine({"Hello."}), {.model_id = "Qwen/Qwen3.8", .strict_model = false});
  const Json list = base::parse_json(fetch(server.port(), get("/v1/models")).body, "models");
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 1u);
  EXPECT_EQ(list.at("data")[0].at("id"), "Qwen/Qwen3.8");
  EXPECT_EQ(list.at("data")[0].at("max_model_len"), 4096);
  const Json one = base::parse_json(fetch(server.port(), get("/v1/models/Qwen%2FQwen3.8")).body, "model");
  EXPECT_EQ(one.at("id"), "Qwen/Qwen3.8");
  EXPECT_EQ(one.at("object"), "model");
}

TEST(Health, TellsWhenTheModelIsLoaded) {
  ChatServer server(nullptr);
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 503);
  EXPECT_EQ(fetch(server.port(), get("/health", "", "HEAD")).status, 503);
  EXPECT_EQ(fetch(server.port(), get("/v1/models")).status, 503);
  const auto early = server.chat(ask("hi"));
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.headers.at("retry-after"), "1");
  server.service().set_engine(scripted_engine({"Hello."}));
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/health", "", "HEAD")).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/", "", "HEAD")).status, 200);
  EXPECT_EQ(server.chat(ask("hi")).status, 200);
}

TEST(Failures, InTheMiddleOfAStreamAreAnEvent) {
  std::atomic<int> forwards{0};
  ScriptedOptions options;
  options.script = answer_by([](const std::string&) { return "one two three four"; });
  options.hook = [&](const testing::ScriptedForward& forward) {
    if (forward.logits != nullptr && ++forwards % 3 == 0) base::unavailable("layer 7", "is out of memory");
  };
  ChatServer server(scripted_engine(std::move(options)));
  const auto chunks = server.chunks(ask("count"));
  const Json& error = chunks.back().at("error");
  EXPECT_EQ(error.at("type"), "server_error");
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("layer 7"));
  EXPECT_NE(sum({chunks.begin(), chunks.end() - 1}).content, "");

  const auto whole = server.chat(ask("count"));
  EXPECT_EQ(whole.status, 503);
  EXPECT_THAT(whole.body, HasSubstr("layer 7"));
}

// A prompt of many chunks, each of which takes a while.
std::shared_ptr<engine::Engine> slow_engine(std::chrono::milliseconds step, int max_concurrency = 1) {
  ScriptedOptions options;
  options.script = answer_by([](const std::string&) {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "word ";
    return text;
  });
  options.step_time = step;
  auto limits = testing::scripted_limits();
  limits.max_concurrency = max_concurrency;
  limits.max_queue = 2;
  return scripted_engine(std::move(options), limits);
}

std::string long_text(int words) {
  std::string text;
  for (int i = 0; i < words; ++i) text += "number " + std::to_string(i) + " ";
  return text;
}

TEST(Leaving, FreesTheEngineDuringPrefillDecodeAndInTheQueue) {
  ChatServer server(slow_engine(5ms));
  for (const bool stream : {true, false}) {
    for (const int words : {1, 300}) {
      HttpClient client(server.port());
      client.send(post(ChatServer::kPath, ask(long_text(words), {{"stream", stream}}).dump()));
      ASSERT_TRUE(server.engine_holds(1, 0));
      if (words == 1 && stream) client.read_until("word");
      client.close(words == 1);
      EXPECT_TRUE(server.engine_is_free_within(2s)) << stream << words;
    }
  }
  HttpClient running(server.port());
  running.send(post(ChatServer::kPath, ask("go").dump()));
  ASSERT_TRUE(server.engine_holds(1, 0));
  HttpClient waiting(server.port());
  waiting.send(post(ChatServer::kPath, ask("go").dump()));
  ASSERT_TRUE(server.engine_holds(1, 1));
  waiting.close();
  EXPECT_TRUE(server.engine_holds(1, 0)) << "a place in the queue is given back";
}

TEST(Queue, RefusesWhenItIsFull) {
  ChatServer server(slow_engine(5ms));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->send(post(ChatServer::kPath, ask("go", {{"stream", true}}).dump()));
    ASSERT_TRUE(server.engine_holds(1, i));
  }
  const auto refused = server.chat(ask("go"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 200) << "a full queue is not ill health";
}

TEST(Prefill, IsFilledWithCommentsAndHealthAnswers) {
  ServerOptions options;
  options.limits.keep_alive_time = 20ms;
  ChatServer server(slow_engine(20ms), {}, options);
  HttpClient client(server.port());
  client.send(post(ChatServer::kPath, ask(long_text(300), {{"stream", true}, {"max_tokens", 2}}).dump()));
  const std::string first = client.read_until(": keep-alive\n\n", 5s);
  EXPECT_THAT(first, HasSubstr("\"role\":\"assistant\""));
  EXPECT_THAT(first, ::testing::Not(HasSubstr("word")));
  EXPECT_THAT(first, HasSubstr(": keep-alive"));
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 200);
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("\"finish_reason\":\"length\""));
}

TEST(Stopping, TellsStreamsThatTheServerEnds) {
  ServerOptions options;
  options.grace = 500ms;
  ChatServer server(slow_engine(2ms), {}, options);
  HttpClient client(server.port());
  client.send(post(ChatServer::kPath, ask("go", {{"stream", true}}).dump()));
  client.read_until("word");
  const auto start = std::chrono::steady_clock::now();
  server.server().ask_to_stop();
  const std::string rest = client.read_until("[DONE]");
  EXPECT_THAT(rest, HasSubstr("shutting down"));
  EXPECT_TRUE(client.closed_within(2s));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}

TEST(Stopping, LeavesNoUpdateBehindWhereTheEngineEndsLater) {
  auto engine = slow_engine(1ms);
  auto server = std::make_unique<ChatServer>(engine);
  HttpClient client(server->port());
  client.send(post(ChatServer::kPath, ask("go", {{"stream", true}}).dump()));
  client.read_until("word");
  server.reset();
  engine.reset();
}

}  // namespace
}  // namespace tandem::serve
