// What Claude Code and others send to Anthropic's endpoints is answered as they expect, by a whole server.
#include <algorithm>
#include <filesystem>
#include <gmock/gmock.h>

#include "../serve/messages_server.h"
#include "base/file.h"
#include "serve/anthropic/messages_request.h"
#include "serve/media.h"

namespace tandem::serve {
namespace {

using base::Json;
using test::ClientResponse;

struct CapturedRequest {
  std::string file;
  std::string method;
  std::string url;
  std::vector<int> statuses;
  Json body;
  bool stream = false;
};

std::vector<CapturedRequest> anthropic_requests() {
  const std::filesystem::path folder = TANDEM_CAPTURES;
  const auto read = [&](const std::string& name) {
    return base::parse_json(base::read_text(folder / name, 1 << 24), name);
  };
  std::vector<CapturedRequest> out;
  for (const Json& entry : read("index.json")) {
    CapturedRequest request{.file = entry.at("file"),
                            .method = entry.at("method"),
                            .url = entry.at("url"),
                            .statuses = entry.at("expect"),
                            .body = nullptr};
    if (!request.url.starts_with("/v1/messages") && !request.file.starts_with("claude-")) continue;
    request.body = base::json_member(read(request.file), "body");
    request.stream = request.body.is_object() && request.body.value("stream", false);
    out.push_back(std::move(request));
  }
  return out;
}

// Thinks, says something and calls the first tool of the request, as far as the request allows.
std::string agents_answer(const std::string& prompt) {
  std::string out = prompt.ends_with("<think>\n") ? "Let me look.</think>\n\n" : "";
  out += "I will look at the files.";
  const std::string marker = "{\"type\": \"function\", \"function\": {\"name\": \"";
  const size_t tool = prompt.find(marker);
  if (tool == std::string::npos) return out;
  const size_t name = tool + marker.size();
  return out + "\n\n<tool_call>\n<function=" + prompt.substr(name, prompt.find('"', name) - name) +
         ">\n<parameter=text>\na \"b\"\n</parameter>\n</function>\n</tool_call>";
}

std::shared_ptr<engine::Engine> agent_engine() {
  testing::ScriptedOptions options;
  options.script = testing::answer_by(agents_answer);
  auto limits = testing::scripted_limits();
  limits.max_context = 131'072;
  limits.prefill_chunk = 4096;
  return testing::scripted_engine(std::move(options), limits);
}

bool has_block(const Json& message, const std::string& type) {
  const Json& content = message.at("content");
  return std::any_of(content.begin(), content.end(), [&](const Json& block) { return block.at("type") == type; });
}

void expect_sound_answer(const CapturedRequest& request, const ClientResponse& response) {
  if (request.url.find("count_tokens") != std::string::npos) {
    EXPECT_GT(base::parse_json(response.body, "count").at("input_tokens"), 5);
    return;
  }
  ASSERT_TRUE(request.stream) << "all of them stream";
  const test::MessageStreamReport report = test::read_message_stream(response.body);
  EXPECT_TRUE(report.faults.empty()) << ::testing::PrintToString(report.faults);
  EXPECT_TRUE(report.error.is_null()) << report.error;
  EXPECT_EQ(report.message.at("model"), request.body.at("model"));
  EXPECT_TRUE(has_block(report.message, "text"));
  if (request.body.value("output_config", Json::object()).contains("format")) {
    const Json title = base::parse_json(report.message.at("content").at(0).at("text").get<std::string>(), "title");
    EXPECT_TRUE(title.at("title").is_string()) << title;
  }
  const std::string thinking = request.body.contains("thinking") ? request.body["thinking"].value("type", "") : "";
  EXPECT_EQ(has_block(report.message, "thinking"), thinking == "adaptive" || thinking == "enabled");
  const bool calls = !request.body.value("tools", Json::array()).empty();
  EXPECT_EQ(has_block(report.message, "tool_use"), calls);
  EXPECT_EQ(report.message.at("stop_reason"), calls ? "tool_use" : "end_turn");
}

TEST(Captures, EveryRequestToAnthropicsEndpointsIsAnswered) {
  test::MessagesServer server(agent_engine());
  const auto requests = anthropic_requests();
  ASSERT_EQ(requests.size(), 57u);
  for (const CapturedRequest& request : requests) {
    SCOPED_TRACE(request.file);
    const std::string bytes = request.method == "POST"
                                  ? test::post(request.url, request.body.dump(), "anthropic-version: 2023-06-01\r\n")
                                  : test::get(request.url, "", request.method);
    test::HttpClient client(server.port());
    client.send(bytes);
    const ClientResponse response = client.receive(request.method == "HEAD");
    EXPECT_THAT(request.statuses, ::testing::Contains(response.status)) << response.body.substr(0, 300);
    if (request.method == "POST" && response.status == 200) expect_sound_answer(request, response);
  }
}

// What Claude Code repeats of a conversation is rendered as it was, so that only the rest must be read.
TEST(Captures, EachTurnOfASessionBeginsWithTheOneBefore) {
  const auto engine = agent_engine();
  const auto rendered = [&](const std::string& file) {
    for (const CapturedRequest& request : anthropic_requests()) {
      if (request.file != file) continue;
      engine::Request read = messages_request(request.body).request;
      omit_media(read.messages, false);
      read.template_options.add_generation_prompt = false;
      return engine->render(read);
    }
    return std::vector<int32_t>{};
  };
  for (const auto& session : std::vector<std::vector<const char*>>{
           {"claude-2.1.332-toolsearch-01", "claude-2.1.332-toolsearch-02", "claude-2.1.332-toolsearch-03"},
           {"claude-2.1.332-list-01", "claude-2.1.332-list-02"},
           {"claude-2.1.197-edit-02", "claude-2.1.197-edit-03", "claude-2.1.197-edit-04", "claude-2.1.197-edit-05"},
       }) {
    std::vector<int32_t> before;
    for (const char* file : session) {
      const auto now = rendered(std::string(file) + "-POST_v1_messages.json");
      ASSERT_GT(now.size(), before.size()) << file;
      EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin())) << file;
      before = now;
    }
  }
}

}  // namespace
}  // namespace tandem::serve
