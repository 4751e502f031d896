// What is served at / and below /web; tests/web shows what the page does in a browser.
#include "serve/web_page.h"

#include <gmock/gmock.h>
#include <string>

#include "http_client.h"
#include "serve/embedded_files.h"
#include "serve/http/auth.h"
#include "test_server.h"

namespace tandem::serve {
namespace {

using test::fetch;
using test::get;
using test::HttpClient;
using test::RunningServer;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kBrowser = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

Router page_router(bool web_page) {
  Router router;
  add_web_page_routes(router, web_page);
  return router;
}

TEST(WebPageRoutes, GiveThePageToBrowsersAndTheNameToOthers) {
  const Router router = page_router(true);
  RunningServer server(router);
  const auto page = fetch(server.port(), get("/", kBrowser));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.headers.at("vary"), "accept");
  EXPECT_THAT(page.body, StartsWith("<!doctype html>"));
  for (const char* accept : {"", "Accept: */*\r\n", "Accept: application/json\r\n"}) {
    const auto line = fetch(server.port(), get("/", accept));
    EXPECT_EQ(line.status, 200);
    EXPECT_EQ(line.headers.at("content-type"), "text/plain");
    EXPECT_THAT(line.body, StartsWith("tandem "));
  }
  HttpClient client(server.port());
  client.send(get("/", "", "HEAD"));
  const auto head = client.receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST(WebPageRoutes, ServeEveryPartThatThePageNamesUnderAStrictPolicy) {
  const Router router = page_router(true);
  RunningServer server(router);
  const std::string page = fetch(server.port(), get("/", kBrowser)).body;
  for (const EmbeddedFile& file : embedded_files()) {
    if (!file.name.starts_with("web/")) continue;
    const bool is_page = file.name == "web/index.html";
    const auto part = fetch(server.port(), get(is_page ? "/" : "/" + std::string(file.name), kBrowser));
    EXPECT_EQ(part.status, 200) << file.name;
    EXPECT_EQ(part.body, file.text) << file.name;
    EXPECT_EQ(part.headers.at("cache-control"), "no-cache");
    EXPECT_EQ(part.headers.at("x-content-type-options"), "nosniff");
    const std::string policy = part.headers.at("content-security-policy");
    EXPECT_THAT(policy, StartsWith("default-src 'none'; script-src 'self'; style-src 'self';"));
    EXPECT_THAT(policy, testing::Not(HasSubstr("unsafe")));
  }
  for (const char* part : {"/web/main.js", "/web/style.css", "/web/icon.svg"}) EXPECT_THAT(page, HasSubstr(part));
  EXPECT_EQ(fetch(server.port(), get("/web/main.js")).headers.at("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(fetch(server.port(), get("/web/style.css")).headers.at("content-type"), "text/css; charset=utf-8");
  EXPECT_EQ(fetch(server.port(), get("/web/icon.svg")).headers.at("content-type"), "image/svg+xml");
  for (const char* absent : {"/web", "/web/", "/web/index.html", "/web/../main.js", "/index.html"}) {
    EXPECT_EQ(fetch(server.port(), get(absent)).status, 404) << absent;
  }
}

TEST(WebPageRoutes, NeedNoKeyAndRefusePagesOfOtherOrigins) {
  Router router = page_router(true);
  ApiKeys keys;
  keys.add("correct-horse", "test");
  const AccessGuard guard(std::move(keys), {});
  router.set_guard([&guard](const HttpRequest& head, bool open) { return guard.check(head, open); });
  RunningServer server(router);
  EXPECT_EQ(fetch(server.port(), get("/", kBrowser)).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/web/main.js")).status, 200);
  EXPECT_EQ(fetch(server.port(), get("/web/main.js", "Origin: http://example.org\r\n")).status, 403);
}

TEST(WebPageRoutes, AreNotThereWhereThePageIsSwitchedOff) {
  const Router router = page_router(false);
  RunningServer server(router);
  EXPECT_EQ(fetch(server.port(), get("/", kBrowser)).headers.at("content-type"), "text/plain");
  EXPECT_EQ(fetch(server.port(), get("/web/main.js")).status, 404);
}

}  // namespace
}  // namespace tandem::serve
