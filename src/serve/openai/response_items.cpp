#include "serve/openai/response_items.h"

#include <fmt/format.h>
#include <utility>

#include "base/base64.h"
#include "base/error.h"
#include "serve/fields.h"
#include "serve/openai/response_tools.h"
#include "text/printable.h"
#include "text/utf8.h"

namespace tandem::serve {

using base::Json;
using text::ContentPart;
using text::Message;
using text::Role;

namespace {

constexpr std::string_view kCarriedPrefix = "tandem1:";

std::string required_text(const Json& object, const char* key, const std::string& path) {
  auto value = string_field(object, key, path + ".");
  if (!value) base::bad_input(path + "." + key, "is missing");
  return std::move(*value);
}

ContentPart read_input_part(const Json& part, const std::string& path) {
  if (!part.is_object()) base::bad_input(path, "must be an object, not {}", part.type_name());
  const std::string type = required_text(part, "type", path);
  const auto text_part = [](std::string text) {
    return ContentPart{.kind = ContentPart::Kind::kText, .text = std::move(text)};
  };
  for (const char* known : {"input_text", "output_text", "text", "summary_text", "reasoning_text"}) {
    if (type == known) return text_part(required_text(part, "text", path));
  }
  if (type == "refusal") return text_part(required_text(part, "refusal", path));
  // Codex marks so what the model itself wrote, in the clear, to another agent.
  if (type == "encrypted_content") return text_part(required_text(part, "encrypted_content", path));
  if (type == "input_image" || type == "computer_screenshot") return {.kind = ContentPart::Kind::kImage, .text = {}};
  if (type == "input_video") return {.kind = ContentPart::Kind::kVideo, .text = {}};
  if (type == "input_file") {
    const auto name = string_field(part, "filename", path + ".");
    return text_part(
        fmt::format("[file omitted{}{}: this model reads text only]", name ? ": " : "", name.value_or("")));
  }
  base::bad_input(path + ".type", "must be input_text, output_text, input_image, input_file or refusal, not {}",
                  text::printable(type));
}

std::vector<ContentPart> read_parts(const Json& content, const std::string& path) {
  std::vector<ContentPart> parts;
  if (content.is_null()) return parts;
  if (content.is_string()) {
    parts.push_back({.kind = ContentPart::Kind::kText, .text = content.get<std::string>()});
    return parts;
  }
  if (!content.is_array()) base::bad_input(path, "must be a string or an array of parts, not {}", content.type_name());
  for (size_t i = 0; i < content.size(); ++i)
    parts.push_back(read_input_part(content[i], fmt::format("{}[{}]", path, i)));
  return parts;
}

std::string parts_text(const Json& list, const std::string& path) {
  return text::content_text({.content = read_parts(list, path)});
}

// The object, or what its JSON text holds. An empty text is no arguments; any other must hold an object, because
// guessing would put words into the model's mouth.
Json call_arguments(const Json& item, const std::string& path) {
  const Json& value = base::json_member(item, "arguments");
  if (value.is_null()) return Json::object();
  if (value.is_object()) return value;
  const std::string text = required_text(item, "arguments", path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  Json parsed = base::parse_json(text, path + ".arguments");
  if (!parsed.is_object()) base::bad_input(path + ".arguments", "must hold a JSON object, not {}", parsed.type_name());
  return parsed;
}

// Joins items to messages: an assistant's reasoning, words and calls, which come as items of their own, are one message
// until somebody else speaks.
class Conversation {
 public:
  void add(Message message) {
    assistant_open_ = false;
    reasoning_.clear();
    messages_.push_back(std::move(message));
  }

  void add_item(const Json& item, const std::string& path) {
    if (!item.is_object()) base::bad_input(path, "must be an object, not {}", item.type_name());
    const auto type = string_field(item, "type", path + ".");
    if (!type || *type == "message") return add_message(item, path);
    if (*type == "reasoning") return add_reasoning(item, path);
    if (*type == "agent_message") {
      return add({.role = Role::kUser, .content = read_parts(base::json_member(item, "content"), path + ".content")});
    }
    if (*type == "item_reference") {
      base::bad_input(path, "refers to a stored item, but nothing is stored here: send the item itself (store: false)");
    }
    if (type->ends_with("_output")) return add_output(*type, item, path);
    add_call(*type, item, path);
  }

  std::vector<Message> take() {
    text::sort_tool_results(messages_);
    return text::merge_system_messages(std::move(messages_));
  }

 private:
  void add_message(const Json& item, const std::string& path) {
    const std::string role = required_text(item, "role", path);
    std::vector<ContentPart> content = read_parts(base::json_member(item, "content"), path + ".content");
    if (role == "assistant") {
      Message& message = assistant();
      if (!message.content.empty()) message.content.push_back({.kind = ContentPart::Kind::kText, .text = "\n\n"});
      message.content.insert(message.content.end(), std::make_move_iterator(content.begin()),
                             std::make_move_iterator(content.end()));
    } else if (role == "user") {
      add({.role = Role::kUser, .content = std::move(content)});
    } else if (role == "system" || role == "developer") {
      add({.role = Role::kSystem, .content = std::move(content)});
    } else {
      base::bad_input(path + ".role", "must be system, developer, user or assistant, not {}", text::printable(role));
    }
  }

  // The text stands in up to three places; all say the same, or nothing.
  void add_reasoning(const Json& item, const std::string& path) {
    std::optional<std::string> text;
    if (const auto carried = string_field(item, "encrypted_content", path + "."))
      text = reasoning_from_carried(*carried);
    if (!text) text = parts_text(base::json_member(item, "content"), path + ".content");
    if (text->empty()) text = parts_text(base::json_member(item, "summary"), path + ".summary");
    assistant_open_ = false;
    if (!reasoning_.empty() && !text->empty()) reasoning_ += "\n\n";
    reasoning_ += *text;
  }

  void add_call(const std::string& type, const Json& item, const std::string& path) {
    text::ToolCall call;
    if (type == "function_call") {
      call.name =
          shown_tool_name(string_field(item, "namespace", path + ".").value_or(""), required_text(item, "name", path));
      call.arguments = call_arguments(item, path);
    } else if (type == "custom_tool_call") {
      call.name =
          shown_tool_name(string_field(item, "namespace", path + ".").value_or(""), required_text(item, "name", path));
      call.arguments = {{kCustomInput, required_text(item, "input", path)}};
    } else if (type == "local_shell_call") {
      call.name = "local_shell";
      const Json& action = object_field(item, "action", path + ".");
      if (!action.is_null()) call.arguments = action;
    } else {
      return;  // what another server did by itself, or what is not known
    }
    call.id = string_field(item, "call_id", path + ".").value_or("");
    assistant().tool_calls.push_back(std::move(call));
  }

  void add_output(const std::string& type, const Json& item, const std::string& path) {
    static constexpr const char* kKnown[] = {"function_call_output", "custom_tool_call_output",
                                             "local_shell_call_output"};
    for (const char* known : kKnown) {
      if (type != known) continue;
      add({.role = Role::kTool,
           .content = read_parts(base::json_member(item, "output"), path + ".output"),
           .tool_call_id = string_field(item, "call_id", path + ".").value_or("")});
    }
  }

  // The assistant's message that is being put together.
  Message& assistant() {
    if (!assistant_open_) messages_.push_back({.role = Role::kAssistant, .reasoning = std::exchange(reasoning_, {})});
    assistant_open_ = true;
    return messages_.back();
  }

  std::vector<Message> messages_;
  std::string reasoning_;        // of the assistant's next message
  bool assistant_open_ = false;  // the last message is the assistant's and may grow
};

}  // namespace

std::vector<Message> response_conversation(const Json& body) {
  Conversation out;
  const auto says = [](Role role, std::string text) {
    return Message{.role = role, .content = {{.kind = ContentPart::Kind::kText, .text = std::move(text)}}};
  };
  const auto instructions = string_field(body, "instructions");
  if (instructions && !instructions->empty()) out.add(says(Role::kSystem, *instructions));
  const Json& input = base::json_member(body, "input");
  if (input.is_string()) {
    out.add(says(Role::kUser, input.get<std::string>()));
  } else if (input.is_array()) {
    for (size_t i = 0; i < input.size(); ++i) out.add_item(input[i], fmt::format("input[{}]", i));
  } else {
    base::bad_input("input", "must be a string or an array of items, not {}",
                    input.is_null() ? "absent" : input.type_name());
  }
  std::vector<Message> messages = out.take();
  if (messages.empty()) base::bad_input("input", "the conversation is empty");
  return messages;
}

std::string carried_reasoning(std::string_view reasoning) {
  return std::string(kCarriedPrefix) + base::base64_encode(reasoning);
}

std::optional<std::string> reasoning_from_carried(std::string_view carried) {
  if (!carried.starts_with(kCarriedPrefix)) return std::nullopt;
  const auto text = base::base64_decode(carried.substr(kCarriedPrefix.size()));
  if (!text) return std::nullopt;
  return text::utf8_repaired(*text);
}

}  // namespace tandem::serve
