// One request and its answer in progress: where the handler's threads and the connection meet.
//
// The handler holds Reply, a handle that may be copied and used from any thread and that never blocks. The connection
// holds the Exchange and takes from it what is to be written. The unsent part of an answer is bounded: a client that
// reads too slowly loses its request instead of filling memory.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "serve/http/http.h"

namespace tandem::serve {

class Exchange {
 public:
  // `wake` is called, from any thread and under a lock, when there is something to take; it must only post.
  Exchange(size_t max_unsent_bytes, std::function<void()> wake)
      : max_unsent_bytes_(max_unsent_bytes), wake_(std::move(wake)) {}

  // What has come since the last take().
  struct News {
    std::optional<HttpResponse> head;  // once
    bool stream = false;               // the head opens a stream: bytes follow until finished
    std::string bytes;                 // of the stream
    bool finished = false;             // nothing follows
    bool failed = false;               // the stream can't be ended in good order: the connection must be closed
  };

  // The connection's side.
  News take();
  // The client has left or must lose its request: what the handler registered with on_gone is called, once.
  void client_gone();
  // The server asks the handler to end early; the client still gets what the handler writes.
  void ask_to_end();
  // The connection needs nothing more: no wake after this.
  void detach();

  // The handler's side, through Reply.
  bool send(HttpResponse response);
  bool open_stream(HttpResponse head);
  bool write(std::string_view bytes);
  void finish();
  void abandon();
  void on_gone(std::function<void()> callback);
  bool gone() const;
  void note(const base::Json& members);
  base::Json notes() const;

 private:
  enum class State { kWaiting, kStreaming, kFinished };
  void wake();
  void call_gone(std::unique_lock<std::mutex>& lock);

  const size_t max_unsent_bytes_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::function<void()> gone_callback_;
  State state_ = State::kWaiting;
  News news_;
  base::Json notes_ = base::Json::object();
  bool woken_ = false;  // wake_ was called since the last take()
  bool gone_ = false;   // writes are useless
  bool ended_ = false;  // gone_callback_ was due, whether or not it was set by then
};

// The handler's handle on the answer. When the last copy goes and the answer is not complete, the client gets an error
// (500, or a closed connection where the stream had begun), so that no client waits for ever.
class Reply {
 public:
  explicit Reply(std::shared_ptr<Exchange> exchange);

  // The whole answer, once. False where the answer was begun before.
  bool send(HttpResponse response);
  // Begins a streamed answer: `head.body` is ignored. Streams of kEventStream get keep-alive comments in silence.
  bool open_stream(HttpResponse head);
  // More of the stream. False where it goes nowhere: the client has left or reads too slowly.
  bool write(std::string_view bytes);
  // The stream is complete.
  void finish();
  // `callback` is called once, from the connection's thread or at once from this one, when the client has left before
  // the answer was complete or the server wants the request ended. It must not block.
  void on_gone(std::function<void()> callback);
  bool gone() const;
  // Members for the request's line in the request log; a member given again replaces the one before.
  void note(const base::Json& members);

 private:
  struct Holder;
  std::shared_ptr<Holder> holder_;
};

}  // namespace tandem::serve
