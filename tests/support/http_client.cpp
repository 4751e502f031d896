#include "http_client.h"

#include <algorithm>
#include <charconv>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "slack.h"

namespace tandem::test {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr auto kPatience = std::chrono::seconds(20) * testing_support::kSlack;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

HttpClient::HttpClient(uint16_t port, int receive_buffer_bytes) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(int));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(fd_);
    throw std::runtime_error("cannot connect to port " + std::to_string(port));
  }
}

HttpClient::~HttpClient() {
  close();
}

void HttpClient::close(bool reset) {
  if (fd_ < 0) return;
  if (reset) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  ::close(fd_);
  fd_ = -1;
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpClient::fill(steady_clock::time_point until) {
  const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now()).count();
  pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
  if (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) <= 0) return false;
  char bytes[16384];
  const ssize_t read = recv(fd_, bytes, sizeof(bytes), 0);
  if (read <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(read));
  return true;
}

std::optional<std::string> HttpClient::take_line(steady_clock::time_point until) {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!fill(until)) return std::nullopt;
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

std::optional<std::string> HttpClient::take_bytes(size_t count, steady_clock::time_point until) {
  while (buffer_.size() < count) {
    if (!fill(until)) return std::nullopt;
  }
  std::string bytes = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return bytes;
}

ClientResponse HttpClient::receive(bool head_only) {
  const auto until = steady_clock::now() + kPatience;
  ClientResponse out;
  const auto status = take_line(until);
  if (!status || !status->starts_with("HTTP/1.1 ") || status->size() < 12) return out;
  for (;;) {
    const auto line = take_line(until);
    if (!line) return out;
    if (line->empty()) break;
    const size_t colon = line->find(": ");
    if (colon == std::string::npos) return out;
    out.headers[lower(line->substr(0, colon))] = line->substr(colon + 2);
  }
  std::from_chars(status->data() + 9, status->data() + 12, out.status);
  if (head_only || out.status == 100) {
    out.complete = true;
  } else if (out.headers.count("content-length") != 0) {
    const auto body = take_bytes(std::stoul(out.headers["content-length"]), until);
    out.complete = body.has_value();
    out.body = body.value_or("");
  } else if (out.headers.count("transfer-encoding") != 0) {
    for (;;) {
      const auto size = take_line(until);
      if (!size) return out;
      const auto chunk = take_bytes(std::stoul(*size, nullptr, 16) + 2, until);
      if (!chunk) return out;
      if (chunk->size() == 2) break;
      out.body += chunk->substr(0, chunk->size() - 2);
    }
    out.complete = true;
  } else {
    while (fill(until)) {
    }
    out.body = std::move(buffer_);
    buffer_.clear();
    out.complete = true;
  }
  return out;
}

std::string HttpClient::read_until(std::string_view text, milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  while (buffer_.find(text) == std::string::npos && fill(until)) {
  }
  return std::exchange(buffer_, std::string());
}

bool HttpClient::closed_within(milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  while (fill(until)) buffer_.clear();
  return steady_clock::now() < until;
}

std::string post(std::string_view path, std::string_view body, std::string_view headers) {
  return std::string("POST ") + std::string(path) +
         " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + std::string(headers) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string get(std::string_view path, std::string_view headers, std::string_view method) {
  return std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + std::string(headers) +
         "\r\n";
}

ClientResponse fetch(uint16_t port, const std::string& request) {
  HttpClient client(port);
  client.send(request);
  return client.receive(request.starts_with("HEAD "));
}

std::vector<std::string> event_data(std::string_view stream) {
  std::vector<std::string> out;
  while (!stream.empty()) {
    const size_t end = std::min(stream.find('\n'), stream.size());
    if (stream.starts_with("data: ")) out.emplace_back(stream.substr(6, end - 6));
    stream.remove_prefix(std::min(end + 1, stream.size()));
  }
  return out;
}

}  // namespace tandem::test
