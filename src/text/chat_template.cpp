#include "text/chat_template.h"

#include "base/error.h"
#include "text/python_json.h"
#include "text/whitespace.h"

namespace tandem::text {

namespace {

using Segments = std::vector<Segment>;

void append(Segments& out, std::string_view text, bool control) {
  if (text.empty()) return;
  if (out.empty() || out.back().control != control) out.push_back({{}, control});
  out.back().text.append(text);
}

void append(Segments& out, const Segments& more) {
  for (const Segment& segment : more) append(out, segment.text, segment.control);
}

void append_control(Segments& out, std::string_view text) {
  append(out, text, true);
}

void append_plain(Segments& out, std::string_view text) {
  append(out, text, false);
}

Segments content_of(const Message& message) {
  Segments out;
  for (const ContentPart& part : message.content) {
    switch (part.kind) {
      case ContentPart::Kind::kText:
        append_plain(out, part.text);
        break;
      case ContentPart::Kind::kImage:
        append_control(out, "<|vision_start|><|image_pad|><|vision_end|>");
        break;
      case ContentPart::Kind::kVideo:
        append_control(out, "<|vision_start|><|video_pad|><|vision_end|>");
        break;
    }
  }
  return out;
}

// Without blanks at both ends. Control text neither begins nor ends with blanks, so only the first and the last
// segment can change.
Segments trimmed(Segments segments) {
  if (segments.empty()) return segments;
  segments.front().text = strip_left(segments.front().text);
  segments.back().text = strip_right(segments.back().text);
  Segments out;
  append(out, segments);
  return out;
}

bool is_tool_response(const Message& message) {
  const std::string text = ChatTemplate::join(trimmed(content_of(message)));
  return text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
}

// One rendering of a conversation.
class Renderer {
 public:
  Renderer(const TemplateWording& wording, const std::vector<Message>& messages, const TemplateOptions& options)
      : wording_(wording), messages_(messages), options_(options) {}

  Segments run(const base::Json& tools) {
    if (messages_.empty()) base::bad_input("messages", "must hold at least one message");
    if (options_.continue_last_message) check_last_message();
    find_last_query();
    system_turn(tools);
    for (size_t i = 0; i < messages_.size(); ++i) {
      switch (messages_[i].role) {
        case Role::kSystem:
          if (i != 0) base::bad_input(fmt::format("messages[{}]", i), "a system message must come first");
          break;
        case Role::kUser:
          user_turn(messages_[i]);
          break;
        case Role::kAssistant:
          if (options_.continue_last_message && i + 1 == messages_.size()) {
            open_turn(messages_[i]);
          } else {
            assistant_turn(i);
          }
          break;
        case Role::kTool:
          tool_result(i);
          break;
      }
    }
    if (options_.add_generation_prompt && !options_.continue_last_message) {
      append_control(out_, "<|im_start|>assistant\n<think>\n");
      if (!options_.thinking) append_control(out_, "\n</think>\n\n");
    }
    return std::move(out_);
  }

 private:
  void find_last_query() {
    for (size_t i = messages_.size(); i-- > 0;) {
      if (messages_[i].role != Role::kUser) continue;
      if (wording_.tool_responses_are_no_query && is_tool_response(messages_[i])) continue;
      last_query_ = i;
      return;
    }
    base::bad_input("messages", "must hold at least one user message");
  }

  // The effort's text, the tools and the caller's words, joined by blank lines; no turn where all are empty.
  void system_turn(const base::Json& tools) {
    Segments turn;
    const auto add = [&turn](const Segments& piece) {
      if (!turn.empty() && !piece.empty()) append_control(turn, "\n\n");
      append(turn, piece);
    };
    if (options_.thinking) {
      const bool low = options_.effort == ReasoningEffort::kLow, high = options_.effort == ReasoningEffort::kHigh;
      Segments effort;
      append_control(effort, high ? wording_.effort_high : low ? wording_.effort_low : std::string());
      add(effort);
    }
    add(tools_block(tools));
    if (messages_[0].role == Role::kSystem) {
      for (const ContentPart& part : messages_[0].content) {
        if (part.kind != ContentPart::Kind::kText) base::bad_input("messages[0]", "a system message cannot hold media");
      }
      add(trimmed(content_of(messages_[0])));
    }
    if (turn.empty()) return;
    append_control(out_, "<|im_start|>system\n");
    append(out_, turn);
    append_control(out_, "<|im_end|>\n");
  }

  Segments tools_block(const base::Json& tools) const {
    Segments out;
    if (tools.is_null()) return out;
    if (!tools.is_array()) base::bad_input("tools", "must be an array, not {}", tools.type_name());
    if (tools.empty()) return out;
    append_control(out, wording_.tools_head);
    for (const base::Json& tool : tools) {
      append_control(out, "\n");
      append_plain(out, python_json(tool));
    }
    append_control(out, wording_.tools_tail);
    return out;
  }

  Segments turn_content(const Message& message) const {
    return wording_.trims_every_content ? trimmed(content_of(message)) : content_of(message);
  }

  void user_turn(const Message& message) {
    append_control(out_, "<|im_start|>user\n");
    append(out_, turn_content(message));
    append_control(out_, "<|im_end|>\n");
  }

  // Consecutive results share one user turn.
  void tool_result(size_t i) {
    if (i == 0 || messages_[i - 1].role != Role::kTool) append_control(out_, "<|im_start|>user");
    append_control(out_, "\n<tool_response>\n");
    append(out_, turn_content(messages_[i]));
    append_control(out_, "\n</tool_response>");
    const bool last = i + 1 == messages_.size() || messages_[i + 1].role != Role::kTool;
    if (last) append_control(out_, "<|im_end|>\n");
  }

  void assistant_turn(size_t i) {
    const Message& message = messages_[i];
    append_control(out_, "<|im_start|>assistant\n");
    if (options_.preserve_thinking || i > last_query_) {
      append_control(out_, "<think>\n");
      append_plain(out_, strip(message.reasoning));
      append_control(out_, "\n</think>\n\n");
    }
    const Segments content = trimmed(content_of(message));
    append(out_, content);
    for (size_t call = 0; call < message.tool_calls.size(); ++call) {
      if (call != 0) {
        append_control(out_, "\n");
      } else if (!content.empty()) {
        append_control(out_, "\n\n");
      }
      tool_call(message.tool_calls[call]);
    }
    append_control(out_, "<|im_end|>\n");
  }

  void check_last_message() const {
    const std::string place = fmt::format("messages[{}]", messages_.size() - 1);
    if (messages_.back().role != Role::kAssistant) base::bad_input(place, "only a message of the assistant can go on");
    if (!messages_.back().tool_calls.empty()) base::bad_input(place, "a message that calls tools cannot go on");
  }

  // The assistant's words as they stand, with no end: what it wrote last is what the answer follows.
  void open_turn(const Message& message) {
    append_control(out_, "<|im_start|>assistant\n<think>\n");
    const Segments content = content_of(message);
    if (content.empty() && !message.reasoning.empty()) {
      append_plain(out_, strip_left(message.reasoning));
      return;
    }
    append_plain(out_, strip(message.reasoning));
    append_control(out_, "\n</think>\n\n");
    append(out_, content);
  }

  void tool_call(const ToolCall& call) {
    append_control(out_, "<tool_call>\n<function=");
    append_plain(out_, call.name);
    append_control(out_, ">\n");
    if (call.arguments.is_object()) {
      for (const auto& [key, value] : call.arguments.items()) {
        append_control(out_, "<parameter=");
        append_plain(out_, key);
        append_control(out_, ">\n");
        append_plain(out_, value.is_string() ? value.get_ref<const std::string&>() : python_json(value));
        append_control(out_, "\n</parameter>\n");
      }
    }
    append_control(out_, "</function>\n</tool_call>");
  }

  const TemplateWording& wording_;
  const std::vector<Message>& messages_;
  const TemplateOptions& options_;
  size_t last_query_ = 0;
  Segments out_;
};

}  // namespace

ChatTemplate ChatTemplate::from_jinja(std::string_view jinja, const std::string& source) {
  return ChatTemplate(read_template_wording(jinja, source));
}

std::vector<Segment> ChatTemplate::render(const std::vector<Message>& messages, const base::Json& tools,
                                          const TemplateOptions& options) const {
  return Renderer(wording_, messages, options).run(tools);
}

std::string ChatTemplate::join(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

std::vector<int32_t> ChatTemplate::encode(const Tokenizer& tokenizer, const std::vector<Segment>& segments) {
  std::vector<TextPiece> pieces;
  pieces.reserve(segments.size());
  for (const Segment& segment : segments) {
    pieces.push_back({segment.text, segment.control ? AddedTokens::kParse : AddedTokens::kPlain});
  }
  return tokenizer.encode(pieces);
}

}  // namespace tandem::text
