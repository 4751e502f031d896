#include "serve/http/connection.h"

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "serve/http/request_log.h"

namespace tandem::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr size_t kReadBytes = 4096;
// What a client may send ahead while its request is answered, and may still be sending when an error is answered.
constexpr size_t kAheadBytes = 64 << 10;
constexpr size_t kLingerBytes = 1 << 20;
constexpr milliseconds kLingerTime{1000};
constexpr milliseconds kCancelAgain{50};
constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";

void append_chunk(std::string& out, std::string_view bytes, bool chunked) {
  if (bytes.empty()) return;
  if (chunked) fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out += bytes;
  if (chunked) out += "\r\n";
}

void run_handler(const Route& route, HttpRequest request, Reply reply) {
  const std::string id = request.id;
  const auto refuse = [&](ApiError error) {
    error.request_id = id;
    reply.send(route.errors(error));
  };
  try {
    route.handler(std::move(request), reply);
  } catch (const base::Error& error) {
    if (error.kind() == base::ErrorKind::kInternal) spdlog::error("{} failed: {}", id, error.what());
    refuse(api_error(error));
  } catch (const std::bad_alloc&) {
    refuse(http_error(503, "out of memory", "unavailable"));
  } catch (const std::exception& error) {
    spdlog::error("{} failed: {}", id, error.what());
    refuse(http_error(500, "internal error", "internal_error"));
  }
}

}  // namespace

// A request while it is read, and what the answer must know of it.
struct Connection::Incoming {
  explicit Incoming(ServerContext& s) : server(s) {
    parser.header_limit(static_cast<uint32_t>(s.limits.header_bytes));
    parser.body_limit(s.limits.body_bytes);
  }
  ~Incoming() { server.bodies_bytes -= counted_bytes; }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  // Takes what has come of the body into the server's account.
  void count_body() {
    const size_t size = parser.get().body().size();
    server.bodies_bytes += size - counted_bytes;
    counted_bytes = size;
  }

  ServerContext& server;
  http::request_parser<http::string_body> parser;
  size_t counted_bytes = 0;
  HttpRequest request;
  Router::Match match;
  bool head_only = false;   // HEAD: the answer's body is left out
  bool chunks = true;       // HTTP/1.1: a stream is sent in chunks; else it ends with the connection
  bool keep_alive = false;  // the connection outlives this request
  bool expects_continue = false;
  steady_clock::time_point start = steady_clock::now();
};

struct Connection::WrittenAnswer {
  int status = 0;
  size_t bytes = 0;
  bool streaming = false;
  bool comments = false;  // silence is filled with keep-alive comments
  bool complete = false;
};

// How a request ended, for the logs.
struct Connection::Ending {
  int status = 0;
  size_t bytes = 0;
  const char* how = "complete";  // or "client left", "cut off"
  base::Json notes = base::Json::object();
};

namespace {

// What to answer where reading a request failed; nothing where the client has left.
std::optional<ApiError> read_error(const error_code& error, bool timed_out, const ServerLimits& limits) {
  if (timed_out) return http_error(408, "the request did not arrive in time", "request_timeout");
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return http_error(431, fmt::format("the header exceeds {}", base::format_bytes(limits.header_bytes)),
                      "header_too_large");
  }
  if (error == http::error::body_limit) {
    return http_error(413, fmt::format("the request body exceeds {}", base::format_bytes(limits.body_bytes)),
                      "request_too_large");
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) return std::nullopt;
  if (error == http::error::bad_version) return http_error(505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  if (error.category() == make_error_code(http::error::bad_method).category()) {
    return http_error(400, fmt::format("not a valid HTTP request: {}", error.message()), "bad_http");
  }
  return std::nullopt;
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  std::replace_if(out.begin(), out.end(), [](char c) { return c < 0x21 || c > 0x7e; }, '?');
  return out;
}

void split_target(std::string_view target, HttpRequest& request) {
  // The absolute form, "http://host/path", is for proxies, but servers must take it.
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != std::string_view::npos) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
}

// What HTTP itself asks of a head beyond what the parser has checked.
std::optional<ApiError> check_protocol(const Headers& headers, bool http11) {
  if (headers.count("host") > 1 || (http11 && headers.count("host") == 0)) {
    return http_error(400, "one Host field is needed", "bad_http");
  }
  const auto transfer = headers.find("transfer-encoding");
  if (transfer && !equal_ignoring_case(*transfer, "chunked")) {
    return http_error(501, "the only transfer coding is chunked", "bad_http");
  }
  const auto coding = headers.find("content-encoding");
  if (coding && !equal_ignoring_case(*coding, "identity")) {
    return http_error(415, "compressed request bodies are not taken: send it without Content-Encoding",
                      "unsupported_encoding");
  }
  const auto expect = headers.find("expect");
  if (expect && !equal_ignoring_case(*expect, "100-continue")) {
    return http_error(417, "the only expectation met is 100-continue", "bad_http");
  }
  return std::nullopt;
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, ServerContext& server)
    : socket_(std::move(socket)),
      server_(server),
      buffer_(server.limits.header_bytes + kAheadBytes),
      deadline_(server.io),
      news_(server.io) {}

void Connection::arm(milliseconds time) {
  timed_out_ = false;
  deadline_.expires_after(time);
  wait_for_deadline();
}

void Connection::wait_for_deadline() {
  deadline_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    // A timer that was set anew after it had fired still runs its old handler.
    if (error || !self || self->deadline_.expiry() > steady_clock::now()) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
    // An operation made of several reads may have been between two of them and not noticed: again, until it has.
    self->deadline_.expires_after(kCancelAgain);
    self->wait_for_deadline();
  });
}

void Connection::disarm() {
  timed_out_ = false;
  deadline_.expires_at(steady_clock::time_point::max());
}

void Connection::drain() {
  if (!answering_) close();
}

void Connection::end_request() {
  if (const auto exchange = exchange_) exchange->ask_to_end();
}

void Connection::close() {
  error_code ignored;
  deadline_.cancel();
  news_.cancel();
  socket_.close(ignored);
}

std::string Connection::new_request_id() {
  return fmt::format("req_{:016x}{:08x}", server_.random(), server_.random() >> 32);
}

awaitable<void> Connection::serve() {
  bool more = true;
  while (more) more = co_await serve_one();
  close();
}

awaitable<void> Connection::refuse() {
  Incoming incoming(server_);
  incoming.request.id = new_request_id();
  ApiError error =
      http_error(503, fmt::format("all {} connections are taken", server_.limits.connections), "too_many_connections");
  error.headers.add("retry-after", "1");
  co_await send_error(incoming, error);
  close();
}

awaitable<bool> Connection::serve_one() {
  answering_ = false;
  bool good = co_await wait_for_request();
  if (!good) co_return false;
  Incoming incoming(server_);
  incoming.request.id = new_request_id();
  good = co_await read_head(incoming);
  if (!good) co_return false;
  if (incoming.match.refusal) {
    if (!incoming.parser.is_done()) incoming.keep_alive = false;  // its body is not read
    co_return co_await send_error(incoming, *incoming.match.refusal);
  }
  good = co_await read_body(incoming);
  if (!good) co_return false;
  co_return co_await answer(incoming);
}

awaitable<bool> Connection::wait_for_request() {
  if (buffer_.size() > 0) co_return true;  // sent ahead
  if (server_.draining) co_return false;
  arm(first_request_ ? server_.limits.header_time : server_.limits.idle_time);
  error_code error;
  const auto room = buffer_.prepare(kReadBytes);
  const size_t read = co_await socket_.async_read_some(room, redirect_error(use_awaitable, error));
  buffer_.commit(read);
  first_request_ = false;
  co_return !error;
}

awaitable<bool> Connection::read_head(Incoming& incoming) {
  arm(server_.limits.header_time);
  error_code error;
  co_await http::async_read_header(socket_, buffer_, incoming.parser, redirect_error(use_awaitable, error));
  if (error) {
    const auto fault = read_error(error, timed_out_, server_.limits);
    if (fault) co_await send_error(incoming, *fault);
    co_return false;
  }
  check_head(incoming);
  co_return true;
}

void Connection::check_head(Incoming& incoming) {
  const auto& message = incoming.parser.get();
  HttpRequest& request = incoming.request;
  request.method = std::string(message.method_string());
  split_target(std::string_view(message.target().data(), message.target().size()), request);
  for (const auto& field : message) request.headers.add(std::string(field.name_string()), std::string(field.value()));
  incoming.head_only = request.method == "HEAD";
  incoming.chunks = message.version() >= 11;
  incoming.keep_alive = message.keep_alive();
  incoming.expects_continue = request.headers.find("expect").has_value() && incoming.chunks;
  if (auto fault = check_protocol(request.headers, incoming.chunks)) {
    incoming.match.refusal = std::move(fault);
  } else {
    incoming.match = server_.router.match(request);
  }
  if (!incoming.match.refusal && server_.draining) {
    incoming.match.refusal = http_error(503, "the server is shutting down", "shutting_down");
  }
}

awaitable<bool> Connection::read_body(Incoming& incoming) {
  const auto start = steady_clock::now();
  if (incoming.expects_continue && !incoming.parser.is_done()) {
    const bool written = co_await write("HTTP/1.1 100 Continue\r\n\r\n");
    if (!written) co_return false;
  }
  while (!incoming.parser.is_done()) {
    const auto earned = milliseconds(incoming.counted_bytes * 1000 / server_.limits.body_rate);
    const auto left = start + server_.limits.body_time + earned - steady_clock::now();
    arm(std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(0)));
    error_code error;
    co_await http::async_read_some(socket_, buffer_, incoming.parser, redirect_error(use_awaitable, error));
    incoming.count_body();
    std::optional<ApiError> fault;
    if (error) {
      fault = read_error(error, timed_out_, server_.limits);
    } else if (server_.bodies_bytes > server_.limits.all_bodies_bytes) {
      fault = http_error(503, "the server is receiving too many large requests", "unavailable");
    }
    if (error && !fault) co_return false;
    if (fault) {
      incoming.keep_alive = false;
      co_await send_error(incoming, *fault);
      co_return false;
    }
  }
  incoming.request.body = std::move(incoming.parser.get().body());
  co_return true;
}

awaitable<bool> Connection::answer(Incoming& incoming) {
  using namespace boost::asio::experimental::awaitable_operators;
  disarm();
  answering_ = true;
  const auto exchange =
      std::make_shared<Exchange>(server_.limits.unsent_bytes, [io = &server_.io, weak = weak_from_this()] {
        asio::post(*io, [weak] {
          if (const auto self = weak.lock()) self->news_.cancel();
        });
      });
  exchange_ = exchange;
  WrittenAnswer written;
  start_handler(incoming, exchange);
  const auto ended = co_await (pass_on(incoming, *exchange, written) || watch_client(*exchange));
  const bool more = ended.index() == 0 && std::get<0>(ended);
  if (!written.complete) exchange->client_gone();
  exchange->detach();
  exchange_ = nullptr;
  const Ending ending{.status = written.status,
                      .bytes = written.bytes,
                      .how = written.complete     ? "complete"
                             : ended.index() == 0 ? "cut off"
                                                  : "client left",
                      .notes = exchange->notes()};
  log(incoming, ending);
  if (!more && written.complete) co_await linger();
  co_return more;
}

// One line a request: never a query, a header or a body. Probes and polls (/health, /metrics) come too often for
// "info".
void Connection::log(const Incoming& incoming, const Ending& ending) {
  const HttpRequest& request = incoming.request;
  const Route* route = incoming.match.route;
  const double ms = std::chrono::duration<double, std::milli>(steady_clock::now() - incoming.start).count();
  const auto level = route != nullptr && (route->open || route->polled) ? spdlog::level::debug : spdlog::level::info;
  const std::string method = printable(request.method);
  const std::string path = printable(request.path);
  spdlog::log(level, "{} {} {} {} {} bytes {:.1f} ms, {}", request.id, method, path, ending.status, ending.bytes, ms,
              ending.how);
  if (server_.request_log == nullptr) return;
  base::Json line = {{"id", request.id},      {"method", method}, {"path", path},     {"status", ending.status},
                     {"bytes", ending.bytes}, {"ms", ms},         {"end", ending.how}};
  line.update(ending.notes);
  server_.request_log->write(line);
}

void Connection::start_handler(Incoming& incoming, const std::shared_ptr<Exchange>& exchange) {
  HttpRequest request = std::move(incoming.request);
  request.parameter = incoming.match.parameter;
  incoming.request = HttpRequest{.id = request.id, .method = request.method, .path = request.path};  // for the log
  const Route& route = *incoming.match.route;
  if (route.quick) {
    run_handler(route, std::move(request), Reply(exchange));
  } else {
    asio::post(server_.handlers, [&route, request = std::move(request), reply = Reply(exchange)]() mutable {
      run_handler(route, std::move(request), std::move(reply));
    });
  }
}

// The bytes that this news adds to the answer.
std::string Connection::answer_bytes(Incoming& incoming, const Exchange::News& news, WrittenAnswer& written) {
  std::string out;
  if (news.head) {
    written.status = news.head->status;
    written.streaming = news.stream;
    written.comments = news.stream && news.head->content_type == kEventStream && !incoming.head_only;
    if (server_.draining || (news.stream && !incoming.chunks)) incoming.keep_alive = false;
    out = head_bytes(incoming, *news.head, news.stream);
    if (!news.stream && !incoming.head_only) out += news.head->body;
  }
  if (!incoming.head_only) {
    append_chunk(out, news.bytes, incoming.chunks);
    if (news.finished && written.streaming && incoming.chunks) out += "0\r\n\r\n";
  }
  return out;
}

// Writes the answer as it comes; true where it is complete and the connection can take another request.
awaitable<bool> Connection::pass_on(Incoming& incoming, Exchange& exchange, WrittenAnswer& written) {
  for (;;) {
    const Exchange::News news = exchange.take();
    if (news.failed) co_return false;
    std::string out = answer_bytes(incoming, news, written);
    if (out.empty() && !news.finished) {
      news_.expires_after(server_.limits.keep_alive_time);
      error_code woken;
      co_await news_.async_wait(redirect_error(use_awaitable, woken));
      if (!woken && written.comments) append_chunk(out, kKeepAliveComment, incoming.chunks);
    }
    const size_t bytes = out.size();
    const bool good = co_await write(std::move(out));
    if (!good) co_return false;
    written.bytes += bytes;
    if (news.finished) {
      written.complete = true;
      co_return incoming.keep_alive && !server_.draining;
    }
  }
}

// Reads ahead while the answer is made: what comes is the next request, the end is the client's leaving.
awaitable<bool> Connection::watch_client(Exchange& exchange) {
  error_code error;
  while (!error) {
    const size_t room = std::min(kReadBytes, buffer_.max_size() - buffer_.size());
    if (room == 0) {
      co_await socket_.async_wait(asio::ip::tcp::socket::wait_error, redirect_error(use_awaitable, error));
      break;
    }
    const auto space = buffer_.prepare(room);
    const size_t read = co_await socket_.async_read_some(space, redirect_error(use_awaitable, error));
    buffer_.commit(read);
  }
  exchange.client_gone();
  co_return false;
}

awaitable<bool> Connection::write(std::string bytes) {
  if (bytes.empty()) co_return true;
  size_t done = 0;
  while (done < bytes.size()) {
    arm(server_.limits.write_time);
    error_code error;
    const asio::const_buffer rest(bytes.data() + done, bytes.size() - done);
    done += co_await socket_.async_write_some(rest, redirect_error(use_awaitable, error));
    if (error) co_return false;
  }
  disarm();
  co_return true;
}

awaitable<bool> Connection::send_error(Incoming& incoming, ApiError error) {
  answering_ = true;
  error.request_id = incoming.request.id;
  const HttpResponse response = incoming.match.errors(error);
  if (server_.draining) incoming.keep_alive = false;
  std::string out = head_bytes(incoming, response, false);
  if (!incoming.head_only) out += response.body;
  const size_t bytes = out.size();
  const bool written = co_await write(std::move(out));
  const Ending ending{.status = response.status, .bytes = bytes, .how = written ? "complete" : "client left"};
  log(incoming, ending);
  if (written && incoming.keep_alive) co_return true;
  if (written) co_await linger();
  co_return false;
}

// Ends our side and reads what the client is still sending for a moment: a connection closed with unread bytes is
// reset, and the client may never see the answer.
awaitable<void> Connection::linger() {
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  arm(kLingerTime);
  answering_ = false;
  size_t read_bytes = 0;
  buffer_.clear();
  while (!error && read_bytes < kLingerBytes) {
    const auto room = buffer_.prepare(kReadBytes);
    read_bytes += co_await socket_.async_read_some(room, redirect_error(use_awaitable, error));
  }
  disarm();
}

std::string Connection::head_bytes(const Incoming& incoming, const HttpResponse& response, bool stream) const {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\ncontent-type: {}\r\n", response.status,
                                status_phrase(response.status), response.content_type);
  for (const auto& [name, value] : response.headers) fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
  // OpenAI's clients look for the first, Anthropic's for the second.
  if (!incoming.request.id.empty())
    fmt::format_to(std::back_inserter(out), "x-request-id: {0}\r\nrequest-id: {0}\r\n", incoming.request.id);
  out += "x-content-type-options: nosniff\r\n";
  if (!stream) {
    fmt::format_to(std::back_inserter(out), "content-length: {}\r\n", response.body.size());
  } else if (incoming.chunks) {
    out += "transfer-encoding: chunked\r\n";
  }
  if (!incoming.keep_alive) {
    out += "connection: close\r\n";
  } else if (!incoming.chunks) {
    out += "connection: keep-alive\r\n";
  }
  out += "\r\n";
  return out;
}

}  // namespace tandem::serve
