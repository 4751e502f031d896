#include "serve/http/auth.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <unistd.h>

#include "http_client.h"
#include "test_server.h"

namespace tandem::serve {
namespace {

using test::fetch;
using test::get;
using test::RunningServer;

Router guarded(ApiKeys keys, std::vector<std::string> hosts = {}) {
  Router router;
  const Handler answer = [](HttpRequest, Reply reply) { reply.send({.body = "{}"}); };
  router.add({.method = "GET", .path = "/health", .handler = answer, .open = true, .quick = true});
  router.add({.method = "GET", .path = "/v1/models", .handler = answer});
  AccessGuard guard(std::move(keys), std::move(hosts));
  router.set_guard([guard](const HttpRequest& head, bool open) { return guard.check(head, open); });
  return router;
}

ApiKeys one_key() {
  ApiKeys keys;
  keys.add("correct-horse", "test");
  return keys;
}

TEST(ApiKeys, AreNeededForEverythingButHealth) {
  const Router router = guarded(one_key());
  RunningServer server(router);
  EXPECT_EQ(fetch(server.port(), get("/health")).status, 200);
  const auto refused = fetch(server.port(), get("/v1/models"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(base::parse_json(refused.body, "answer").at("error").at("type"), "authentication_error");
  EXPECT_EQ(fetch(server.port(), get("/nowhere")).status, 401) << "paths are not told to strangers";
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "Authorization: Bearer correct-horse\r\n")).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "authorization: bearer   correct-horse\r\n")).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "X-Api-Key: correct-horse\r\n")).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "Authorization: Bearer correct-hors\r\n")).status, 401);
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "Authorization: Bearer\r\n")).status, 401);
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "Authorization: Basic correct-horse\r\n")).status, 401);
  EXPECT_EQ(fetch(server.port(), get("/v1/models", "X-Api-Key:\r\n")).status, 401);
}

TEST(ApiKeys, ComeFromAFileWithOneALine) {
  const auto path = std::filesystem::temp_directory_path() / ("tandem_keys_" + std::to_string(getpid()));
  std::ofstream(path) << "  first\r\n\nsecond\n";
  ApiKeys keys;
  keys.add_file(path);
  EXPECT_TRUE(keys.accept("first"));
  EXPECT_TRUE(keys.accept("second"));
  EXPECT_FALSE(keys.accept("first\r"));
  EXPECT_FALSE(keys.accept(""));
  std::ofstream(path) << " \n\n";
  EXPECT_THROW(keys.add_file(path), base::Error);
  std::ofstream(path) << "two words\n";
  EXPECT_THROW(keys.add_file(path), base::Error);
  std::filesystem::remove(path);
  EXPECT_THROW(keys.add_file(path), base::Error);
}

TEST(ListeningBeyondThisMachine, NeedsAKey) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_NO_THROW(require_key_beyond_loopback(host, {})) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "192.168.1.5", "example.org", ""}) {
    EXPECT_THROW(require_key_beyond_loopback(host, {}), base::Error) << host;
    EXPECT_NO_THROW(require_key_beyond_loopback(host, one_key())) << host;
  }
}

TEST(HostCheck, KeepsOutNamesThatOthersPointedAtThisAddress) {
  const Router router = guarded({}, {"gpu-box.lan"});
  RunningServer server(router);
  const auto status = [&](const std::string& host) {
    return fetch(server.port(), "GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  for (const char* host :
       {"localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "10.0.0.7", "gpu-box.lan:80"}) {
    EXPECT_EQ(status(host), 200) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", "", "[::1"}) {
    EXPECT_EQ(status(host), 421) << host;
  }
}

TEST(HostCheck, IsLeftToTheKeyWhereThereIsOne) {
  const Router router = guarded(one_key());
  RunningServer server(router);
  EXPECT_EQ(
      fetch(server.port(), "GET /v1/models HTTP/1.1\r\nHost: proxy.example\r\nx-api-key: correct-horse\r\n\r\n").status,
      200);
}

TEST(OriginCheck, RefusesPagesOfOtherOrigins) {
  const Router router = guarded({});
  RunningServer server(router);
  const auto answer = [&](const std::string& origin) {
    return fetch(server.port(), "GET /v1/models HTTP/1.1\r\nHost: localhost:8080\r\nOrigin: " + origin + "\r\n\r\n");
  };
  EXPECT_EQ(answer("http://localhost:8080").status, 200);
  EXPECT_EQ(answer("http://localhost:3000").status, 403);
  EXPECT_EQ(answer("https://evil.example").status, 403);
  EXPECT_EQ(answer("null").status, 403);
  EXPECT_EQ(answer("http://localhost:8080").headers.count("access-control-allow-origin"), 0u);
}

}  // namespace
}  // namespace tandem::serve
