// An HttpServer that runs in a thread of the test.
#pragma once

#include <thread>
#include <utility>

#include "base/log.h"
#include "serve/http/http_server.h"

namespace tandem::test {

inline serve::ServerOptions on_free_port(serve::ServerOptions options = {}) {
  options.port = 0;
  return options;
}

class RunningServer {
 public:
  explicit RunningServer(const serve::Router& router, const serve::ServerOptions& options = {})
      : server_(on_free_port(options), router), thread_([this] { server_.run(); }) {
    spdlog::set_level(spdlog::level::off);
  }
  ~RunningServer() { stop(true); }

  uint16_t port() const { return server_.port(); }
  void ask_to_stop() { server_.stop(); }
  // Waits until the server has ended; `at_once` closes what is still open.
  void stop(bool at_once) {
    if (!thread_.joinable()) return;
    server_.stop();
    if (at_once) server_.stop();
    thread_.join();
  }

 private:
  serve::HttpServer server_;
  std::thread thread_;
};

}  // namespace tandem::test
