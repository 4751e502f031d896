#include "serve/web_page.h"

#include <string>
#include <utility>

#include "base/version.h"
#include "serve/embedded_files.h"

namespace tandem::serve {

namespace {

// The page runs its own scripts and styles and speaks to this server alone: what a model writes can load nothing and
// send nothing elsewhere, even if it got past the page's renderer.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

constexpr std::string_view kFolder = "web/";
constexpr std::string_view kPage = "web/index.html";

std::string content_type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

HttpResponse file_response(const EmbeddedFile& file) {
  HttpResponse response{.content_type = content_type_of(file.name), .body = std::string(file.text)};
  // Asked for anew each time: a page of one version must not run the scripts of another.
  response.headers.add("cache-control", "no-cache");
  response.headers.add("content-security-policy", kContentSecurityPolicy);
  response.headers.add("referrer-policy", "no-referrer");
  return response;
}

bool accepts_html(const HttpRequest& request) {
  const auto accept = request.headers.find("accept");
  return accept && accept->find("text/html") != std::string_view::npos;
}

HttpResponse name_and_version() {
  return {.content_type = "text/plain", .body = "tandem " + base::build_description() + "\n"};
}

}  // namespace

void add_web_page_routes(Router& router, bool web_page) {
  if (!web_page) {
    router.add({.method = "GET",
                .path = "/",
                .handler = [](HttpRequest, Reply reply) { reply.send(name_and_version()); },
                .quick = true});
    return;
  }
  for (const EmbeddedFile& file : embedded_files()) {
    if (!file.name.starts_with(kFolder)) continue;
    const bool page = file.name == kPage;
    auto handler = [&file, page](const HttpRequest& request, Reply reply) {
      HttpResponse response = !page || accepts_html(request) ? file_response(file) : name_and_version();
      if (page) response.headers.add("vary", "accept");
      reply.send(std::move(response));
    };
    router.add({.method = "GET",
                .path = page ? "/" : "/" + std::string(file.name),
                .handler = std::move(handler),
                .open = true,
                .quick = true});
  }
}

}  // namespace tandem::serve
