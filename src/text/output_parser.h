// Splits what the model writes into reasoning, content and tool calls while it streams, at any split of the bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/message.h"

namespace tandem::text {

// One step of the answer. Tool calls are announced when their name is complete and finished when they close, so that a
// server can stream them; `arguments` holds the next characters of the arguments' JSON text.
struct OutputEvent {
  enum class Kind { kReasoning, kContent, kToolCallBegin, kToolCallArguments, kToolCallEnd };
  Kind kind = Kind::kContent;
  std::string text;    // reasoning, content: the characters; begin: the function's name; arguments: JSON text
  int tool_call = -1;  // index of the call, from 0, for the three tool call kinds
};

// Not thread-safe; one parser an answer.
class OutputParser {
 public:
  // `tools` types the arguments: a parameter's text becomes what its JSON schema says (string, number, boolean, array,
  // object, null), and a string where it says nothing or does not fit. `starts_in_reasoning` where the prompt ended
  // with an open think block.
  OutputParser(base::Json tools, bool starts_in_reasoning);

  // `text` is any number of bytes of the answer, also a part of a tag.
  std::vector<OutputEvent> push(std::string_view text);
  // The end of the answer: what was held back as a possible tag comes out as text, an open call is closed.
  std::vector<OutputEvent> finish();

  bool in_reasoning() const;
  // The complete calls so far (ids are empty: the server names them).
  const std::vector<ToolCall>& tool_calls() const;
};

}  // namespace tandem::text
