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
  std::vector<ContentPart> content{};
  std::string reasoning{};             // assistant: what it thought before the content
  std::vector<ToolCall> tool_calls{};  // assistant
  std::string tool_call_id{};          // tool: the call this answers; not shown to the model
};

// The text of all text parts, joined.
std::string content_text(const Message& message);

// The `messages` of an OpenAI chat request as a conversation that the template accepts: read_messages,
// sort_tool_results, merge_system_messages.
std::vector<Message> messages_from_json(const base::Json& messages);

// The messages in their order, none merged (docs/text.md, "Messages"). Throws base::Error{kBadInput} that names the
// place, such as messages[3].content[1].type, for unknown roles and part types and for values of a wrong type.
std::vector<Message> read_messages(const base::Json& messages);

// Puts what all system messages say, in order and parted by blank lines, into one system message in front: the template
// takes no other, and clients send several, or one in the middle.
std::vector<Message> merge_system_messages(std::vector<Message> messages);

// Puts the results after each message with tool calls into the order of the calls: the model is not shown the ids.
void sort_tool_results(std::vector<Message>& messages);

enum class ReasoningEffort { kLow, kMedium, kHigh };  // kHigh is the template's "xhigh", its default

struct TemplateOptions {
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kHigh;
  bool preserve_thinking = true;  // keep the reasoning of earlier assistant turns
  bool add_generation_prompt = true;
  // The conversation ends with words of the assistant that the answer goes on from: its last turn stays open, and there
  // is no generation prompt. Where that message holds reasoning and no content, the reasoning goes on.
  bool continue_last_message = false;
};

}  // namespace tandem::text
