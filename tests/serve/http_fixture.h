// A server whose routes show what arrived, and one whose answer the test writes itself.
#pragma once

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "http_client.h"
#include "serve/http/http_server.h"
#include "test_server.h"

namespace tandem::test {

using serve::HttpRequest;
using serve::Reply;
using serve::Router;

class Http : public testing::Test {
 protected:
  Http() {
    router_.add(
        {.method = "GET",
         .path = "/ping",
         .handler = [](HttpRequest, Reply reply) { reply.send({.content_type = "text/plain", .body = "pong"}); },
         .quick = true});
    router_.add({.method = "POST", .path = "/echo", .handler = [](HttpRequest request, Reply reply) {
                   reply.send({.content_type = "text/plain", .body = std::move(request.body)});
                 }});
    router_.add({.method = "GET", .path = "/item/{name}", .handler = [](HttpRequest request, Reply reply) {
                   reply.send({.content_type = "text/plain", .body = request.parameter + "|" + request.query});
                 }});
    router_.add({.method = "POST", .path = "/hold", .handler = [this](HttpRequest, Reply reply) {
                   reply.on_gone([this] { ++gone_; });
                   std::lock_guard lock(mutex_);
                   held_.push_back(std::move(reply));
                 }});
    router_.add({.method = "POST", .path = "/fail", .handler = [](HttpRequest request, Reply) {
                   if (request.body == "input") base::bad_input("size", "is 7, at most 5 are taken");
                   if (request.body == "standard") throw std::runtime_error("secret");
                   // "drop": no answer at all
                 }});
  }

  // The reply of the nth request to /hold, once it has come.
  Reply held(size_t index) {
    for (int i = 0; i < 2000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (held_.size() > index) return held_[index];
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    throw std::runtime_error("no request came");
  }

  bool gone_within(int count, std::chrono::milliseconds limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (gone_ < count && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return gone_ >= count;
  }

  void drop_held() {
    std::lock_guard lock(mutex_);
    held_.clear();
  }

  Router router_;
  std::mutex mutex_;
  std::vector<Reply> held_;
  std::atomic<int> gone_{0};
};

}  // namespace tandem::test
