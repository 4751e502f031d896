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

}  // namespace
}  // namespace tandem::serve
