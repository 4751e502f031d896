// A conversation as the chat template sees it.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::text {

enum class Role { kSystem, kUser, kAssistant, kTool };

// One piece of a message: text, or a picture or film that the vision part turns into embeddings.
struct ContentPart {
  enum class Kind { kText, kImage, kVideo };
  Kind kind = Kind::kText;
  std::string text;  // UTF-8; empty for media
};

struct ToolCall {
  std::string id;  // as the server names it; not shown to the model
  std::string name;
  base::Json arguments = base::Json::object();  // an object; keys in the order given
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  std::string reasoning;             // assistant: what it thought before the content
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool: the call this answers; not shown to the model
};

// The text of all text parts, joined.
std::string content_text(const Message& message);

enum class ReasoningEffort { kLow, kMedium, kHigh };  // kHigh is the template's "xhigh", its default

struct TemplateOptions {
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kHigh;
  bool preserve_thinking = true;  // keep the reasoning of earlier assistant turns
  bool add_generation_prompt = true;
};

}  // namespace tandem::text
