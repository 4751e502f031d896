#include "loopback_client.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace tandem::app {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kPatience{10'000};
constexpr size_t kPieceBytes = 64 << 10;

}  // namespace

LoopbackClient::LoopbackClient(uint16_t port) : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return;
  const int error = errno;
  close();
  base::unavailable(fmt::format("port {}", port), "cannot be connected to: {}", std::strerror(error));
}

LoopbackClient::~LoopbackClient() {
  close();
}

void LoopbackClient::close(bool reset) {
  if (descriptor_ < 0) return;
  if (reset) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

bool LoopbackClient::wait(short event, milliseconds limit) const {
  pollfd waiting{.fd = descriptor_, .events = event, .revents = 0};
  return ::poll(&waiting, 1, static_cast<int>(std::max<int64_t>(limit.count(), 0))) > 0;
}

bool LoopbackClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    if (!wait(POLLOUT, kPatience)) return false;
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool LoopbackClient::receive(milliseconds limit) {
  if (!wait(POLLIN, limit)) return false;
  char piece[kPieceBytes];
  const ssize_t got = ::recv(descriptor_, piece, sizeof(piece), MSG_DONTWAIT);
  if (got <= 0) return false;
  unread_.append(piece, static_cast<size_t>(got));
  if (answer_.status == 0) take_head();
  if (answer_.status != 0 && !answer_.complete) take_body();
  return true;
}

void LoopbackClient::take_head() {
  const size_t end = unread_.find("\r\n\r\n");
  if (end == std::string::npos || unread_.size() < 12) return;
  std::string head = unread_.substr(0, end + 2);
  unread_.erase(0, end + 4);
  std::transform(head.begin(), head.end(), head.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto field = [&](std::string_view name) {
    const size_t at = head.find(fmt::format("\r\n{}: ", name));
    if (at == std::string::npos) return std::string();
    const size_t value = at + name.size() + 4;
    return head.substr(value, head.find("\r\n", value) - value);
  };
  std::from_chars(head.data() + 9, head.data() + 12, answer_.status);
  answer_.content_type = field("content-type");
  chunked_ = field("transfer-encoding") == "chunked";
  const std::string length = field("content-length");
  std::from_chars(length.data(), length.data() + length.size(), left_);
  in_chunk_ = false;
  answer_.complete = head_only_ || (!chunked_ && left_ == 0);
}

void LoopbackClient::take_body() {
  size_t at = 0;
  const auto take = [&] {
    const size_t part = std::min(left_, unread_.size() - at);
    answer_.body.append(unread_, at, part);
    at += part;
    left_ -= part;
  };
  if (!chunked_) {
    take();
    answer_.complete = left_ == 0;
  }
  while (chunked_ && !answer_.complete && at < unread_.size()) {
    if (in_chunk_) {
      take();
      if (left_ > 0 || unread_.size() - at < 2) break;
      at += 2;
      in_chunk_ = false;
      continue;
    }
    const size_t line_end = unread_.find("\r\n", at);
    if (line_end == std::string::npos) break;
    std::from_chars(unread_.data() + at, unread_.data() + line_end, left_, 16);
    if (left_ == 0) {
      if (unread_.size() < line_end + 4) break;
      answer_.complete = true;
      at = line_end + 4;
    } else {
      at = line_end + 2;
      in_chunk_ = true;
    }
  }
  unread_.erase(0, at);
}

LoopbackAnswer LoopbackClient::fetch(std::string_view request, milliseconds limit, bool head_only) {
  answer_ = {};
  head_only_ = head_only;
  const auto until = steady_clock::now() + limit;
  if (!send(request)) return answer_;
  while (!answer_.complete && receive(std::chrono::duration_cast<milliseconds>(until - steady_clock::now()))) {
  }
  return answer_;
}

std::string loopback_post(std::string_view path, std::string_view body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}", path,
      body.size(), body);
}

}  // namespace tandem::app
