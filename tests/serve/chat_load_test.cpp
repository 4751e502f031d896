#include <atomic>
#include <gmock/gmock.h>
#include <random>

#include "chat_server.h"
#include "process_usage.h"
#include "tests/support/slack.h"

namespace tandem::serve {
namespace {

using namespace std::chrono_literals;
using base::Json;
using test::ask;
using test::ChatServer;
using test::fetch;
using test::get;
using test::HttpClient;
using test::open_descriptors;
using test::post;
using testing::answer_by;
using testing::scripted_engine;
using testing::ScriptedOptions;

std::shared_ptr<engine::Engine> many_words(int words, int max_concurrency) {
  ScriptedOptions options;
  options.script = answer_by([words](const std::string&) {
    std::string text;
    for (int i = 0; i < words; ++i) text += "word ";
    return text;
  });
  auto limits = testing::scripted_limits();
  limits.max_concurrency = max_concurrency;
  return scripted_engine(std::move(options), limits);
}

TEST(Load, TwentyAtOnceAreAllAnswered) {
  ChatServer server(many_words(50, 4));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->send(post(ChatServer::kPath, ask("go", {{"stream", i % 2 == 0}}).dump()));
  }
  for (const auto& client : clients) {
    const auto answer = client->receive();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.complete);
  }
  EXPECT_TRUE(server.engine_is_free_within(2s));
}

TEST(Load, ASlowReaderIsCutOffAndOthersAreServed) {
  ServerOptions options;
  options.limits.unsent_bytes = 16 << 10;
  // The kernel's buffers hold some megabytes of a stream; an answer of 4,000 tokens makes about 800 KB, so the
  // client's side of them is kept small and the server's is filled by several requests sent ahead.
  ChatServer server(many_words(4000, 2), {}, options);
  HttpClient slow(server.port(), 2048);
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += post(ChatServer::kPath, ask("go", {{"stream", true}}).dump());
  slow.send(requests);
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(server.chat(ask("go", {{"max_tokens", 5}})).status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  }
  EXPECT_TRUE(server.engine_is_free_within(15s)) << "the slow reader's requests do not run for ever";
  EXPECT_TRUE(slow.closed_within(20s * testing_support::kSlack)) << "it would stay open had it been served";
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 200);
}

TEST(Load, SlowReadersStarveNobody) {
  ChatServer server(many_words(300, 16));
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 8; ++i) {
    slow.push_back(std::make_unique<HttpClient>(server.port(), 2048));
    slow.back()->send(post(ChatServer::kPath, ask("go", {{"stream", true}}).dump()));
  }
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(server.chat(ask("go", {{"max_tokens", 5}, {"stream", i % 2 == 0}})).status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  }
  for (const auto& client : slow) EXPECT_TRUE(client->receive().complete) << "a slow reader still gets its answer";
  EXPECT_TRUE(server.engine_is_free_within(5s));
}

TEST(Load, SixtyFourStreamsAtOnceAllEndWell) {
  ChatServer server(many_words(100, 64));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->send(post(ChatServer::kPath, ask("go", {{"stream", true}}).dump()));
  }
  for (const auto& client : clients) {
    const auto answer = client->receive();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.complete);
    EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  }
  EXPECT_TRUE(server.engine_is_free_within(2s));
}

TEST(Load, RandomDisconnectsLeaveNothingBehind) {
  ChatServer server(many_words(200, 8));
  EXPECT_EQ(server.chat(ask("warm", {{"max_tokens", 1}})).status, 200);
  const int before = open_descriptors();
  std::mt19937 random(7);
  std::string long_prompt;
  for (int i = 0; i < 500; ++i) long_prompt += "number " + std::to_string(i);
  for (int i = 0; i < 1000; ++i) {
    HttpClient client(server.port());
    const std::string& text = random() % 4 == 0 ? long_prompt : std::string("go");
    const std::string request = post(ChatServer::kPath, ask(text, {{"stream", random() % 2 == 0}}).dump());
    client.send(std::string_view(request).substr(0, random() % 4 == 0 ? random() % request.size() : request.npos));
    client.read_until("word", std::chrono::milliseconds(random() % 4));
    client.close(random() % 2 == 0);
  }
  EXPECT_TRUE(server.engine_is_free_within(5s));
  for (int i = 0; i < 200 && open_descriptors() > before; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_LE(open_descriptors(), before);
  EXPECT_EQ(server.chat(ask("go", {{"max_tokens", 1}})).status, 200);
}

}  // namespace
}  // namespace tandem::serve
