// What the server tells about itself: /health, /metrics, /slots, /props, /version, and the request log.
#include <atomic>
#include <filesystem>
#include <gmock/gmock.h>
#include <regex>

#include "base/file.h"
#include "chat_server.h"

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

Json read(const ChatServer& server, const std::string& path) {
  const auto response = fetch(server.port(), get(path));
  EXPECT_EQ(response.status, 200) << path << response.body;
  return base::parse_json(response.body, path);
}

double metric(const ChatServer& server, const std::string& name) {
  const std::string text = fetch(server.port(), get("/metrics")).body;
  std::smatch match;
  const std::regex line("(?:^|\n)" + name + R"((?:\{[^}]*\})? ([-+0-9.e]+)(?:\n|$))");
  EXPECT_TRUE(std::regex_search(text, match, line)) << name;
  return match.empty() ? -1 : std::stod(match[1]);
}

TEST(Metrics, CountAnswersAndArePrometheusText) {
  ChatServer server({"one two three"});
  EXPECT_EQ(metric(server, "vllm:generation_tokens_total"), 0);
  const Json answer = server.answer(ask("hi"));
  server.answer(ask("hi", {{"max_tokens", 1}}));
  EXPECT_EQ(metric(server, "vllm:generation_tokens_total"),
            answer.at("usage").at("completion_tokens").get<double>() + 1);
  const std::string text = fetch(server.port(), get("/metrics")).body;
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{model_name=\"scripted\",finished_reason=\"stop\"} 1"));
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{model_name=\"scripted\",finished_reason=\"length\"} 1"));
  EXPECT_THAT(text, HasSubstr("vllm:e2e_request_latency_seconds_count{model_name=\"scripted\"} 2"));
  // Every line is a comment or a sample, every sample's family has a type.
  const std::regex sample(R"re(([a-z0-9_:]+)(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+0-9.eInfa]+)re");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# ")) continue;
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string family = std::regex_replace(match[1].str(), std::regex("_(bucket|sum|count)$"), "");
    EXPECT_TRUE(text.find("# TYPE " + family + " ") != std::string::npos ||
                text.find("# TYPE " + match[1].str() + " ") != std::string::npos)
        << line;
  }
}

TEST(Metrics, TellTheCardsMemoryAndWhatWasPlanned) {
  testing::ScriptedOptions options;
  options.script = testing::answer_in_turn(testing::demo_tokenizer(), {"Hello."});
  options.memory = [] { return engine::DeviceMemory{.free_bytes = 1'000'000, .planned_free_bytes = 3'000'000'000}; };
  ChatServer server(testing::scripted_engine(std::move(options)));
  server.answer(ask("hi"));
  EXPECT_EQ(metric(server, "tandem:vram_free_bytes"), 1'000'000);
  EXPECT_EQ(metric(server, "tandem:vram_planned_free_bytes"), 3'000'000'000);
  ChatServer processor({"Hello."});
  processor.answer(ask("hi"));
  EXPECT_EQ(fetch(processor.port(), get("/metrics")).body.find("vram"), std::string::npos);
}

TEST(Metrics, CountPicturesThatTheModelCannotSee) {
  ChatServer server({"Nice."});
  Json body = ask("x");
  body["messages"][0]["content"] = Json::parse(
      R"([{"type":"image_url","image_url":{"url":"http://127.0.0.1:1/x.png"}},{"type":"text","text":"what is it?"}])");
  server.answer(body);
  EXPECT_EQ(metric(server, "tandem:omitted_images_total"), 1);
  ChatServer strict(scripted_engine({"Nice."}), {.strict_images = true});
  const auto refused = strict.chat(body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("hold an image"));
}

TEST(State, SlotsTellWhoIsAnsweredAndPropsWhatIsServed) {
  ScriptedOptions options;
  std::atomic<bool> hold{true};
  options.script = answer_by([](const std::string&) { return "one two three four five six seven eight nine ten"; });
  options.hook = [&](const testing::ScriptedForward& forward) {
    while (hold && forward.tokens.size() == 1) std::this_thread::sleep_for(1ms);
  };
  ChatServer server(scripted_engine(std::move(options)));
  const std::shared_ptr<void> released(nullptr, [&](void*) { hold = false; });  // before the server ends
  const auto idle = read(server, "/slots");
  for (const Json& slot : idle) EXPECT_EQ(slot.at("state"), "idle");
  EXPECT_EQ(read(server, "/props").at("total_slots"), idle.size());
  EXPECT_EQ(read(server, "/props").at("n_ctx"), 4096);
  EXPECT_TRUE(read(server, "/version").at("version").is_string());
  HttpClient client(server.port());
  client.send(post(ChatServer::kPath, ask("tell me a long story now", {{"stream", true}}).dump()));
  client.read_until("content");
  ASSERT_TRUE(server.engine_holds(1, 0));
  Json slot = Json::object();
  for (int tries = 0; tries < 2000 && slot.value("state", "") != "decode"; ++tries) {
    std::this_thread::sleep_for(1ms);
    slot = read(server, "/slots").at(0);
  }
  EXPECT_EQ(slot.at("state"), "decode");
  EXPECT_EQ(slot.at("prompt_done"), slot.at("prompt_tokens"));
  EXPECT_EQ(slot.at("completion_tokens"), 1);
  EXPECT_EQ(metric(server, "vllm:num_requests_running"), 1);
  EXPECT_GT(metric(server, "vllm:kv_cache_usage_perc"), 0);
  hold = false;
  client.read_until("[DONE]");
  EXPECT_TRUE(server.engine_is_free_within(1s));
  EXPECT_EQ(read(server, "/slots").at(0).at("state"), "idle");
}

TEST(RequestLog, HasALineForEachRequestAndNoneOfItsText) {
  const auto file = std::filesystem::temp_directory_path() / ("tandem_requests_" + std::to_string(getpid()) + ".jsonl");
  std::filesystem::remove(file);
  ServerOptions options;
  options.request_log.file = file;
  {
    ChatServer server(scripted_engine({"A secret answer."}), {}, options);
    server.answer(ask("a secret question"));
    server.chat(ask("x", {{"temperature", -1}}));
    fetch(server.port(), get("/nowhere?secret=1"));
  }
  const std::string text = base::read_text(file, 1 << 20);
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(base::parse_json(line, "line"));
  ASSERT_EQ(lines.size(), 3u) << text;
  EXPECT_EQ(lines[0].at("status"), 200);
  EXPECT_EQ(lines[0].at("finish_reason"), "stop");
  EXPECT_GT(lines[0].at("completion_tokens"), 2);
  EXPECT_EQ(lines[0].at("end"), "complete");
  EXPECT_EQ(lines[1].at("status"), 400);
  EXPECT_EQ(lines[2].at("path"), "/nowhere");
  std::filesystem::remove(file);
}

TEST(RequestLog, BeginsANewFileWhereOneIsFullAndKeepsFour) {
  const auto folder = std::filesystem::temp_directory_path() / ("tandem_rotation_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  {
    RequestLog log({.file = folder / "log.jsonl", .file_bytes = 2000, .files = 4});
    for (int i = 0; i < 500; ++i) log.write({{"number", i}, {"padding", std::string(50, 'x')}});
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_LE(entry.file_size(), 2000u);
    ++files;
  }
  EXPECT_EQ(files, 4u);
  EXPECT_THAT(base::read_text(folder / "log.jsonl", 1 << 20), HasSubstr("\"number\":499"));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(RequestLog({.file = "/proc/no/such/folder/log"}), base::Error);
}

}  // namespace
}  // namespace tandem::serve
