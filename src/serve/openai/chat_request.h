// The request of OpenAI's /v1/chat/completions (docs/api.md), as the engine takes it.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/request.h"
#include "serve/output_format.h"
#include "serve/tools.h"

namespace tandem::serve {

struct ChatRequest {
  engine::Request request;  // without a grammar
  ToolRequest tools;
  OutputFormat format;
  std::string model;  // as asked for; empty: none
  int choices = 1;
  bool stream = false;
  bool include_usage = false;    // a last chunk with the usage
  bool return_progress = false;  // chunks that tell how far the prompt has been read
};

// Throws base::Error{kBadInput} whose source is the field: for wrong types, for values out of range, and for fields
// that would change the answer and are not supported. Fields it does not know are ignored. Pictures are still in the
// messages (media.h).
ChatRequest chat_request(const base::Json& body);

}  // namespace tandem::serve
