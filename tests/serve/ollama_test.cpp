// Ollama's calls, as its simple clients use them.
#include <gmock/gmock.h>

#include "chat_server.h"

namespace tandem::serve {
namespace {

using base::Json;
using test::ChatServer;
using test::fetch;
using test::get;
using test::post;
using ::testing::HasSubstr;

Json ollama(const std::string& text, const Json& members = Json::object()) {
  Json body = {{"model", "any"}, {"messages", Json::array({{{"role", "user"}, {"content", text}}})}, {"think", false}};
  body.update(members);
  return body;
}

std::vector<Json> lines(const ChatServer& server, const Json& body) {
  const auto response = fetch(server.port(), post("/api/chat", body.dump()));
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/x-ndjson");
  std::vector<Json> out;
  for (size_t at = 0; at < response.body.size();) {
    const size_t end = response.body.find('\n', at);
    out.push_back(base::parse_json(response.body.substr(at, end - at), "line"));
    at = end + 1;
  }
  return out;
}

TEST(Ollama, StreamsByDefaultAndTellsTheCountsLast) {
  ChatServer server({"Hello there."});
  const auto answer = lines(server, ollama("hi"));
  ASSERT_GE(answer.size(), 2u);
  std::string text;
  for (const Json& line : answer) text += line.at("message").at("content").get<std::string>();
  EXPECT_EQ(text, "Hello there.");
  EXPECT_EQ(answer.back().at("done"), true);
  EXPECT_EQ(answer.back().at("done_reason"), "stop");
  EXPECT_GT(answer.back().at("prompt_eval_count"), 3);
  EXPECT_GT(answer.back().at("eval_count"), 1);
}

TEST(Ollama, AnswersWholeWithThinkingAndTools) {
  ChatServer server(
      {"Look.</think>\n\n<tool_call>\n<function=list>\n<parameter=depth>\n2\n</parameter>\n</function>\n"
       "</tool_call>"});
  const Json tools = Json::parse(R"([{"type":"function","function":{"name":"list","parameters":{"type":"object",
      "properties":{"depth":{"type":"integer"}}}}}])");
  const Json body = ollama("list", {{"stream", false}, {"think", true}, {"tools", tools}});
  const auto response = fetch(server.port(), post("/api/chat", body.dump()));
  ASSERT_EQ(response.status, 200) << response.body;
  const Json message = base::parse_json(response.body, "answer").at("message");
  EXPECT_EQ(message.at("thinking"), "Look.");
  EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("arguments"), Json({{"depth", 2}}));
  Json streamed = body;
  streamed["stream"] = true;
  bool called = false;
  for (const Json& line : lines(server, streamed)) called |= line.at("message").contains("tool_calls");
  EXPECT_TRUE(called);
}

TEST(Ollama, TellsWhatIsThereAndWhatIsWrong) {
  ChatServer server(testing::scripted_engine({"Hello."}), {.model_id = "qwen"});
  EXPECT_EQ(base::parse_json(fetch(server.port(), get("/api/tags")).body, "tags").at("models").at(0).at("name"),
            "qwen");
  EXPECT_TRUE(base::parse_json(fetch(server.port(), get("/api/version")).body, "v").at("version").is_string());
  EXPECT_THAT(fetch(server.port(), post("/api/show", R"({"model":"qwen"})")).body, HasSubstr("capabilities"));
  const auto refused = fetch(server.port(), post("/api/chat", R"({"messages":[{"role":"king"}]})"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(base::parse_json(refused.body, "error").at("error").get<std::string>(), HasSubstr("messages[0].role"));
  const auto limited = lines(server, ollama("hi", {{"options", {{"num_predict", 1}, {"temperature", 0}}}}));
  EXPECT_EQ(limited.back().at("done_reason"), "length");
}

}  // namespace
}  // namespace tandem::serve
