#include "serve/http_server.h"

#include <atomic>
#include <gmock/gmock.h>
#include <mutex>

#include "base/error.h"
#include "http_client.h"
#include "test_server.h"

namespace tandem::serve {
namespace {

using namespace std::chrono_literals;
using test::fetch;
using test::get;
using test::HttpClient;
using test::post;
using test::RunningServer;
using testing::HasSubstr;

// Routes that show what arrived, and one whose answer the test writes itself.
class Http : public testing::Test {
 protected:
  Http() {
    router_.add(
        {.method = "GET",
         .path = "/ping",
         .handler = [](HttpRequest, Reply reply) { reply.send({.content_type = "text/plain", .body = "pong"}); },
         .quick = true});
    router_.add({.method = "POST", .path = "/echo", .handler = [](HttpRequest request, Reply reply) {
                   reply.send({.content_type = "text/plain", .body = std::move(request.body)});
                 }});
    router_.add({.method = "GET", .path = "/item/{name}", .handler = [](HttpRequest request, Reply reply) {
                   reply.send({.content_type = "text/plain", .body = request.parameter + "|" + request.query});
                 }});
    router_.add({.method = "POST", .path = "/hold", .handler = [this](HttpRequest, Reply reply) {
                   reply.on_gone([this] { ++gone_; });
                   std::lock_guard lock(mutex_);
                   held_.push_back(std::move(reply));
                 }});
    router_.add({.method = "POST", .path = "/fail", .handler = [](HttpRequest request, Reply) {
                   if (request.body == "input") base::bad_input("size", "is 7, at most 5 are taken");
                   if (request.body == "standard") throw std::runtime_error("secret");
                   // "drop": no answer at all
                 }});
  }

  // The reply of the nth request to /hold, once it has come.
  Reply held(size_t index) {
    for (int i = 0; i < 2000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (held_.size() > index) return held_[index];
      }
      std::this_thread::sleep_for(5ms);
    }
    throw std::runtime_error("no request came");
  }

  bool gone_within(int count, std::chrono::milliseconds limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (gone_ < count && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
    return gone_ >= count;
  }

  void drop_held() {
    std::lock_guard lock(mutex_);
    held_.clear();
  }

  Router router_;
  std::mutex mutex_;
  std::vector<Reply> held_;
  std::atomic<int> gone_{0};
};

TEST_F(Http, AnswersGetAndHeadAlikeButForTheBody) {
  RunningServer server(router_);
  const auto answer = fetch(server.port(), get("/ping"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "pong");
  EXPECT_THAT(answer.headers.at("x-request-id"), testing::StartsWith("req_"));

  HttpClient client(server.port());
  client.send(get("/ping", "", "HEAD"));
  const auto head = client.receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "4");
  client.send(get("/ping"));
  EXPECT_EQ(client.receive().body, "pong") << "the connection is usable after HEAD";
}

TEST_F(Http, RoutesByPathAndGivesTheParameterDecoded) {
  RunningServer server(router_);
  EXPECT_EQ(fetch(server.port(), get("/item/a%20b/c%?x=1&y=2")).body, "a b/c%|x=1&y=2");
  EXPECT_EQ(fetch(server.port(), get("http://127.0.0.1/item/z")).body, "z|");
  EXPECT_EQ(fetch(server.port(), get("/item/")).status, 404);
  EXPECT_EQ(fetch(server.port(), get("/item")).status, 404);
}

TEST_F(Http, UnknownPathsAndMethodsGetOpenAisErrorForm) {
  RunningServer server(router_);
  const auto unknown = fetch(server.port(), get("/nowhere"));
  EXPECT_EQ(unknown.status, 404);
  const auto error = base::parse_json(unknown.body, "answer").at("error");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_EQ(error.at("code"), "unknown_url");
  EXPECT_TRUE(error.at("param").is_null());
  EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("/nowhere"));

  const auto method = fetch(server.port(), get("/echo"));
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  const auto deleted = fetch(server.port(), get("/ping", "", "DELETE"));
  EXPECT_EQ(deleted.status, 405);
  EXPECT_EQ(deleted.headers.at("allow"), "GET, HEAD");
}

TEST_F(Http, TakesBodiesByLengthAndInChunks) {
  RunningServer server(router_);
  const std::string large(300'000, 'x');
  EXPECT_EQ(fetch(server.port(), post("/echo", large)).body, large);
  EXPECT_EQ(fetch(server.port(),
                  "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "5\r\nhello\r\n7;note=1\r\n, world\r\n0\r\nTrailer: x\r\n\r\n")
                .body,
            "hello, world");
}

TEST_F(Http, AnswersPipelinedRequestsInOrder) {
  RunningServer server(router_);
  HttpClient client(server.port());
  client.send(post("/echo", "one") + get("/ping") + post("/echo", "two") + get("/nowhere") + post("/echo", "three"));
  EXPECT_EQ(client.receive().body, "one");
  EXPECT_EQ(client.receive().body, "pong");
  EXPECT_EQ(client.receive().body, "two");
  EXPECT_EQ(client.receive().status, 404);
  EXPECT_EQ(client.receive().body, "three");
}

TEST_F(Http, WhatIsSentAheadOfAStreamsEndIsTheNextRequest) {
  RunningServer server(router_);
  HttpClient client(server.port());
  client.send(post("/hold", ""));
  Reply reply = held(0);
  reply.open_stream({.content_type = kEventStream});
  client.send(post("/echo", "ahead"));
  reply.write("data: 1\n\n");
  reply.finish();
  EXPECT_EQ(client.receive().body, "data: 1\n\n");
  EXPECT_EQ(client.receive().body, "ahead");
}

TEST_F(Http, RefusesAnOversizedBodyBeforeItIsSent) {
  ServerOptions options;
  options.limits.body_bytes = 1000;
  RunningServer server(router_, options);
  HttpClient client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nabc");
  const auto refused = client.receive();
  EXPECT_EQ(refused.status, 413);
  EXPECT_THAT(refused.body, HasSubstr("1000 B"));
  EXPECT_TRUE(client.closed_within(5s));

  std::string chunks = "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 30; ++i) chunks += "64\r\n" + std::string(100, 'y') + "\r\n";
  EXPECT_EQ(fetch(server.port(), chunks).status, 413);
  EXPECT_EQ(fetch(server.port(), post("/echo", std::string(1000, 'z'))).status, 200);
}

TEST_F(Http, RefusesWhenAllBodiesTogetherAreTooLarge) {
  ServerOptions options;
  options.limits.all_bodies_bytes = 1000;
  RunningServer server(router_, options);
  EXPECT_EQ(fetch(server.port(), post("/echo", std::string(2000, 'z'))).status, 503);
  EXPECT_EQ(fetch(server.port(), post("/echo", std::string(900, 'z'))).status, 200);
  EXPECT_EQ(fetch(server.port(), post("/echo", std::string(900, 'z'))).status, 200) << "freed after each request";
}

TEST_F(Http, RefusesOversizedHeaders) {
  RunningServer server(router_);
  std::string many = "GET /ping HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 10'000; ++i) many += "h" + std::to_string(i) + ": v\r\n";
  EXPECT_EQ(fetch(server.port(), many + "\r\n").status, 431);
  EXPECT_EQ(fetch(server.port(), get("/ping", "long: " + std::string(200'000, 'a') + "\r\n")).status, 431);
  EXPECT_EQ(fetch(server.port(), get("/" + std::string(200'000, 'a'))).status, 431);
  EXPECT_EQ(fetch(server.port(), get("/ping")).status, 200);
}

TEST_F(Http, RefusesWhatIsNotHttp) {
  RunningServer server(router_);
  EXPECT_EQ(fetch(server.port(), "\x16\x03\x01\x02garbage\r\n\r\n").status, 400);
  EXPECT_EQ(fetch(server.port(), "GET /ping HTTP/2.0\r\nHost: x\r\n\r\n").status, 505);
  EXPECT_EQ(fetch(server.port(), "GET /ping HTTP/1.1\r\n\r\n").status, 400) << "no Host";
  EXPECT_EQ(fetch(server.port(), "GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").status, 400);
  EXPECT_EQ(fetch(server.port(), "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")
                .status,
            400);
  EXPECT_EQ(fetch(server.port(),
                  "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc")
                .status,
            400);
  EXPECT_EQ(fetch(server.port(), "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n").status, 400);
  EXPECT_EQ(
      fetch(server.port(), "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n").status,
      400);
  EXPECT_EQ(fetch(server.port(), post("/echo", "abc", "Content-Encoding: gzip\r\n")).status, 415);
  EXPECT_EQ(fetch(server.port(), post("/echo", "abc", "Expect: a-miracle\r\n")).status, 417);
  EXPECT_EQ(fetch(server.port(), get("/ping")).status, 200);
}

TEST_F(Http, AsksForTheBodyOfAClientThatExpectsContinue) {
  RunningServer server(router_);
  HttpClient client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive().status, 100);
  client.send("hello");
  EXPECT_EQ(client.receive().body, "hello");
  client.send("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive().status, 404) << "refused before the body is sent";
}

TEST_F(Http, SpeaksHttp10) {
  RunningServer server(router_);
  HttpClient client(server.port());
  client.send("GET /ping HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "pong");
  EXPECT_TRUE(client.closed_within(5s));

  HttpClient stream(server.port());
  stream.send("POST /hold HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
  Reply reply = held(0);
  reply.open_stream({.content_type = kEventStream});
  reply.write("data: 1\n\n");
  reply.finish();
  EXPECT_EQ(stream.receive().body, "data: 1\n\n") << "without chunks";
}

TEST_F(Http, DropsClientsThatSendTooSlowly) {
  ServerOptions options;
  options.limits.header_time = 200ms;
  options.limits.body_time = 200ms;
  options.limits.idle_time = 300ms;
  RunningServer server(router_, options);
  HttpClient silent(server.port());
  HttpClient half_header(server.port());
  half_header.send("GET /ping HTTP/1.1\r\nHo");
  HttpClient half_body(server.port());
  half_body.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhal");
  HttpClient idle(server.port());
  idle.send(get("/ping"));
  EXPECT_EQ(idle.receive().status, 200);

  // A byte now and then does not help.
  HttpClient trickle(server.port());
  trickle.send("GET /ping HTTP/1.1\r\n");
  for (int i = 0; i < 10; ++i) {
    trickle.send("a");
    std::this_thread::sleep_for(40ms);
  }
  EXPECT_EQ(trickle.receive().status, 408);
  EXPECT_EQ(half_header.receive().status, 408);
  EXPECT_EQ(half_body.receive().status, 408);
  EXPECT_TRUE(silent.closed_within(5s));
  EXPECT_TRUE(idle.closed_within(5s));
}

TEST_F(Http, TellsClientsBeyondTheLimitOfConnections) {
  ServerOptions options;
  options.limits.connections = 2;
  RunningServer server(router_, options);
  HttpClient first(server.port());
  HttpClient second(server.port());
  first.send(get("/ping"));
  second.send(get("/ping"));
  EXPECT_EQ(first.receive().status, 200);
  EXPECT_EQ(second.receive().status, 200);
  HttpClient third(server.port());
  const auto refused = third.receive();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  first.close();
  second.close();
  third.close();
  for (int i = 0; i < 200; ++i) {
    if (fetch(server.port(), get("/ping")).status == 200) return;
    std::this_thread::sleep_for(10ms);
  }
  FAIL() << "places of clients that left are not given to others";
}

TEST_F(Http, HandlersFailuresBecomeAnswers) {
  RunningServer server(router_);
  const auto input = fetch(server.port(), post("/fail", "input"));
  EXPECT_EQ(input.status, 400);
  const auto error = base::parse_json(input.body, "answer").at("error");
  EXPECT_EQ(error.at("param"), "size");
  EXPECT_EQ(error.at("message"), "size: is 7, at most 5 are taken");
  const auto standard = fetch(server.port(), post("/fail", "standard"));
  EXPECT_EQ(standard.status, 500);
  EXPECT_THAT(standard.body, testing::Not(HasSubstr("secret")));
  EXPECT_EQ(fetch(server.port(), post("/fail", "drop")).status, 500);
}

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
