// What goes wrong with a request, and how it is told to the client.
#pragma once

#include <string>

#include "base/error.h"
#include "base/json.h"
#include "serve/http/http.h"

namespace tandem::serve {

struct ApiError {
  int status = 500;
  std::string type = "server_error";  // OpenAI's words: invalid_request_error, authentication_error, server_error …
  std::string message = {};           // one line for people
  std::string param = {};             // the request's field at fault; empty: none
  std::string code = {};              // a word for programs; empty: none
  Headers headers = {};               // Allow, Retry-After, WWW-Authenticate
  base::Json details = nullptr;       // more members of OpenAI's error object
  std::string request_id = {};        // for forms that tell it in the body
};

// The error's kind decides the status: bad input 400 (its source is the field), unavailable 503 and overloaded 429 with
// Retry-After, cancelled 503, internal 500 (whose message names no more than the fault itself).
ApiError api_error(const base::Error& error);
// An error of the transport or the routing; the type follows from the status.
ApiError http_error(int status, std::string message, std::string code = "");

// OpenAI's body: {"error": {"message", "type", "param", "code"}}.
base::Json openai_error_json(const ApiError& error);
HttpResponse openai_error(const ApiError& error);

// Strings in answers are UTF-8 already; a byte that is not becomes U+FFFD, so that no answer fails on its way out.
std::string dump(const base::Json& value);

}  // namespace tandem::serve
