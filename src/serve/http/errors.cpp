#include "serve/http/errors.h"

#include <utility>

namespace tandem::serve {

namespace {

std::string type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

base::Json null_or(const std::string& text) {
  return text.empty() ? base::Json(nullptr) : base::Json(text);
}

}  // namespace

ApiError http_error(int status, std::string message, std::string code) {
  return {.status = status, .type = type_of(status), .message = std::move(message), .code = std::move(code)};
}

ApiError api_error(const base::Error& error) {
  switch (error.kind()) {
    case base::ErrorKind::kBadInput: {
      ApiError out = http_error(400, error.what(), "invalid_value");
      // A field's path; other sources ("request body") are words for people.
      if (error.source().find(' ') == std::string::npos) out.param = error.source();
      return out;
    }
    case base::ErrorKind::kUnavailable: {
      ApiError out = http_error(503, error.what(), "unavailable");
      out.headers.add("retry-after", "1");
      return out;
    }
    case base::ErrorKind::kOverloaded: {
      ApiError out = http_error(429, error.what(), "queue_full");
      out.headers.add("retry-after", "1");
      return out;
    }
    case base::ErrorKind::kCancelled:
      return http_error(503, error.what(), "cancelled");
    case base::ErrorKind::kInternal:
      break;
  }
  return http_error(500, error.what(), "internal_error");
}

base::Json openai_error_json(const ApiError& error) {
  base::Json out = {
      {"message", error.message}, {"type", error.type}, {"param", null_or(error.param)}, {"code", null_or(error.code)}};
  if (error.details.is_object()) out.update(error.details);
  return {{"error", std::move(out)}};
}

HttpResponse openai_error(const ApiError& error) {
  return {.status = error.status,
          .content_type = "application/json",
          .headers = error.headers,
          .body = dump(openai_error_json(error))};
}

std::string dump(const base::Json& value) {
  return value.dump(-1, ' ', false, base::Json::error_handler_t::replace);
}

}  // namespace tandem::serve
