// The whole server over a model that answers with the question, for tests of the web page:
//
//   "TEXT"              the answer is TEXT
//   "think: A || B"     the thoughts are A, the answer is B
//   "slowly: TEXT"      50 ms a token
//   "break: TEXT"       fails after 12 tokens
//
// A system message "instead: TEXT" takes the question's place.
// A chunk of a prompt takes 8 ms, other than its last. Prints "listening on http://127.0.0.1:PORT"; ends on SIGTERM. It
// answers one request at a time.
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "scripted_engine.h"
#include "serve/endpoints.h"
#include "serve/http/http_server.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr int kTokensBeforeFailure = 12;
constexpr auto kTokenTime = 50ms;
constexpr auto kChunkTime = 8ms;

// What stands between the last `begin` and the `end` behind it.
std::string last_between(const std::string& text, std::string_view begin, std::string_view end) {
  const size_t at = text.rfind(begin);
  if (at == text.npos) return "";
  const size_t from = at + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

// How the request in progress goes on. The step thread alone uses it.
struct Manner {
  std::chrono::milliseconds step = 0ms;
  int tokens_left = -1;  // until it fails; below zero: never
};

// Takes `word` off the front of `text`.
bool take_word(std::string& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.erase(0, word.size());
  return true;
}

std::string answer(const std::string& prompt, Manner& manner) {
  std::string text = last_between(prompt, "\ninstead: ", "<|im_end|>");
  if (text.empty()) text = last_between(prompt, "<|im_start|>user\n", "<|im_end|>");
  manner = {};
  if (take_word(text, "slowly: ")) manner.step = kTokenTime;
  if (take_word(text, "break: ")) manner.tokens_left = kTokensBeforeFailure;
  std::string thoughts;
  if (take_word(text, "think: ")) {
    const size_t bar = text.find(" || ");
    thoughts = text.substr(0, bar);
    text.erase(0, bar + 4);
  }
  return prompt.ends_with("<think>\n") ? thoughts + "\n</think>\n\n" + text : text;
}

std::shared_ptr<engine::Engine> echo_engine() {
  auto manner = std::make_shared<Manner>();
  testing::ScriptedOptions options;
  options.script = testing::answer_by([manner](const std::string& prompt) { return answer(prompt, *manner); });
  options.hook = [manner](const testing::ScriptedForward& forward) {
    if (forward.logits == nullptr) {
      std::this_thread::sleep_for(kChunkTime);
      return;
    }
    std::this_thread::sleep_for(manner->step);
    if (manner->tokens_left-- == 0) base::unavailable("layer 7", "is out of memory");
  };
  engine::EngineOptions limits = testing::scripted_limits();
  limits.max_context = 32768;
  limits.max_concurrency = 1;
  return testing::scripted_engine(std::move(options), limits);
}

void serve_echo() {
  serve::Service service({.model_id = "echo"});
  service.set_engine(echo_engine());
  serve::Router router;
  serve::add_endpoints(router, service);
  serve::ServerOptions options;
  options.port = 0;
  options.stop_on_signals = true;
  serve::HttpServer server(options, router);
  fmt::print("listening on {}\n", server.url());
  std::fflush(stdout);
  server.run();
  service.drop_engine();
}

}  // namespace
}  // namespace tandem

int main() {
  spdlog::set_level(spdlog::level::warn);
  try {
    tandem::serve_echo();
  } catch (const std::exception& error) {
    fmt::print(stderr, "web_test_server: {}\n", error.what());
    return 1;
  }
  return 0;
}
