// One client's connection: requests in, answers out, one after the other. Everything here runs on the server's one
// network thread, except what Exchange and the handlers do.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"
#include "serve/http/http_server.h"

namespace tandem::serve {

class RequestLog;

// What the connections of one server share.
struct ServerContext {
  boost::asio::io_context& io;
  boost::asio::thread_pool& handlers;
  const Router& router;
  ServerLimits limits;
  RequestLog* request_log = nullptr;  // null: none
  bool draining = false;              // stop() was called: every answer closes its connection
  size_t bodies_bytes = 0;            // being received on all connections
  std::mt19937_64 random = {};        // names of requests; seeded by the server
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ServerContext& server);

  // Serves requests until the connection is closed.
  boost::asio::awaitable<void> serve();
  // Tells the client that the server has too many connections, and closes.
  boost::asio::awaitable<void> refuse();

  // The server stops: closes the connection unless a request is being answered.
  void drain();
  // Asks the request in progress to end early.
  void end_request();
  void close();

 private:
  struct Incoming;
  struct WrittenAnswer;
  struct Ending;

  boost::asio::awaitable<bool> serve_one();
  boost::asio::awaitable<bool> wait_for_request();
  boost::asio::awaitable<bool> read_head(Incoming& incoming);
  boost::asio::awaitable<bool> read_body(Incoming& incoming);
  boost::asio::awaitable<bool> answer(Incoming& incoming);
  boost::asio::awaitable<bool> send_error(Incoming& incoming, ApiError error);
  boost::asio::awaitable<bool> pass_on(Incoming& incoming, Exchange& exchange, WrittenAnswer& written);
  boost::asio::awaitable<bool> watch_client(Exchange& exchange);
  boost::asio::awaitable<bool> write(std::string bytes);
  boost::asio::awaitable<void> linger();

  void check_head(Incoming& incoming);
  void log(const Incoming& incoming, const Ending& ending);
  void start_handler(Incoming& incoming, const std::shared_ptr<Exchange>& exchange);
  std::string answer_bytes(Incoming& incoming, const Exchange::News& news, WrittenAnswer& written);
  std::string head_bytes(const Incoming& incoming, const HttpResponse& response, bool stream) const;
  void arm(std::chrono::milliseconds time);
  void wait_for_deadline();
  void disarm();
  std::string new_request_id();

  boost::asio::ip::tcp::socket socket_;
  ServerContext& server_;
  boost::beast::flat_buffer buffer_;  // read and not yet consumed
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer news_;      // cancelled when the exchange has something to take
  std::shared_ptr<Exchange> exchange_;  // of the request in progress
  bool first_request_ = true;
  bool answering_ = false;  // a request has come whole (or was refused) and its answer is not yet written
  bool timed_out_ = false;
};

}  // namespace tandem::serve
