// Streams, clients that leave, slow readers and the end of the server.
#include <gmock/gmock.h>

#include "http_fixture.h"

namespace tandem::serve {
namespace {

using namespace std::chrono_literals;
using test::fetch;
using test::get;
using test::Http;
using test::HttpClient;
using test::post;
using test::RunningServer;
using testing::HasSubstr;

TEST_F(Http, AStreamDroppedHalfwayIsNotTakenForComplete) {
  RunningServer server(router_);
  HttpClient client(server.port());
  client.send(post("/hold", ""));
  {
    Reply reply = held(0);
    reply.open_stream({.content_type = kEventStream});
    reply.write("data: 1\n\n");
    client.read_until("data: 1");
    drop_held();
  }
  EXPECT_THAT(client.read_until("0\r\n\r\n"), testing::Not(HasSubstr("0\r\n\r\n")));
}

TEST_F(Http, SendsCommentsIntoASilentStream) {
  ServerOptions options;
  options.limits.keep_alive_time = 50ms;
  RunningServer server(router_, options);
  HttpClient client(server.port());
  client.send(post("/hold", ""));
  Reply reply = held(0);
  reply.open_stream({.content_type = kEventStream});
  EXPECT_THAT(client.read_until(": keep-alive\n\n"), HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(client.read_until(": keep-alive\n\n"), HasSubstr(": keep-alive\n\n"));
  reply.write("data: 1\n\n");
  reply.finish();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("data: 1\n\n"));
}

TEST_F(Http, AClientThatLeavesEndsItsRequestAtOnce) {
  RunningServer server(router_);
  int gone = 0;
  for (const bool reset : {false, true}) {
    for (const bool streaming : {false, true}) {
      HttpClient client(server.port());
      client.send(post("/hold", ""));
      Reply reply = held(static_cast<size_t>(gone));
      if (streaming) {
        reply.open_stream({.content_type = kEventStream});
        reply.write("data: 1\n\n");
        client.read_until("data: 1");
      }
      client.close(reset);
      EXPECT_TRUE(gone_within(++gone, 2s)) << "reset " << reset << ", streaming " << streaming;
      EXPECT_TRUE(reply.gone());
      EXPECT_FALSE(reply.write("data: 2\n\n"));
    }
  }
}

TEST_F(Http, AClientThatSentMuchAheadIsStillSeenLeaving) {
  ServerOptions options;
  options.limits.header_bytes = 4096;
  RunningServer server(router_, options);
  HttpClient client(server.port());
  client.send(post("/hold", ""));
  held(0);
  client.send(post("/echo", std::string(100'000, 'x')));
  std::this_thread::sleep_for(50ms);
  client.close(true);
  EXPECT_TRUE(gone_within(1, 2s));
}

TEST_F(Http, LeavingBeforeTheHandlerListensIsNotMissed) {
  Router router;
  std::atomic<bool> called{false};
  std::atomic<bool> may_register{false};
  router.add({.method = "POST", .path = "/late", .handler = [&](HttpRequest, Reply reply) {
                while (!reply.gone()) std::this_thread::sleep_for(1ms);
                reply.on_gone([&] { called = true; });
              }});
  RunningServer server(router);
  HttpClient client(server.port());
  client.send(post("/late", ""));
  std::this_thread::sleep_for(20ms);
  client.close();
  for (int i = 0; i < 400 && !called; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(called);
}

TEST_F(Http, ASlowReaderLosesItsRequestAndStarvesNobody) {
  ServerOptions options;
  options.limits.unsent_bytes = 64 << 10;
  RunningServer server(router_, options);
  HttpClient slow(server.port(), 4096);
  slow.send(post("/hold", ""));
  Reply reply = held(0);
  reply.open_stream({.content_type = kEventStream});
  const std::string event = "data: " + std::string(1000, 'x') + "\n\n";
  // The kernel's buffers take some megabytes; then the bound is met.
  size_t written = 0;
  while (written < (256u << 20) && reply.write(event)) {
    written += event.size();
    if (written % (1 << 20) < event.size()) {
      EXPECT_EQ(fetch(server.port(), get("/ping")).status, 200);
    }
  }
  EXPECT_LT(written, 256u << 20);
  EXPECT_TRUE(gone_within(1, 2s));
  EXPECT_EQ(fetch(server.port(), get("/ping")).status, 200);
}

TEST_F(Http, AClientThatTakesNothingOfALongAnswerIsDropped) {
  ServerOptions options;
  options.limits.write_time = 200ms;
  RunningServer server(router_, options);
  HttpClient client(server.port(), 4096);
  client.send(post("/hold", ""));
  Reply reply = held(0);
  reply.send({.content_type = "text/plain", .body = std::string(32 << 20, 'x')});
  std::this_thread::sleep_for(600ms);
  const std::string all = client.read_until("never", 5s);
  EXPECT_LT(all.size(), 32u << 20) << "the answer was cut off";
}

TEST_F(Http, SecondServerOnThePortIsRefusedWithOneLine) {
  RunningServer server(router_);
  ServerOptions options;
  options.port = server.port();
  try {
    HttpServer second(options, router_);
    FAIL() << "two servers on one port";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(server.port())));
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
  options.host = "300.1.1.1";
  EXPECT_THROW(HttpServer(options, router_), base::Error);
  options.host = "192.0.2.1";  // a documentation address: not one of this machine
  options.port = 0;
  EXPECT_THROW(HttpServer(options, router_), base::Error);
}

TEST_F(Http, StoppingEndsAtOnceWhereNothingIsInProgress) {
  RunningServer server(router_);
  HttpClient idle(server.port());
  idle.send(get("/ping"));
  EXPECT_EQ(idle.receive().status, 200);
  HttpClient half(server.port());
  half.send("POST /echo HTTP/1.1\r\nContent-L");
  const auto start = std::chrono::steady_clock::now();
  server.stop(false);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
  EXPECT_TRUE(idle.closed_within(2s));
  EXPECT_THROW(HttpClient late(server.port()), std::runtime_error);
}

TEST_F(Http, StoppingLetsAnAnswerEnd) {
  RunningServer server(router_);
  HttpClient client(server.port());
  client.send(post("/hold", ""));
  Reply reply = held(0);
  reply.open_stream({.content_type = kEventStream});
  server.ask_to_stop();
  std::this_thread::sleep_for(50ms);
  reply.write("data: last\n\n");
  reply.finish();
  const auto answer = client.receive();
  EXPECT_EQ(answer.body, "data: last\n\n");
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(client.closed_within(2s));
  EXPECT_EQ(gone_, 0);
}

TEST_F(Http, StoppingEndsLongAnswersEarlyWithinTheGrace) {
  ServerOptions options;
  options.grace = 1000ms;
  RunningServer server(router_, options);
  HttpClient client(server.port());
  client.send(post("/hold", ""));
  Reply reply = held(0);
  reply.open_stream({.content_type = kEventStream});
  HttpClient stubborn(server.port());
  stubborn.send(post("/hold", ""));
  held(1);
  const auto start = std::chrono::steady_clock::now();
  server.ask_to_stop();
  EXPECT_TRUE(gone_within(2, 2s)) << "handlers are asked to end";
  reply.write("data: shutting down\n\n");
  reply.finish();
  EXPECT_EQ(client.receive().body, "data: shutting down\n\n") << "and can still tell the client";
  EXPECT_EQ(stubborn.receive().status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}

TEST_F(Http, SurvivesClientsThatComeAndGoAtRandom) {
  RunningServer server(router_);
  unsigned random = 1;
  const auto next = [&](unsigned bound) { return (random = random * 1664525u + 1013904223u) >> 8 % bound; };
  const std::string requests[] = {get("/ping"), post("/echo", std::string(5000, 'e')), post("/hold", ""),
                                  "GET /ping HTTP/1.1\r\n\r\n\r\n", post("/echo", "x") + post("/hold", "")};
  for (int i = 0; i < 300; ++i) {
    HttpClient client(server.port());
    const std::string& request = requests[next(5) % 5];
    client.send(std::string_view(request).substr(0, 1 + next(1000000) % request.size()));
    if (next(2) % 2 == 0) client.read_until("\r\n\r\n", std::chrono::milliseconds(next(3) % 3));
    client.close(next(2) % 2 == 0);
  }
  EXPECT_EQ(fetch(server.port(), get("/ping")).status, 200);
  drop_held();
}

}  // namespace
}  // namespace tandem::serve
