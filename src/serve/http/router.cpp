#include "serve/http/router.h"

#include <fmt/format.h>
#include <string_view>

namespace tandem::serve {

namespace {

// What is shown of a path in a message.
constexpr size_t kShownPath = 100;

std::optional<std::string> match_path(const std::string& pattern, std::string_view path) {
  const size_t brace = pattern.find('{');
  if (brace == std::string::npos) return path == pattern ? std::optional<std::string>("") : std::nullopt;
  const std::string_view prefix = std::string_view(pattern).substr(0, brace);
  if (!path.starts_with(prefix) || path.size() == prefix.size()) return std::nullopt;
  return percent_decode(path.substr(prefix.size()));
}

}  // namespace

Router::Match Router::match(const HttpRequest& head) const {
  Match out;
  const std::string& method = head.method == "HEAD" ? "GET" : head.method;
  std::string allowed;
  for (const Route& route : routes_) {
    auto parameter = match_path(route.path, head.path);
    if (!parameter) continue;
    out.errors = route.errors;
    if (route.method == method) {
      out.route = &route;
      out.parameter = std::move(*parameter);
      break;
    }
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  if (guard_) out.refusal = guard_(head, out.route != nullptr && out.route->open);
  if (out.refusal || out.route) return out;
  const std::string shown = head.path.substr(0, kShownPath);
  if (allowed.empty()) {
    out.refusal = http_error(404, fmt::format("there is nothing at {}", shown), "unknown_url");
  } else {
    out.refusal = http_error(405, fmt::format("{} answers {}, not {}", shown, allowed, head.method.substr(0, 20)),
                             "method_not_allowed");
    out.refusal->headers.add("allow", allowed);
  }
  return out;
}

}  // namespace tandem::serve
