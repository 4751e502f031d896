// The request of OpenAI's /v1/chat/completions (docs/api.md), as the engine takes it.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/request.h"

namespace tandem::serve {

struct ChatRequest {
  engine::Request request;
  std::string model;  // as asked for; empty: none
  bool stream = false;
  bool include_usage = false;       // a last chunk with the usage
  bool tool_calls = false;          // the answer may call tools
  bool parallel_tool_calls = true;  // false: only the first call is passed on
};

// What stands in the conversation for each picture or film, which the model can't see.
inline constexpr const char* kOmittedMedia = "[image omitted: this model reads text only]";

// Throws base::Error{kBadInput} whose source is the field: for wrong types, for values out of range, and for fields
// that would change the answer and are not supported. Fields it does not know are ignored.
ChatRequest chat_request(const base::Json& body);

}  // namespace tandem::serve
