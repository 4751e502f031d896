#include "serve/anthropic/conversation.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "serve/fields.h"
#include "text/printable.h"
#include "text/whitespace.h"

namespace tandem::serve {

using base::Json;
using text::ContentPart;
using text::Message;
using text::Role;

namespace {

// Claude Code's first block of the system prompt. It differs between sessions, and with it the whole prompt would.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";
constexpr const char* kOmittedDocument = "[document omitted: this server reads documents of plain text only]";
constexpr const char* kErrorPrefix = "[error] ";

bool is_blank(const Message& message) {
  return std::all_of(message.content.begin(), message.content.end(), [](const ContentPart& part) {
    return part.kind == ContentPart::Kind::kText && text::strip(part.text).empty();
  });
}

std::string required_text(const Json& block, const char* key, const std::string& path) {
  auto value = string_field(block, key, path + ".");
  if (!value) base::bad_input(path + "." + key, "is missing");
  return std::move(*value);
}

// The parts of one message. Blocks stand on lines of their own.
class Parts {
 public:
  void add_text(std::string text) {
    if (text.empty()) return;
    end_line();
    parts_.push_back({ContentPart::Kind::kText, std::move(text)});
  }
  void add_image() {
    end_line();
    parts_.push_back({ContentPart::Kind::kImage, {}});
  }
  std::vector<ContentPart> take() { return std::exchange(parts_, {}); }
  bool empty() const { return parts_.empty(); }

 private:
  void end_line() {
    if (parts_.empty() || parts_.back().text.ends_with('\n')) return;
    parts_.push_back({ContentPart::Kind::kText, "\n"});
  }
  std::vector<ContentPart> parts_;
};

class ConversationReader {
 public:
  explicit ConversationReader(ToolSet& tools) : tools_(tools) {}

  std::vector<Message> read(const Json& body) {
    read_system(base::json_member(body, "system"));
    const Json& messages = base::json_member(body, "messages");
    if (!messages.is_array()) {
      base::bad_input("messages", "must be an array, not {}", messages.is_null() ? "absent" : messages.type_name());
    }
    for (size_t i = 0; i < messages.size(); ++i) read_message(messages[i], fmt::format("messages[{}]", i));
    drop_empty_prefill();
    text::sort_tool_results(out_);
    return std::move(out_);
  }

 private:
  void read_system(const Json& system) {
    Parts parts;
    if (system.is_string()) {
      parts.add_text(without_billing_header(system.get<std::string>()));
    } else if (!system.is_null()) {
      for_each_block(system, "system", [&](const Json& block, const std::string& path) {
        if (required_text(block, "type", path) == "text") {
          parts.add_text(without_billing_header(required_text(block, "text", path)));
        } else {
          add_block(parts, block, path);
        }
      });
    }
    push_unless_blank({.role = Role::kSystem, .content = parts.take()});
  }

  static std::string without_billing_header(std::string text) {
    if (!text.starts_with(kBillingHeader)) return text;
    const size_t line_end = text.find('\n');
    return line_end == std::string::npos ? "" : text.substr(line_end + 1);
  }

  void read_message(const Json& message, const std::string& path) {
    if (!message.is_object()) base::bad_input(path, "must be an object, not {}", message.type_name());
    const std::string role = required_text(message, "role", path);
    const Json& content = base::json_member(message, "content");
    if (role == "user") {
      read_user(content, path + ".content");
    } else if (role == "assistant") {
      read_assistant(content, path + ".content");
    } else if (role == "system") {
      read_late_system(content, path + ".content");
    } else {
      base::bad_input(path + ".role", "must be user, assistant or system, not {}", text::printable(role));
    }
  }

  // Results of tools become messages of their own, what stands around them stays before and behind them.
  void read_user(const Json& content, const std::string& path) {
    Parts parts;
    bool said = false;
    const auto end_message = [&] {
      if (!parts.empty()) out_.push_back({.role = Role::kUser, .content = parts.take()});
    };
    if (content.is_string()) {
      parts.add_text(content.get<std::string>());
    } else {
      for_each_block(content, path, [&](const Json& block, const std::string& place) {
        if (required_text(block, "type", place) != "tool_result") {
          add_block(parts, block, place);
          return;
        }
        end_message();
        said = true;
        read_tool_result(block, place);
      });
    }
    if (parts.empty() && !said) {
      out_.push_back({.role = Role::kUser});
    } else {
      end_message();
    }
  }

  void read_tool_result(const Json& block, const std::string& path) {
    Message result{.role = Role::kTool};
    result.tool_call_id = string_field(block, "tool_use_id", path + ".").value_or("");
    result.content = read_content(base::json_member(block, "content"), path + ".content").take();
    if (bool_field(block, "is_error", path + ".").value_or(false)) {
      result.content.insert(result.content.begin(), {ContentPart::Kind::kText, kErrorPrefix});
    }
    out_.push_back(std::move(result));
  }

  void read_assistant(const Json& content, const std::string& path) {
    Message message{.role = Role::kAssistant};
    if (content.is_string()) {
      message.content.push_back({ContentPart::Kind::kText, content.get<std::string>()});
    } else {
      for_each_block(content, path,
                     [&](const Json& block, const std::string& place) { read_assistant_block(block, place, message); });
    }
    out_.push_back(std::move(message));
  }

  // Blocks of tools that Anthropic's servers run are left out: a line in their place would teach the model to write
  // such lines.
  static void read_assistant_block(const Json& block, const std::string& path, Message& message) {
    const std::string type = required_text(block, "type", path);
    if (type == "text") {
      // One text may have been cut into several, between two letters even.
      message.content.push_back({ContentPart::Kind::kText, required_text(block, "text", path)});
    } else if (type == "thinking") {
      if (!message.reasoning.empty()) message.reasoning += "\n\n";
      message.reasoning += required_text(block, "thinking", path);
    } else if (type == "tool_use") {
      text::ToolCall call{.id = string_field(block, "id", path + ".").value_or(""),
                          .name = required_text(block, "name", path)};
      const Json& input = object_field(block, "input", path + ".");
      if (!input.is_null()) call.arguments = input;
      message.tool_calls.push_back(std::move(call));
    } else if (type == "tool_result") {
      base::bad_input(path + ".type", "tool_result belongs into a message of the user");
    }
  }

  // The template takes a system message in front only. Joining a later one to it would change how the prompt begins,
  // and all that was read would have to be read again; so it stays in its place, marked as agents mark such words.
  void read_late_system(const Json& content, const std::string& path) {
    Message message{.role = Role::kSystem, .content = read_content(content, path).take()};
    const bool in_front = out_.empty() || (out_.size() == 1 && out_[0].role == Role::kSystem);
    if (in_front) {
      if (is_blank(message)) return;
      if (out_.empty()) {
        out_.push_back(std::move(message));
        return;
      }
      std::vector<ContentPart>& front = out_[0].content;
      front.push_back({ContentPart::Kind::kText, "\n\n"});
      front.insert(front.end(), message.content.begin(), message.content.end());
      return;
    }
    message.role = Role::kUser;
    message.content.insert(message.content.begin(), {ContentPart::Kind::kText, "<system-reminder>\n"});
    message.content.push_back({ContentPart::Kind::kText, "\n</system-reminder>"});
    if (message.content.size() > 2) out_.push_back(std::move(message));
  }

  Parts read_content(const Json& content, const std::string& path) {
    Parts parts;
    if (content.is_string()) {
      parts.add_text(content.get<std::string>());
    } else {
      for_each_block(content, path,
                     [&](const Json& block, const std::string& place) { add_block(parts, block, place); });
    }
    return parts;
  }

  // A block of a user's or a system message, or of a tool's result.
  void add_block(Parts& parts, const Json& block, const std::string& path) {
    const std::string type = required_text(block, "type", path);
    if (type == "text") {
      parts.add_text(required_text(block, "text", path));
    } else if (type == "image") {
      parts.add_image();
    } else if (type == "document") {
      add_document(parts, block, path);
    } else if (type == "search_result") {
      add_search_result(parts, block, path);
    } else if (type == "tool_reference") {
      parts.add_text(tools_.add(required_text(block, "tool_name", path)));
    } else if (type == "tool_addition" || type == "tool_removal") {
      change_tools(parts, type == "tool_addition", object_field(block, "tool", path + "."), path + ".tool");
    } else if (type == "tool_use" || type == "thinking") {
      base::bad_input(path + ".type", "{} belongs into a message of the assistant", type);
    } else {
      parts.add_text(fmt::format("[block {} omitted]", text::printable(type)));
    }
  }

  void change_tools(Parts& parts, bool add, const Json& tool, const std::string& path) {
    if (tool.is_null()) base::bad_input(path, "is missing");
    const Json& definition = object_field(tool, "definition", path + ".");
    if (add && !definition.is_null()) {
      parts.add_text(tools_.add_definition(definition, path + ".definition"));
      return;
    }
    // Tools of MCP servers are named by the server too; those are none of this server's.
    const auto name = string_field(tool, "name", path + ".");
    if (name) parts.add_text(add ? tools_.add(*name) : tools_.remove(*name));
  }

  static void add_document(Parts& parts, const Json& block, const std::string& path) {
    const Json& source = object_field(block, "source", path + ".");
    const auto type = string_field(source, "type", path + ".source.");
    if (auto title = string_field(block, "title", path + ".")) parts.add_text(std::move(*title));
    if (type == "text") {
      parts.add_text(required_text(source, "data", path + ".source"));
    } else if (type == "content") {
      add_texts(parts, base::json_member(source, "content"), path + ".source.content");
    } else {
      parts.add_text(kOmittedDocument);
    }
  }

  static void add_search_result(Parts& parts, const Json& block, const std::string& path) {
    for (const char* key : {"title", "source"}) {
      if (auto text = string_field(block, key, path + ".")) parts.add_text(std::move(*text));
    }
    add_texts(parts, base::json_member(block, "content"), path + ".content");
  }

  // A string, or blocks of texts and pictures.
  static void add_texts(Parts& parts, const Json& content, const std::string& path) {
    if (content.is_string()) {
      parts.add_text(content.get<std::string>());
      return;
    }
    for_each_block(content, path, [&](const Json& block, const std::string& place) {
      if (required_text(block, "type", place) == "image") {
        parts.add_image();
      } else {
        parts.add_text(required_text(block, "text", place));
      }
    });
  }

  template <typename Body>
  static void for_each_block(const Json& content, const std::string& path, const Body& body) {
    if (content.is_null()) return;
    if (!content.is_array()) {
      base::bad_input(path, "must be a string or an array of blocks, not {}", content.type_name());
    }
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", path, i);
      if (!content[i].is_object()) base::bad_input(place, "must be an object, not {}", content[i].type_name());
      body(content[i], place);
    }
  }

  void push_unless_blank(Message message) {
    if (!is_blank(message)) out_.push_back(std::move(message));
  }

  // Some clients end with a message of the assistant that says nothing, for "answer now".
  void drop_empty_prefill() {
    if (out_.empty() || out_.back().role != Role::kAssistant) return;
    const Message& last = out_.back();
    if (is_blank(last) && last.reasoning.empty() && last.tool_calls.empty()) out_.pop_back();
  }

  ToolSet& tools_;
  std::vector<Message> out_;
};

}  // namespace

std::vector<Message> read_conversation(const Json& body, ToolSet& tools) {
  return ConversationReader(tools).read(body);
}

}  // namespace tandem::serve
