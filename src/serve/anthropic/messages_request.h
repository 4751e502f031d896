// The request of Anthropic's /v1/messages and /v1/messages/count_tokens (docs/api.md), as the engine takes it.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/request.h"
#include "serve/output_format.h"
#include "serve/tools.h"

namespace tandem::serve {

struct MessagesRequest {
  engine::Request request;  // without a grammar; its tools are those that stand in front of the conversation
  ToolRequest tools;        // those that may be called
  OutputFormat format;
  std::string model;  // as asked for; empty: none
  bool stream = false;
};

// Throws base::Error{kBadInput} whose source is the field: for wrong types, for values out of range, and for what can't
// be honoured. Fields it does not know are ignored. Pictures are still in the messages (media.h).
MessagesRequest messages_request(const base::Json& body);

}  // namespace tandem::serve
