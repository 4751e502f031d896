// Some minutes of short requests from several clients, of which almost a third leave at random: nothing is left behind.
#include <atomic>
#include <gmock/gmock.h>
#include <random>

#include "chat_server.h"
#include "process_usage.h"

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

constexpr const char* kCall =
    "Thought.</think>\n\n<tool_call>\n<function=list>\n<parameter=path>\n/tmp\n</parameter>\n</function>\n</tool_call>";

Json request(std::mt19937& random) {
  std::string text = "go";
  for (uint32_t words = random() % 8 == 0 ? 400 : random() % 20; words > 0; --words) text += " on";
  Json body = ask(text, {{"stream", random() % 2 == 0}, {"enable_thinking", random() % 2 == 0}});
  if (random() % 3 == 0) body["max_tokens"] = 1 + random() % 20;
  if (random() % 4 == 0) body["n"] = 2;
  if (random() % 3 == 0) {
    body["tools"] = Json::parse(R"([{"type":"function","function":{"name":"list","parameters":{"type":"object",
        "properties":{"path":{"type":"string"}}}}}])");
  }
  if (random() % 10 == 0) body["temperature"] = -1;  // refused
  return body;
}

// Requests until `until`; counts those that were answered as they should be not.
void use(uint16_t port, uint32_t seed, std::chrono::steady_clock::time_point until, std::atomic<int>& answered,
         std::atomic<int>& faults) {
  std::mt19937 random(seed);
  while (std::chrono::steady_clock::now() < until) {
    HttpClient client(port);
    const Json body = request(random);
    const std::string bytes = post(ChatServer::kPath, body.dump());
    if (random() % 10 < 3) {
      client.send(std::string_view(bytes).substr(0, random() % 3 == 0 ? random() % bytes.size() : bytes.npos));
      client.read_until("data", std::chrono::milliseconds(random() % 10));
      client.close(random() % 2 == 0);
      continue;
    }
    client.send(bytes);
    const auto answer = client.receive();
    const bool good = answer.complete && answer.status == (body.contains("temperature") ? 400 : 200);
    ++(good ? answered : faults);
  }
}

TEST(Soak, MixedRequestsWithClientsThatLeaveLeaveNothingBehind) {
  auto limits = testing::scripted_limits();
  limits.max_concurrency = 4;
  testing::ScriptedOptions options;
  options.script = testing::answer_by([](const std::string& prompt) {
    return prompt.find("list") != std::string::npos ? std::string(kCall) : "Thought.</think>\n\nOne two three four.";
  });
  options.step_time = 100us;
  ChatServer server(testing::scripted_engine(std::move(options), limits));
  const int descriptors = test::open_descriptors();
  std::atomic<int> answered{0};
  std::atomic<int> faults{0};
  const auto run = [&](std::chrono::seconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    std::vector<std::thread> clients;
    for (uint32_t i = 0; i < 6; ++i) {
      clients.emplace_back([&, i] { use(server.port(), i + answered, until, answered, faults); });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_TRUE(server.engine_is_free_within(10s));
    for (int i = 0; i < 500 && test::open_descriptors() > descriptors; ++i) std::this_thread::sleep_for(10ms);
  };
  run(30s);
  const uint64_t before = test::resident_bytes();
  run(120s);
  const uint64_t after = test::resident_bytes();
  EXPECT_EQ(faults, 0);
  EXPECT_GT(answered, 500);
  EXPECT_LE(test::open_descriptors(), descriptors);
  // A megabyte beside the two hundredths: what a page here and there amounts to in a small process.
  EXPECT_LE(after, before + before / 50 + (1 << 20)) << "from " << before << " bytes";
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 200);
}

}  // namespace
}  // namespace tandem::serve
