// One connection to a server of this machine, for benches that speak HTTP to it. Every wait has a limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::app {

struct LoopbackAnswer {
  int status = 0;  // 0: no head has come
  std::string content_type{};
  std::string body{};     // chunks joined
  bool complete = false;  // the whole of it has come
};

// Not thread-safe.
class LoopbackClient {
 public:
  // Throws base::Error{kUnavailable} where the server takes no connection.
  explicit LoopbackClient(uint16_t port);
  ~LoopbackClient();
  LoopbackClient(const LoopbackClient&) = delete;
  LoopbackClient& operator=(const LoopbackClient&) = delete;

  int descriptor() const { return descriptor_; }
  // False where the server has closed the connection or takes nothing for ten seconds.
  bool send(std::string_view bytes);
  // Takes what has come by then of the answer, up to 64 KiB. False where nothing came within `limit`, and at the
  // connection's end.
  bool receive(std::chrono::milliseconds limit);
  const LoopbackAnswer& answer() const { return answer_; }
  // Sends a request and takes its answer; without a body where `head_only` is set. It is incomplete where `limit`
  // passed first.
  LoopbackAnswer fetch(std::string_view request, std::chrono::milliseconds limit, bool head_only = false);
  // Ends the connection; with a reset where `reset` is set, as a killed client does.
  void close(bool reset = false);

 private:
  bool wait(short event, std::chrono::milliseconds limit) const;
  void take_head();
  void take_body();

  int descriptor_ = -1;
  std::string unread_;  // bytes of the answer that are not yet taken
  LoopbackAnswer answer_;
  bool head_only_ = false;
  bool chunked_ = false;
  size_t left_ = 0;  // bytes of the body, or of the chunk
  bool in_chunk_ = false;
};

// A request of method POST with a JSON body.
std::string loopback_post(std::string_view path, std::string_view body);

}  // namespace tandem::app
