#include <cmath>
#include <gmock/gmock.h>

#include "chat_server.h"
#include "text/utf8.h"

namespace tandem::serve {
namespace {

using base::Json;
using test::ChatServer;
using test::fetch;
using test::post;
using testing::answer_by;
using ::testing::HasSubstr;
using testing::scripted_engine;
using testing::ScriptedOptions;
using ::testing::StartsWith;

constexpr const char* kCompletions = "/v1/completions";

Json complete(ChatServer& server, const Json& body) {
  const auto response = fetch(server.port(), post(kCompletions, body.dump()));
  EXPECT_EQ(response.status, 200) << response.body;
  return base::parse_json(response.body, "completion");
}

// Every choice's text, and the reason it ended with.
struct Streamed {
  std::vector<std::string> texts;
  std::vector<std::string> reasons;
  std::vector<Json> chunks;
};

Streamed completion_stream(ChatServer& server, Json body, size_t choices = 1) {
  body["stream"] = true;
  const auto response = fetch(server.port(), post(kCompletions, body.dump()));
  EXPECT_EQ(response.status, 200) << response.body;
  Streamed out{.texts = std::vector<std::string>(choices),
               .reasons = std::vector<std::string>(choices),
               .chunks = ChatServer::chunks_of(response.body)};
  for (const Json& chunk : out.chunks) {
    EXPECT_EQ(chunk.at("object"), "text_completion");
    EXPECT_EQ(chunk.at("id"), out.chunks[0].at("id"));
    for (const Json& choice : chunk.at("choices")) {
      const size_t index = choice.at("index");
      EXPECT_EQ(out.reasons.at(index), "") << "text after the end";
      const auto text = choice.at("text").get<std::string>();
      EXPECT_EQ(text::utf8_repaired(text), text);
      out.texts.at(index) += text;
      if (!choice.at("finish_reason").is_null()) out.reasons.at(index) = choice.at("finish_reason");
    }
  }
  return out;
}

Json refusal(ChatServer& server, const std::string& body) {
  const auto response = fetch(server.port(), post(kCompletions, body));
  EXPECT_EQ(response.status, 400) << body.substr(0, 200) << response.body;
  return base::parse_json(response.body, "error").at("error");
}

std::unique_ptr<engine::Engine> repeating_engine() {
  ScriptedOptions options;
  options.script = answer_by([](const std::string& prompt) { return "[" + prompt + "]"; });
  return scripted_engine(std::move(options));
}

TEST(Completions, ContinueThePromptAsItIs) {
  ChatServer server(repeating_engine());
  const Json answer = complete(server, {{"model", "any"}, {"prompt", "Once upon"}, {"max_tokens", 100}});
  EXPECT_THAT(answer.at("id").get<std::string>(), StartsWith("cmpl-"));
  EXPECT_EQ(answer.at("object"), "text_completion");
  EXPECT_EQ(answer.at("model"), "scripted");
  ASSERT_EQ(answer.at("choices").size(), 1u);
  EXPECT_EQ(answer.at("choices")[0],
            Json({{"index", 0}, {"text", "[Once upon]"}, {"logprobs", nullptr}, {"finish_reason", "stop"}}));
  const Json& usage = answer.at("usage");
  EXPECT_EQ(usage.at("total_tokens"), usage.at("prompt_tokens").get<int>() + usage.at("completion_tokens").get<int>());
  EXPECT_EQ(completion_stream(server, {{"prompt", "Once upon"}, {"max_tokens", 100}}).texts[0], "[Once upon]");
}

TEST(Completions, SixteenTokensAreTheDefault) {
  ChatServer server({std::string(200, 'x') + " and so on and on and on and on and on and on and on and on and on"});
  const Json answer = complete(server, {{"prompt", "x"}});
  EXPECT_EQ(answer.at("choices")[0].at("finish_reason"), "length");
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 16);
  EXPECT_EQ(complete(server, {{"prompt", "x"}, {"max_tokens", -1}}).at("choices")[0].at("finish_reason"), "stop");
  EXPECT_EQ(complete(server, {{"prompt", "x"}, {"max_tokens", 0}}).at("choices")[0].at("text"), "");
}

TEST(Completions, TagsAreNotTakenOut) {
  const std::string text = "I think</think> so <tool_call>\n<function=f>\n</function>\n</tool_call> <think>";
  ChatServer server({text});
  EXPECT_EQ(complete(server, {{"prompt", "x"}, {"max_tokens", 100}}).at("choices")[0].at("text"), text);
}

TEST(Completions, SeveralPromptsHaveTheirOwnChoices) {
  ChatServer server(repeating_engine());
  const text::Tokenizer& tokenizer = server.engine()->tokenizer();
  const auto ids = [&](const std::string& text) { return Json(tokenizer.encode(text, text::AddedTokens::kPlain)); };
  const auto texts = [&](const Json& body) {
    std::vector<std::string> out;
    const Json answer = complete(server, body);
    for (const Json& choice : answer.at("choices")) {
      EXPECT_EQ(choice.at("index"), out.size());
      out.push_back(choice.at("text"));
    }
    EXPECT_EQ(completion_stream(server, body, out.size()).texts, out);
    return out;
  };
  const auto body = [](const Json& prompt, int n) { return Json{{"prompt", prompt}, {"n", n}, {"max_tokens", 50}}; };
  using ::testing::ElementsAre;
  EXPECT_THAT(texts(body(Json::array({"one", "two"}), 1)), ElementsAre("[one]", "[two]"));
  EXPECT_THAT(texts(body(Json::array({"one", "two"}), 2)), ElementsAre("[one]", "[one]", "[two]", "[two]"));
  EXPECT_THAT(texts(body(ids("three"), 1)), ElementsAre("[three]"));
  EXPECT_THAT(texts(body(Json::array({ids("four"), "five"}), 1)), ElementsAre("[four]", "[five]"));

  const Json one = complete(server, body("one two three", 1)).at("usage");
  const Json four = complete(server, body(Json::array({"one two three", "one two three"}), 2)).at("usage");
  EXPECT_EQ(four.at("prompt_tokens"), 2 * one.at("prompt_tokens").get<int>()) << "each prompt counts once";
  EXPECT_EQ(four.at("completion_tokens"), 4 * one.at("completion_tokens").get<int>());
}

TEST(Completions, EchoPutsThePromptInFront) {
  ChatServer server(repeating_engine());
  const Json ids = server.engine()->tokenizer().encode("héllo", text::AddedTokens::kPlain);
  for (const Json& prompt : {Json("héllo"), ids}) {
    const Json body = {{"prompt", prompt}, {"echo", true}, {"max_tokens", 50}};
    EXPECT_EQ(complete(server, body).at("choices")[0].at("text"), "héllo[héllo]");
    EXPECT_EQ(completion_stream(server, body).texts[0], "héllo[héllo]");
  }
  const Json only = complete(server, {{"prompt", "abc"}, {"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(only.at("choices")[0].at("text"), "abc");
}

TEST(Completions, ControlTokensAreTextUnlessAskedFor) {
  ChatServer server(repeating_engine());
  const auto prompt_tokens = [&](const Json& members) {
    Json body = {{"prompt", "<|im_end|>"}, {"max_tokens", 0}};
    body.update(members);
    return complete(server, body).at("usage").at("prompt_tokens").get<int>();
  };
  EXPECT_GT(prompt_tokens(Json::object()), 1);
  EXPECT_EQ(prompt_tokens({{"parse_special", true}}), 1);
  EXPECT_EQ(prompt_tokens({{"add_special_tokens", true}}), 1);
}

TEST(Completions, LogprobsInTheOldForm) {
  ScriptedOptions options;
  options.script = answer_by([](const std::string&) { return "aé 😀 b"; });
  options.hook = [](const testing::ScriptedForward& forward) {
    if (forward.logits == nullptr) return;
    for (float& logit : *forward.logits) logit /= 10;
  };
  ChatServer server(scripted_engine(std::move(options)));
  const Json body = {{"prompt", "x"}, {"logprobs", 3}, {"temperature", 0}, {"max_tokens", 50}};
  const Json choice = complete(server, body).at("choices")[0];
  EXPECT_EQ(choice.at("text"), "aé 😀 b");
  const Json& logprobs = choice.at("logprobs");
  const size_t count = logprobs.at("tokens").size();
  ASSERT_GT(count, 3u);
  ASSERT_EQ(logprobs.at("token_logprobs").size(), count);
  ASSERT_EQ(logprobs.at("top_logprobs").size(), count);
  ASSERT_EQ(logprobs.at("text_offset").size(), count);
  bool bytes = false;
  for (size_t i = 0; i < count; ++i) {
    const auto token = logprobs.at("tokens")[i].get<std::string>();
    bytes = bytes || token.starts_with("bytes:\\x");
    EXPECT_LT(logprobs.at("token_logprobs")[i], 0);
    ASSERT_EQ(logprobs.at("top_logprobs")[i].size(), 3u);
    double sum = 0;
    for (const auto& [name, value] : logprobs.at("top_logprobs")[i].items()) {
      EXPECT_LE(value, logprobs.at("token_logprobs")[i]) << "greedy takes the likeliest";
      sum += std::exp(value.get<double>());
    }
    EXPECT_LE(sum, 1);
    EXPECT_EQ(logprobs.at("top_logprobs")[i].at(token), logprobs.at("token_logprobs")[i]);
  }
  EXPECT_TRUE(bytes) << "the emoji takes several tokens";
  EXPECT_EQ(logprobs.at("text_offset")[0], 0);
  const size_t last = logprobs.at("tokens")[count - 1].get<std::string>().size();
  EXPECT_EQ(logprobs.at("text_offset")[count - 1], 6 - last) << "characters, not bytes";

  Json sum = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const Json& chunk : completion_stream(server, body).chunks) {
    for (const auto& [key, value] : chunk.at("choices")[0].at("logprobs").items()) {
      sum.at(key).insert(sum.at(key).end(), value.begin(), value.end());
    }
  }
  EXPECT_EQ(sum, logprobs);
  EXPECT_TRUE(complete(server, {{"prompt", "x"}, {"logprobs", nullptr}}).at("choices")[0].at("logprobs").is_null());
}

TEST(Completions, TextIsValidWhereverItIsCut) {
  const std::string text = "😀🎉 สวัสดี 👩‍👩‍👧";
  ChatServer server({text});
  const int tokens = complete(server, {{"prompt", "x"}, {"max_tokens", 200}}).at("usage").at("completion_tokens");
  for (int limit = 1; limit < tokens; ++limit) {
    const Json body = {{"prompt", "x"}, {"max_tokens", limit}};
    const auto whole = complete(server, body).at("choices")[0].at("text").get<std::string>();
    EXPECT_EQ(text::utf8_repaired(whole), whole);
    EXPECT_EQ(completion_stream(server, body).texts[0], whole);
  }
  const Json stopped = {{"prompt", "x"}, {"max_tokens", 200}, {"stop", Json::array({"🎉"})}};
  EXPECT_EQ(complete(server, stopped).at("choices")[0].at("text"), "😀");
  EXPECT_EQ(completion_stream(server, stopped).reasons[0], "stop");
}

TEST(Completions, UsageIsTheLastChunkWhereAsked) {
  ChatServer server({"Hello."});
  const Json body = {{"prompt", "x"}, {"stream_options", {{"include_usage", true}}}};
  const auto chunks = completion_stream(server, body).chunks;
  EXPECT_EQ(chunks.back().at("choices"), Json::array());
  EXPECT_EQ(chunks.back().at("usage"), complete(server, body).at("usage"));
  EXPECT_FALSE(completion_stream(server, {{"prompt", "x"}}).chunks.back().contains("usage"));
}

TEST(Completions, AGrammarHolds) {
  ChatServer server({"I would rather talk."});
  const Json body = {{"prompt", "x"}, {"guided_choice", Json::array({"yes", "no"})}, {"max_tokens", 20}};
  EXPECT_THAT(complete(server, body).at("choices")[0].at("text").get<std::string>(), ::testing::AnyOf("yes", "no"));
}

TEST(Completions, BadRequestsAreNamedAndTheServerLives) {
  ChatServer server({"Hello."});
  const auto param = [&](const std::string& body) {
    const Json error = refusal(server, body);
    EXPECT_NE(error.at("message"), "");
    return error.at("param").is_null() ? "" : error.at("param").get<std::string>();
  };
  EXPECT_EQ(param("{}"), "prompt");
  EXPECT_EQ(param(R"({"prompt": ""})"), "prompt");
  EXPECT_EQ(param(R"({"prompt": []})"), "prompt");
  EXPECT_EQ(param(R"({"prompt": {}})"), "prompt");
  EXPECT_EQ(param(R"({"prompt": [-1]})"), "prompt[0]");
  EXPECT_EQ(param(R"({"prompt": [5, 2147483648]})"), "prompt[1]");
  EXPECT_EQ(param(R"({"prompt": [18446744073709551615]})"), "prompt[0]");
  EXPECT_EQ(param(R"({"prompt": [-9223372036854775808]})"), "prompt[0]");
  EXPECT_EQ(param(R"({"prompt": [1.5]})"), "prompt[0]");
  EXPECT_EQ(param(R"({"prompt": [1, "x"]})"), "prompt[1]");
  EXPECT_EQ(param(R"({"prompt": [[1], [-1]]})"), "prompt[1][0]");
  EXPECT_EQ(param(R"({"prompt": ["x", ""]})"), "prompt[1]");
  EXPECT_EQ(param(R"({"prompt": ["x", 5]})"), "prompt[1]");
  EXPECT_EQ(param(R"({"prompt": ["x", {}]})"), "prompt[1]");
  const std::string size = std::to_string(server.engine()->tokenizer().size());
  EXPECT_THAT(refusal(server, R"({"prompt": [)" + size + "]}").at("message").get<std::string>(),
              HasSubstr("outside [0, " + size + ")"));
  EXPECT_EQ(param(R"({"prompt": "x", "n": 33})"), "n");
  EXPECT_EQ(param(R"({"prompt": ["x", "y"], "n": 17})"), "n");
  EXPECT_EQ(param(R"({"prompt": "x", "n": 0})"), "n");
  EXPECT_EQ(param(R"({"prompt": "x", "n": 2, "best_of": 3})"), "best_of");
  EXPECT_EQ(param(R"({"prompt": "x", "suffix": "y"})"), "suffix");
  EXPECT_EQ(param(R"({"prompt": "x", "logprobs": 21})"), "logprobs");
  EXPECT_EQ(param(R"({"prompt": "x", "logprobs": true})"), "logprobs");
  EXPECT_EQ(param(R"({"prompt": "x", "logprobs": 1, "echo": true})"), "logprobs");
  EXPECT_EQ(param(R"({"prompt": "x", "temperature": -1})"), "temperature");
  EXPECT_EQ(param(R"({"prompt": "x", "stream_options": 5})"), "stream_options");
  std::string many = "\"x\"";
  for (int i = 0; i < 32; ++i) many += ",\"x\"";
  EXPECT_EQ(param(R"({"prompt": [)" + many + "]}"), "prompt");
  const std::string long_text(200'000, 'Z');
  const Json too_long = refusal(server, Json{{"prompt", Json::array({"x", long_text + "x"})}}.dump());
  EXPECT_EQ(too_long.at("code"), "context_length_exceeded");
  EXPECT_EQ(too_long.at("param"), "prompt");
  EXPECT_TRUE(server.engine_is_free_within(std::chrono::seconds(2))) << "the first prompt's answer is given up";
  EXPECT_EQ(complete(server, {{"prompt", "x"}, {"suffix", nullptr}}).at("choices")[0].at("text"), "Hello.");
}

}  // namespace
}  // namespace tandem::serve
