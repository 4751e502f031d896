// The request of OpenAI's /v1/responses (docs/api.md), as the engine takes it.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/request.h"
#include "serve/openai/response_tools.h"
#include "serve/output_format.h"

namespace tandem::serve {

struct ResponseRequest {
  engine::Request request;  // without a grammar
  ResponseTools tools;
  OutputFormat format;
  std::string model;  // as asked for; empty: none
  bool stream = false;
  bool summarised = false;         // the reasoning is told as a summary, not as the content of its item
  bool carries_reasoning = false;  // and as encrypted_content
  base::Json echo = nullptr;       // the members of the answer's object that repeat the request
};

// Throws base::Error{kBadInput} whose source is the field: for wrong types, for values out of range, and for fields
// that would change the answer and are not supported. Fields it does not know are ignored. Pictures are still in the
// messages (media.h).
ResponseRequest response_request(const base::Json& body);

}  // namespace tandem::serve
