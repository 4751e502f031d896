#include "text/message.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/printable.h"
#include "text/whitespace.h"

namespace tandem::text {

namespace {

using base::Json;

const Json& member(const Json& object, const char* key) {
  return base::json_member(object, key);
}

// The string at `key`; "" where it is absent or null.
std::string optional_string(const Json& object, const char* key, const std::string& path) {
  const Json& value = member(object, key);
  if (value.is_null()) return {};
  if (!value.is_string()) base::bad_input(path + "." + key, "must be a string, not {}", value.type_name());
  return value.get<std::string>();
}

std::string required_string(const Json& object, const char* key, const std::string& path) {
  const Json& value = member(object, key);
  if (!value.is_string()) {
    base::bad_input(path + "." + key, "must be a string, not {}", value.is_null() ? "absent" : value.type_name());
  }
  return value.get<std::string>();
}

Role read_role(const Json& message, const std::string& path) {
  const std::string role = required_string(message, "role", path);
  if (role == "system" || role == "developer") return Role::kSystem;
  if (role == "user") return Role::kUser;
  if (role == "assistant") return Role::kAssistant;
  if (role == "tool" || role == "function") return Role::kTool;
  base::bad_input(path + ".role", "must be system, developer, user, assistant or tool, not {}", printable(role));
}

// Where a part does not name its type, its members tell.
std::string part_type(const Json& part, const std::string& path) {
  if (!member(part, "type").is_null()) return required_string(part, "type", path);
  for (const char* type : {"text", "image", "image_url", "video", "video_url"}) {
    if (part.contains(type)) return type;
  }
  base::bad_input(path + ".type", "must be a string, not absent");
}

ContentPart read_part(const Json& part, const std::string& path) {
  if (!part.is_object()) base::bad_input(path, "must be an object, not {}", part.type_name());
  const std::string type = part_type(part, path);
  if (type == "text" || type == "input_text" || type == "output_text") {
    return {ContentPart::Kind::kText, required_string(part, "text", path)};
  }
  if (type == "refusal") return {ContentPart::Kind::kText, required_string(part, "refusal", path)};
  if (type == "image" || type == "image_url" || type == "input_image") return {ContentPart::Kind::kImage, {}};
  if (type == "video" || type == "video_url" || type == "input_video") return {ContentPart::Kind::kVideo, {}};
  base::bad_input(path + ".type", "must be text, image_url or video_url, not {}", printable(type));
}

std::vector<ContentPart> read_content(const Json& message, const std::string& path) {
  const Json& content = member(message, "content");
  std::vector<ContentPart> parts;
  if (content.is_null()) return parts;
  if (content.is_string()) {
    parts.push_back({ContentPart::Kind::kText, content.get<std::string>()});
    return parts;
  }
  if (!content.is_array()) {
    base::bad_input(path + ".content", "must be a string, null or an array of parts, not {}", content.type_name());
  }
  for (size_t i = 0; i < content.size(); ++i) {
    parts.push_back(read_part(content[i], fmt::format("{}.content[{}]", path, i)));
  }
  return parts;
}

// The arguments as an object, from the object itself or from its JSON text. An empty text is no arguments, as some
// clients write it; any other text must hold an object, because guessing would put words into the model's mouth.
Json read_arguments(const Json& function, const std::string& path) {
  const Json& value = member(function, "arguments");
  const std::string place = path + ".arguments";
  if (value.is_null()) return Json::object();
  if (value.is_object()) return value;
  if (!value.is_string()) base::bad_input(place, "must be a JSON object or its text, not {}", value.type_name());
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  Json parsed = base::parse_json(text, place);
  if (!parsed.is_object()) base::bad_input(place, "must hold a JSON object, not {}", parsed.type_name());
  return parsed;
}

ToolCall read_tool_call(const Json& call, const std::string& path) {
  if (!call.is_object()) base::bad_input(path, "must be an object, not {}", call.type_name());
  const Json& nested = member(call, "function");
  if (!nested.is_null() && !nested.is_object()) {
    base::bad_input(path + ".function", "must be an object, not {}", nested.type_name());
  }
  const Json& function = nested.is_null() ? call : nested;
  const std::string place = nested.is_null() ? path : path + ".function";
  ToolCall out;
  out.id = optional_string(call, "id", path);
  out.name = required_string(function, "name", place);
  out.arguments = read_arguments(function, place);
  return out;
}

std::vector<ToolCall> read_tool_calls(const Json& message, const std::string& path) {
  std::vector<ToolCall> calls;
  const Json& list = member(message, "tool_calls");
  if (!list.is_null() && !list.is_array()) {
    base::bad_input(path + ".tool_calls", "must be an array, not {}", list.type_name());
  }
  for (size_t i = 0; i < list.size(); ++i) {
    calls.push_back(read_tool_call(list[i], fmt::format("{}.tool_calls[{}]", path, i)));
  }
  if (const Json& single = member(message, "function_call"); calls.empty() && !single.is_null()) {
    calls.push_back(read_tool_call(single, path + ".function_call"));  // the form before tool_calls
  }
  return calls;
}

// Servers name the field differently; anything but a string is ignored, as the template does.
std::string read_reasoning(const Json& message) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const Json& value = member(message, key);
    if (value.is_string()) return value.get<std::string>();
  }
  return {};
}

Message read_message(const Json& json, const std::string& path) {
  if (!json.is_object()) base::bad_input(path, "must be an object, not {}", json.type_name());
  Message message;
  message.role = read_role(json, path);
  message.content = read_content(json, path);
  if (message.role == Role::kAssistant) {
    message.reasoning = read_reasoning(json);
    message.tool_calls = read_tool_calls(json, path);
  }
  if (message.role == Role::kTool) message.tool_call_id = optional_string(json, "tool_call_id", path);
  return message;
}

}  // namespace

std::string content_text(const Message& message) {
  std::string text;
  for (const ContentPart& part : message.content) text += part.text;
  return text;
}

std::vector<Message> read_messages(const Json& messages) {
  if (!messages.is_array()) {
    base::bad_input("messages", "must be an array, not {}", messages.is_null() ? "absent" : messages.type_name());
  }
  std::vector<Message> out;
  out.reserve(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) out.push_back(read_message(messages[i], fmt::format("messages[{}]", i)));
  return out;
}

namespace {

bool says_nothing(const Message& message) {
  return std::all_of(message.content.begin(), message.content.end(), [](const ContentPart& part) {
    return part.kind == ContentPart::Kind::kText && strip(part.text).empty();
  });
}

}  // namespace

std::vector<Message> merge_system_messages(std::vector<Message> messages) {
  const auto is_system = [](const Message& message) { return message.role == Role::kSystem; };
  Message merged;
  merged.role = Role::kSystem;
  for (Message& message : messages) {
    if (!is_system(message) || says_nothing(message)) continue;
    if (!merged.content.empty()) merged.content.push_back({ContentPart::Kind::kText, "\n\n"});
    merged.content.insert(merged.content.end(), std::make_move_iterator(message.content.begin()),
                          std::make_move_iterator(message.content.end()));
  }
  std::erase_if(messages, is_system);
  if (!merged.content.empty()) messages.insert(messages.begin(), std::move(merged));
  return messages;
}

void sort_tool_results(std::vector<Message>& messages) {
  for (size_t i = 0; i + 1 < messages.size(); ++i) {
    if (messages[i].role != Role::kAssistant || messages[i + 1].role != Role::kTool) continue;
    std::unordered_map<std::string_view, size_t> order;
    for (const ToolCall& call : messages[i].tool_calls) {
      if (!call.id.empty()) order.emplace(call.id, order.size());
    }
    const auto place = [&](const Message& result) {
      const auto found = order.find(result.tool_call_id);
      return found == order.end() ? order.size() : found->second;
    };
    const auto begin = messages.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto end =
        std::find_if(begin, messages.end(), [](const Message& message) { return message.role != Role::kTool; });
    std::stable_sort(begin, end, [&](const Message& a, const Message& b) { return place(a) < place(b); });
  }
}

std::vector<Message> messages_from_json(const Json& messages) {
  std::vector<Message> out = read_messages(messages);
  sort_tool_results(out);
  return merge_system_messages(std::move(out));
}

}  // namespace tandem::text
