// The HTTP/1.1 server: accepts, reads requests within limits, routes them, writes answers, watches clients leave.
//
// One thread reads and writes all connections; handlers run on a few threads of their own, so that a long prompt being
// tokenised holds up nobody's bytes. Nothing here knows what a request means.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "serve/http/request_log.h"
#include "serve/http/router.h"

namespace tandem::serve {

struct ServerLimits {
  size_t header_bytes = 64 << 10;
  size_t body_bytes = 64 << 20;         // of one request
  size_t all_bodies_bytes = 256 << 20;  // of all requests being received at a time
  size_t unsent_bytes = 1 << 20;        // of one stream, waiting for a slow client
  int connections = 256;
  std::chrono::milliseconds header_time{15'000};     // from the first byte of a request to the end of its header
  std::chrono::milliseconds body_time{30'000};       // and a second more for each body_rate bytes that have come
  size_t body_rate = 16 << 10;                       // bytes per second
  std::chrono::milliseconds write_time{30'000};      // in which a client must take something of an answer
  std::chrono::milliseconds idle_time{120'000};      // between requests of one connection
  std::chrono::milliseconds keep_alive_time{5'000};  // of silence in a stream, before a comment is sent
};

struct ServerOptions {
  std::string host = "127.0.0.1";  // an IP address, or "localhost"
  uint16_t port = 8080;            // 0: any free one
  ServerLimits limits;
  int handler_threads = 2;
  RequestLogOptions request_log;
  // What requests in progress get to end by themselves after stop(); the last tenth of it is for ending early.
  std::chrono::milliseconds grace{10'000};
  bool stop_on_signals = false;  // SIGTERM and SIGINT call stop(); a second one closes every connection at once
};

class HttpServer {
 public:
  // Binds and listens, so that clients may connect from now on. Throws base::Error{kUnavailable} where the port is
  // taken, kBadInput for a host that is no address of this machine and for a request log that can't be written. The
  // router must outlive the server.
  HttpServer(const ServerOptions& options, const Router& router);
  ~HttpServer();

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8080"

  // Serves in this thread until stop() was called and all connections are closed.
  void run();
  // Accepts nothing more, closes idle connections and lets the others end within the grace. From any thread, at any
  // time; a second call closes everything at once.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
