#include "serve/http/http_server.h"

#include <arpa/inet.h>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/connection.h"

namespace tandem::serve {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

// Beyond the limit of connections, this many more are told so; the rest are closed without a word.
constexpr int kRefusedAtATime = 64;
// How long to wait where the process has no descriptor left.
constexpr milliseconds kAcceptPause{100};
// A peer that vanished without a word is found by these, in about 20 s.
constexpr int kProbeIdleSeconds = 10;
constexpr int kProbeEverySeconds = 5;
constexpr int kProbes = 2;

void set_options(tcp::socket& socket, const ServerLimits& limits) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int fd = socket.native_handle();
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kProbeIdleSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeEverySeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(int));
  // Bytes on the way that nobody acknowledges end the connection, also while the kernel's buffers would take more.
  const auto unacknowledged = static_cast<unsigned>(limits.write_time.count());
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged, sizeof(unacknowledged));
}

tcp::endpoint endpoint_of(const ServerOptions& options) {
  error_code error;
  const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) base::bad_input("--host", "\"{}\" is neither an IP address nor localhost", options.host);
  return {address, options.port};
}

}  // namespace

struct HttpServer::Impl {
  Impl(const ServerOptions& server_options, const Router& router)
      : options(server_options),
        handlers(static_cast<size_t>(server_options.handler_threads)),
        context{io, handlers, router, server_options.limits},
        acceptor(io),
        grace_timer(io),
        pause(io),
        signals(io) {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    context.random.seed(seed);
    if (!options.request_log.file.empty()) request_log = std::make_unique<RequestLog>(options.request_log);
    context.request_log = request_log.get();
    listen();
    endpoint = acceptor.local_endpoint();
  }

  void listen() {
    const tcp::endpoint wanted = endpoint_of(options);
    error_code error;
    acceptor.open(wanted.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(wanted, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error == asio::error::address_in_use) {
      base::unavailable("--port", "port {} of {} is in use by another program; choose another with --port",
                        options.port, options.host);
    }
    if (error == asio::error::access_denied) {
      base::unavailable("--port", "this user may not listen on port {}", options.port);
    }
    if (error) base::bad_input("--host", "cannot listen on {}: {}", options.host, error.message());
  }

  asio::awaitable<void> accept() {
    while (acceptor.is_open()) {
      tcp::socket socket(io);
      error_code error;
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) break;
      if (error) {
        spdlog::warn("cannot accept a connection: {}", error.message());
        pause.expires_after(kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      try {
        set_options(socket, options.limits);
        start(std::move(socket));
      } catch (const std::exception& fault) {
        spdlog::error("cannot serve a connection: {}", fault.what());
      }
    }
  }

  void start(tcp::socket socket) {
    const bool over = static_cast<int>(connections.size()) >= options.limits.connections;
    if (over && static_cast<int>(connections.size()) >= options.limits.connections + kRefusedAtATime) return;
    const auto connection = std::make_shared<Connection>(std::move(socket), context);
    connections.emplace(connection.get(), connection);
    asio::co_spawn(io, over ? connection->refuse() : connection->serve(), [this, connection](std::exception_ptr fault) {
      if (fault) report(fault);
      connection->close();
      connections.erase(connection.get());
      if (context.draining && connections.empty()) end();
    });
  }

  static void report(const std::exception_ptr& fault) {
    try {
      std::rethrow_exception(fault);
    } catch (const std::exception& error) {
      spdlog::error("a connection failed: {}", error.what());
    }
  }

  void watch_signals() {
    if (!options.stop_on_signals) return;
    signals.async_wait([this](const error_code& error, int) {
      if (error) return;
      watch_signals();
      stop();
    });
  }

  void stop() {
    if (context.draining) {
      for (const auto& [key, connection] : connections) connection->close();
      return;
    }
    context.draining = true;
    error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
    for (const auto& [key, connection] : connections) connection->drain();
    if (connections.empty()) return end();
    grace_timer.expires_after(options.grace - options.grace / 10);
    grace_timer.async_wait([this](const error_code& error) {
      if (error) return;
      for (const auto& [key, connection] : connections) connection->end_request();
      grace_timer.expires_after(options.grace / 10);
      grace_timer.async_wait([this](const error_code& late) {
        if (late) return;
        for (const auto& [key, connection] : connections) connection->close();
      });
    });
  }

  void end() {
    grace_timer.cancel();
    signals.cancel();
  }

  void run() {
    if (options.stop_on_signals) {
      signals.add(SIGTERM);
      signals.add(SIGINT);
      watch_signals();
    }
    asio::co_spawn(io, accept(), asio::detached);
    io.run();
    handlers.join();
  }

  const ServerOptions options;
  std::unique_ptr<RequestLog> request_log;
  asio::io_context io{1};
  asio::thread_pool handlers;
  ServerContext context;
  tcp::acceptor acceptor;
  tcp::endpoint endpoint;
  asio::steady_timer grace_timer;
  asio::steady_timer pause;
  asio::signal_set signals;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
};

HttpServer::HttpServer(const ServerOptions& options, const Router& router)
    : impl_(std::make_unique<Impl>(options, router)) {}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const {
  return impl_->endpoint.port();
}

std::string HttpServer::url() const {
  const tcp::endpoint& endpoint = impl_->endpoint;
  const std::string address = endpoint.address().to_string();
  return fmt::format(fmt::runtime(endpoint.address().is_v6() ? "http://[{}]:{}" : "http://{}:{}"), address,
                     endpoint.port());
}

void HttpServer::run() {
  impl_->run();
}

void HttpServer::stop() {
  asio::post(impl_->io, [impl = impl_.get()] { impl->stop(); });
}

}  // namespace tandem::serve
