#include "serve/anthropic/error_form.h"

namespace tandem::serve {

using base::Json;

namespace {

constexpr int kOverloaded = 529;

int anthropic_status(const ApiError& error) {
  return error.code == "queue_full" ? kOverloaded : error.status;
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case kOverloaded:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

Json anthropic_error_json(const ApiError& error) {
  Json out = {{"type", "error"},
              {"error", {{"type", anthropic_type(anthropic_status(error))}, {"message", error.message}}}};
  if (!error.details.is_null()) out["error"]["details"] = error.details;
  if (!error.request_id.empty()) out["request_id"] = error.request_id;
  return out;
}

HttpResponse anthropic_error(const ApiError& error) {
  return {.status = anthropic_status(error), .headers = error.headers, .body = dump(anthropic_error_json(error))};
}

}  // namespace tandem::serve
