#include <gmock/gmock.h>

#include "chat_server.h"
#include "tests/support/slack.h"

namespace tandem::serve {
namespace {

using base::Json;
using test::ask;
using test::ChatServer;
using test::fetch;
using test::post;
using ::testing::HasSubstr;

Json post_json(ChatServer& server, const char* path, const Json& body, int status = 200) {
  const auto response = fetch(server.port(), post(path, body.dump()));
  EXPECT_EQ(response.status, status) << response.body;
  return base::parse_json(response.body, path);
}

TEST(Tokenize, GivesTheTokensAndTheirNumber) {
  ChatServer server({"Hello."});
  const Json answer = post_json(server, "/tokenize", {{"content", "Hello, world"}});
  EXPECT_EQ(answer.at("tokens"), Json(server.engine()->tokenizer().encode("Hello, world", text::AddedTokens::kPlain)));
  EXPECT_EQ(answer.at("count"), answer.at("tokens").size());
  EXPECT_EQ(answer.at("max_model_len"), 4096);
  EXPECT_EQ(post_json(server, "/tokenize", {{"prompt", "Hello, world"}}), answer);
  EXPECT_EQ(post_json(server, "/tokenize", {{"content", ""}}).at("count"), 0);
}

TEST(Tokenize, ControlTokensAreTextUnlessAskedFor) {
  ChatServer server({"Hello."});
  EXPECT_GT(post_json(server, "/tokenize", {{"content", "<|im_end|>"}}).at("count"), 1);
  EXPECT_EQ(post_json(server, "/tokenize", {{"content", "<|im_end|>"}, {"parse_special", true}}).at("count"), 1);
}

TEST(Tokenize, PiecesAreTextOrBytes) {
  ChatServer server({"Hello."});
  const std::string text = "a 😀";
  std::string joined;
  bool bytes = false;
  const Json answer = post_json(server, "/tokenize", {{"content", text}, {"with_pieces", true}});
  for (const Json& token : answer.at("tokens")) {
    const Json& piece = token.at("piece");
    std::string spelled;
    if (piece.is_string()) {
      spelled = piece.get<std::string>();
    } else {
      for (const Json& byte : piece) spelled += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(server.engine()->tokenizer().decode(std::vector<int32_t>{token.at("id").get<int32_t>()}, false), spelled);
    bytes = bytes || piece.is_array();
    joined += spelled;
  }
  EXPECT_EQ(joined, text);
  EXPECT_TRUE(bytes);
}

TEST(Tokenize, AConversationCountsAsItsRequestWould) {
  ChatServer server({"Hello."});
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "now"}}])");
  for (const Json& members : {Json::object(), Json{{"tools", tools}}, Json{{"enable_thinking", true}}}) {
    const Json body = ask("hi <|im_end|>", members);
    EXPECT_EQ(post_json(server, "/tokenize", body).at("count"), server.answer(body).at("usage").at("prompt_tokens"));
    const Json prompt = post_json(server, "/apply-template", body).at("prompt");
    EXPECT_THAT(prompt.get<std::string>(), HasSubstr("<|im_start|>user\nhi <|im_end|><|im_end|>\n"));
  }
}

TEST(Tokenize, DetokenizeGivesTheTextBack) {
  ChatServer server({"Hello."});
  const std::string text = "Grüße, 世界 😀 <|im_end|>";
  const Json tokens = post_json(server, "/tokenize", {{"content", text}}).at("tokens");
  const Json answer = post_json(server, "/detokenize", {{"tokens", tokens}});
  EXPECT_EQ(answer, Json({{"content", text}, {"prompt", text}}));
  EXPECT_EQ(post_json(server, "/detokenize", {{"tokens", Json::array()}}).at("content"), "");
}

TEST(Tokenize, LongRunsStayFast) {
  ChatServer server({"Hello."});
  std::string word(1 << 20, 'a');
  for (size_t i = 0; i < word.size(); ++i) word[i] = static_cast<char>('a' + i * i % 26);
  for (const std::string& text :
       {std::string(200'000, 'Z'), std::string(100'000, '\n'), std::string(100'000, ' '), word}) {
    const double start = testing_support::processor_seconds();
    const Json tokens = post_json(server, "/tokenize", {{"content", text}}).at("tokens");
    EXPECT_EQ(post_json(server, "/detokenize", {{"tokens", tokens}}).at("content"), text);
    EXPECT_LT(testing_support::processor_seconds() - start, 10 * testing_support::kSlack);
  }
}

TEST(Tokenize, BadRequestsAreNamed) {
  ChatServer server({"Hello."});
  const auto param = [&](const char* path, const std::string& body) {
    const auto response = fetch(server.port(), post(path, body));
    EXPECT_EQ(response.status, 400) << response.body;
    return base::parse_json(response.body, "error").at("error").at("param").get<std::string>();
  };
  EXPECT_EQ(param("/tokenize", "{}"), "content");
  EXPECT_EQ(param("/tokenize", R"({"content": 5})"), "content");
  EXPECT_EQ(param("/tokenize", R"({"content": "a", "prompt": "b"})"), "prompt");
  EXPECT_EQ(param("/tokenize", R"({"content": "a", "with_pieces": 1})"), "with_pieces");
  EXPECT_EQ(param("/tokenize", R"({"messages": [5]})"), "messages[0]");
  EXPECT_EQ(param("/detokenize", "{}"), "tokens");
  EXPECT_EQ(param("/detokenize", R"({"tokens": [1, -1]})"), "tokens[1]");
  EXPECT_EQ(param("/detokenize", R"({"tokens": [2147483648]})"), "tokens[0]");
  EXPECT_EQ(param("/detokenize", R"({"tokens": [[1]]})"), "tokens[0]");
  EXPECT_EQ(param("/apply-template", "{}"), "messages");
  EXPECT_EQ(param("/apply-template", R"({"messages": []})"), "messages");
}

}  // namespace
}  // namespace tandem::serve
