#include "message_stream.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <set>
#include <stdexcept>

namespace tandem::test {

using base::Json;

namespace {

const Json kEmpty = "";

const std::set<std::string> kStopReasons = {"end_turn", "max_tokens", "stop_sequence", "tool_use",
                                            "model_context_window_exceeded"};
constexpr std::array<const char*, 4> kUsageMembers = {"input_tokens", "cache_creation_input_tokens",
                                                      "cache_read_input_tokens", "output_tokens"};

class StreamReader {
 public:
  MessageStreamReport read(std::string_view stream) {
    while (!stream.empty()) {
      const size_t end = stream.find("\n\n");
      if (end == std::string_view::npos) {
        fault("the last event has no end");
        break;
      }
      read_block(stream.substr(0, end));
      stream.remove_prefix(end + 2);
    }
    if (!stopped_ && report_.error.is_null()) fault("the stream ends without message_stop or an error");
    return std::move(report_);
  }

 private:
  void fault(const std::string& text) {
    report_.faults.push_back(fmt::format("event {}: {}", report_.events.size(), text));
  }
  void require(bool good, const char* text) {
    if (!good) fault(text);
  }

  // One event or comments, without the blank line behind.
  void read_block(std::string_view block) {
    if (block.starts_with(':')) {
      require(block.find('\n') == std::string_view::npos, "a comment has a second line");
      return;
    }
    const size_t line = block.find('\n');
    const bool good = line != std::string_view::npos && block.starts_with("event: ") &&
                      block.substr(line + 1).starts_with("data: ") && block.find('\n', line + 1) == block.npos;
    if (!good) {
      fault("is not one line of event and one of data");
      return;
    }
    const std::string name(block.substr(7, line - 7));
    report_.events.push_back(name);
    try {
      const Json data = base::parse_json(block.substr(line + 7), "data");
      require(data.at("type") == name, "its name is not its data's type");
      read_event(name, data);
    } catch (const std::exception& error) {
      fault(error.what());
    }
  }

  void read_event(const std::string& name, const Json& data) {
    require(!stopped_, "comes after message_stop");
    require(report_.error.is_null(), "comes after an error");
    if (name == "ping") return;
    if (name == "error") {
      report_.error = data.at("error");
      require(report_.error.at("type").is_string() && report_.error.at("message").is_string(), "error without words");
      return;
    }
    require(started_ == (name != "message_start"), "message_start must come first and once");
    if (name == "message_start") {
      start(data.at("message"));
    } else if (name == "content_block_start") {
      open(data);
    } else if (name == "content_block_delta") {
      add(data);
    } else if (name == "content_block_stop") {
      close(data);
    } else if (name == "message_delta") {
      end(data);
    } else if (name == "message_stop") {
      require(ended_, "message_stop without message_delta");
      stopped_ = true;
    } else {
      fault("unknown event " + name);
    }
  }

  void check_usage(const Json& usage) {
    for (const char* member : kUsageMembers) {
      require(usage.at(member).is_number_integer() && usage.at(member) >= 0, "a figure of the usage is no count");
    }
  }

  void start(const Json& message) {
    started_ = true;
    report_.message = message;
    require(message.at("id").get<std::string>().starts_with("msg_"), "the message's id is none");
    require(message.at("type") == "message" && message.at("role") == "assistant", "this is no assistant's message");
    require(message.at("model").is_string(), "the model has no name");
    require(message.at("content") == Json::array(), "the message starts with content");
    require(message.at("stop_reason").is_null() && message.at("stop_sequence").is_null(), "starts with its end");
    check_usage(message.at("usage"));
  }

  void open(const Json& data) {
    require(!open_, "opens a block within a block");
    require(!ended_, "opens a block after message_delta");
    Json& content = report_.message.at("content");
    require(data.at("index") == content.size(), "the index does not count on");
    const Json& block = data.at("content_block");
    const std::string type = block.at("type");
    if (type == "text") {
      require(block.at("text") == kEmpty, "a text starts with words");
    } else if (type == "thinking") {
      require(block.at("thinking") == kEmpty && block.at("signature") == kEmpty, "thinking starts with words");
    } else if (type == "tool_use") {
      require(block.at("input") == Json::object(), "a tool's input starts with members");
      require(block.at("id").get<std::string>().starts_with("toolu_"), "a call's id is none");
      require(ids_.insert(block.at("id")).second, "two calls have one id");
      require(block.at("name") != kEmpty, "a call names no tool");
    } else {
      fault("unknown block " + type);
    }
    content.push_back(block);
    open_ = true;
    input_.clear();
  }

  void add(const Json& data) {
    require(open_, "a delta outside of a block");
    Json& content = report_.message.at("content");
    require(data.at("index") == content.size() - 1, "a delta of a block that is not open");
    Json& block = content.back();
    const Json& delta = data.at("delta");
    const std::string type = delta.at("type");
    const std::string block_type = block.at("type");
    if (type == "input_json_delta") {
      require(block_type == "tool_use", "input of what is no tool");
      input_ += delta.at("partial_json").get<std::string>();
      return;
    }
    const bool fits = (type == "text_delta" && block_type == "text") ||
                      ((type == "thinking_delta" || type == "signature_delta") && block_type == "thinking");
    if (!fits) {
      fault(type + " within a block of " + block_type);
      return;
    }
    const std::string member = type.substr(0, type.find('_'));
    const std::string& more = delta.at(member).get_ref<const std::string&>();
    require(!more.empty(), "an empty delta");
    require(block_type != "thinking" || block.at("signature") == kEmpty, "comes after the signature");
    block[member] = block.at(member).get<std::string>() + more;
  }

  void close(const Json& data) {
    require(open_, "closes a block that is not open");
    open_ = false;
    Json& content = report_.message.at("content");
    require(data.at("index") == content.size() - 1, "closes another block");
    Json& block = content.back();
    if (block.at("type") == "tool_use") {
      block["input"] = base::parse_json(input_, "the tool's input");
      require(block.at("input").is_object(), "a tool's input is no object");
    } else if (block.at("type") == "thinking") {
      require(block.at("signature") != kEmpty, "thinking without a signature");
    }
  }

  void end(const Json& data) {
    require(!open_, "message_delta within a block");
    require(!ended_, "a second message_delta");
    ended_ = true;
    const Json& delta = data.at("delta");
    require(kStopReasons.contains(delta.at("stop_reason")), "an unknown stop_reason");
    require(delta.at("stop_sequence").is_string() == (delta.at("stop_reason") == "stop_sequence"),
            "stop_sequence and stop_reason do not agree");
    report_.message.update(delta);
    check_usage(data.at("usage"));
    report_.message["usage"] = data.at("usage");
    const Json& content = report_.message.at("content");
    const bool calls =
        std::any_of(content.begin(), content.end(), [](const Json& block) { return block.at("type") == "tool_use"; });
    require(calls || delta.at("stop_reason") != "tool_use", "ends with tool_use and calls nothing");
  }

  MessageStreamReport report_;
  std::set<std::string> ids_;
  std::string input_;
  bool started_ = false, open_ = false, ended_ = false, stopped_ = false;
};

}  // namespace

MessageStreamReport read_message_stream(std::string_view stream) {
  return StreamReader().read(stream);
}

}  // namespace tandem::test
