// The system prompt and the messages of an Anthropic request as a conversation that the chat template takes
// (docs/api.md, "Anthropic messages").
#pragma once

#include <vector>

#include "base/json.h"
#include "serve/anthropic/tool_set.h"
#include "text/message.h"

namespace tandem::serve {

// `system` and `messages` of the body; tools that the messages name are added to `tools`. A text is rendered alike
// whether it is written as a string or as blocks, and wherever cache_control stands. Pictures are still in the messages
// (media.h). Throws base::Error{kBadInput} whose source is the place, such as messages[3].content[1].text.
std::vector<text::Message> read_conversation(const base::Json& body, ToolSet& tools);

}  // namespace tandem::serve
