// A small HTTP client over a raw socket, for tests that must say exactly which bytes are sent and when.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::test {

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // the whole body came
};

class HttpClient {
 public:
  // Connects to 127.0.0.1. `receive_buffer_bytes` makes a slow reader: the kernel holds no more for it (0: default).
  explicit HttpClient(uint16_t port, int receive_buffer_bytes = 0);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False where the server has closed the connection.
  bool send(std::string_view bytes);
  // The next answer on this connection; status 0 where the connection ended first. `head_only` for answers to HEAD.
  ClientResponse receive(bool head_only = false);
  // Bytes as they come until `text` has come, the connection ends or `limit` has passed; all that was read and not yet
  // given out.
  std::string read_until(std::string_view text, std::chrono::milliseconds limit = std::chrono::seconds(20));
  // The connection ends within `limit`; what still came is dropped.
  bool closed_within(std::chrono::milliseconds limit);
  // Ends the connection as a killed client does: with a reset where `reset` is set.
  void close(bool reset = false);

 private:
  bool fill(std::chrono::steady_clock::time_point until);  // reads more; false at the end or when the time is over
  std::optional<std::string> take_line(std::chrono::steady_clock::time_point until);
  std::optional<std::string> take_bytes(size_t count, std::chrono::steady_clock::time_point until);

  int fd_ = -1;
  std::string buffer_;
};

// "POST path HTTP/1.1" with Host, Content-Type, Content-Length and `headers` ("name: value\r\n" each).
std::string post(std::string_view path, std::string_view body, std::string_view headers = "");
std::string get(std::string_view path, std::string_view headers = "", std::string_view method = "GET");
// One request on a connection of its own.
ClientResponse fetch(uint16_t port, const std::string& request);

// The payloads of the "data:" lines of an event stream, in order; comments are left out.
std::vector<std::string> event_data(std::string_view stream);

}  // namespace tandem::test
