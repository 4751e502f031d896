// The whole server over a scripted model, for tests that speak HTTP to it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "http_client.h"
#include "scripted_engine.h"
#include "serve/endpoints.h"
#include "test_server.h"

namespace tandem::test {

class ChatServer {
 public:
  explicit ChatServer(std::shared_ptr<engine::Engine> engine, const serve::ServiceOptions& service_options = {},
                      const serve::ServerOptions& server_options = {})
      : service_(service_options) {
    if (engine) service_.set_engine(std::move(engine));
    serve::add_endpoints(router_, service_);
    server_ = std::make_unique<RunningServer>(router_, server_options);
  }
  // Answers with these texts in turn.
  explicit ChatServer(const std::vector<std::string>& answers) : ChatServer(testing::scripted_engine(answers)) {}

  uint16_t port() const { return server_->port(); }
  serve::Service& service() { return service_; }
  RunningServer& server() { return *server_; }
  std::shared_ptr<engine::Engine> engine() { return service_.engine(); }

  // POST /v1/chat/completions.
  ClientResponse chat(const base::Json& body) { return fetch(port(), post(kPath, body.dump())); }
  // The answer's object; fails the test where it is not 200.
  base::Json answer(const base::Json& body) {
    const ClientResponse response = chat(body);
    EXPECT_EQ(response.status, 200) << response.body;
    return base::parse_json(response.body, "answer");
  }
  // The chunks of a streamed answer without the closing [DONE], which must be there.
  std::vector<base::Json> chunks(base::Json body) {
    body["stream"] = true;
    const ClientResponse response = chat(body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(response.complete);
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    return chunks_of(response.body);
  }
  static std::vector<base::Json> chunks_of(const std::string& stream) {
    std::vector<std::string> data = event_data(stream);
    EXPECT_FALSE(data.empty());
    if (data.empty()) return {};
    EXPECT_EQ(data.back(), "[DONE]");
    data.pop_back();
    std::vector<base::Json> out;
    for (const std::string& line : data) out.push_back(base::parse_json(line, "chunk"));
    return out;
  }
  // Requests that the engine holds become none within `limit`.
  bool engine_is_free_within(std::chrono::milliseconds limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    for (;;) {
      const auto status = engine()->status();
      if (status.running == 0 && status.waiting == 0) return true;
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  bool engine_holds(int running, int waiting, std::chrono::milliseconds limit = std::chrono::seconds(5)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < until) {
      const auto status = engine()->status();
      if (status.running == running && status.waiting == waiting) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  static constexpr const char* kPath = "/v1/chat/completions";

 private:
  serve::Service service_;
  serve::Router router_;
  std::unique_ptr<RunningServer> server_;
};

// One user's message, without thinking unless `members` says so.
inline base::Json ask(const std::string& text, const base::Json& members = base::Json::object()) {
  base::Json body = {{"model", "any"},
                     {"messages", base::Json::array({{{"role", "user"}, {"content", text}}})},
                     {"enable_thinking", false}};
  for (const auto& [key, value] : members.items()) body[key] = value;
  return body;
}

}  // namespace tandem::test
