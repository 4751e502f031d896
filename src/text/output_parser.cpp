#include "text/output_parser.h"

#include <algorithm>

#include "text/output_tags.h"
#include "text/python_json.h"
#include "text/utf8.h"
#include "text/whitespace.h"

namespace tandem::text {

using Kind = OutputEvent::Kind;

OutputParser::OutputParser(base::Json tools, bool starts_in_reasoning)
    : tools_(std::move(tools)),
      state_(starts_in_reasoning ? State::kReasoning : State::kContent),
      drop_leading_blanks_(starts_in_reasoning) {}

std::vector<OutputEvent> OutputParser::push(std::string_view text) {
  bytes_.append(text);
  const size_t whole = utf8_finished(bytes_);
  buffer_ += utf8_repaired(std::string_view(bytes_).substr(0, whole));
  bytes_.erase(0, whole);
  run();
  return std::exchange(events_, {});
}

std::vector<OutputEvent> OutputParser::finish() {
  buffer_ += utf8_repaired(bytes_);
  bytes_.clear();
  final_ = true;
  run();
  if (state_ == State::kValueStart || state_ == State::kValue) end_parameter();
  if (state_ == State::kCall) end_call();
  if (state_ == State::kContent && !after_call_) emit(Kind::kContent, held_blanks_);
  held_blanks_.clear();
  return std::exchange(events_, {});
}

// Takes from the buffer what is decided.
void OutputParser::run() {
  bool more = true;
  while (more && at_ < buffer_.size()) {
    switch (state_) {
      case State::kReasoning:
      case State::kContent:
        more = step_text();
        break;
      case State::kCall:
        more = step_call();
        break;
      case State::kValueStart:
        more = step_value_start();
        break;
      case State::kValue:
        more = step_value();
        break;
      case State::kAfterFunction:
        more = step_after_function();
        break;
    }
  }
  buffer_.erase(0, at_);
  at_ = 0;
}

// Each step gives false where it waits for more input.
bool OutputParser::step_text() {
  const size_t plain = std::min(rest().find('<'), rest().size());
  add_text(rest().substr(0, plain));
  at_ += plain;
  if (rest().empty()) return true;

  Match pending = Match::kNo;
  if (state_ == State::kReasoning) {
    const TagMatch end = match_literal(rest(), "</think>");
    if (end.match == Match::kYes) {
      at_ += end.bytes;
      enter_content(false);
      return true;
    }
    pending = end.match;
  }
  if (!tools_.empty()) {
    const TagMatch call = match_call(rest());
    // Within reasoning only a call of a tool that exists ends it: models think aloud about the form.
    const bool counts = state_ == State::kContent || tools_.has(std::string(call.name));
    if (call.match == Match::kYes && counts) {
      at_ += call.bytes;
      begin_call(std::string(call.name));
      return true;
    }
    if (call.match == Match::kPartial) pending = Match::kPartial;
  }
  if (pending == Match::kPartial && !final_) return false;
  add_text("<");
  ++at_;
  return true;
}

bool OutputParser::step_call() {
  at_ += std::min(rest().find_first_not_of(" \t\r\n"), rest().size());
  if (rest().empty()) return true;
  const TagMatch parameter = match_named(rest(), "<parameter=");
  const TagMatch function_end = match_literal(rest(), "</function>");
  const TagMatch call_end = match_literal(rest(), "</tool_call>");
  if (parameter.match == Match::kYes) {
    begin_parameter(std::string(parameter.name));
    at_ += parameter.bytes;
  } else if (function_end.match == Match::kYes) {
    at_ += function_end.bytes;
    end_call();
  } else if (call_end.match == Match::kYes) {
    at_ += call_end.bytes;
    end_call();
    enter_content(true);
  } else if (std::max({parameter.match, function_end.match, call_end.match}) == Match::kPartial && !final_) {
    return false;
  } else {
    ++at_;  // the form has no place for text here
    at_ += std::min(rest().find('<'), rest().size());
  }
  return true;
}

bool OutputParser::step_value_start() {
  const bool carriage_return = rest().starts_with('\r');
  if (carriage_return && rest().size() == 1 && !final_) return false;
  // The line break after the tag belongs to it, and one of the same kind before the closing tag.
  long_breaks_ = rest().starts_with("\r\n");
  if (long_breaks_) {
    at_ += 2;
  } else if (rest().starts_with('\n')) {
    at_ += 1;
  }
  state_ = State::kValue;
  return true;
}

bool OutputParser::step_value() {
  const size_t plain = std::min(rest().find_first_of("<\r\n"), rest().size());
  add_value(rest().substr(0, plain));
  at_ += plain;
  if (rest().empty()) return true;
  if (rest().front() == '\r' && !long_breaks_) {
    add_value("\r");
    ++at_;
    return true;
  }
  const TagMatch end = match_value_end(rest());
  if (end.match == Match::kPartial && !final_) return false;
  if (end.match == Match::kNo) {
    add_value(rest().substr(0, 1));
    ++at_;
    return true;
  }
  // An answer that was cut within the closing tag.
  at_ = end.match == Match::kYes ? at_ + end.bytes : buffer_.size();
  end_parameter();
  return true;
}

bool OutputParser::step_after_function() {
  at_ += std::min(rest().find_first_not_of(" \t\r\n"), rest().size());
  if (rest().empty()) return true;
  const TagMatch end = match_literal(rest(), "</tool_call>");
  const TagMatch next = match_named(rest(), "<function=");
  if (next.match == Match::kYes) {
    at_ += next.bytes;
    begin_call(std::string(next.name));
  } else if (std::max(end.match, next.match) == Match::kPartial && !final_) {
    return false;
  } else {
    at_ = end.match == Match::kPartial ? buffer_.size() : at_ + end.bytes;  // partial: the answer was cut here
    enter_content(true);
  }
  return true;
}

void OutputParser::add_text(std::string_view text) {
  if (drop_leading_blanks_) text = strip_left(text);
  if (text.empty()) return;
  drop_leading_blanks_ = false;
  const std::string_view body = strip_right(text);
  if (!body.empty()) {
    const Kind kind = state_ == State::kReasoning ? Kind::kReasoning : Kind::kContent;
    emit(kind, held_blanks_);
    emit(kind, body);
    held_blanks_.clear();
    after_call_ = false;
  }
  held_blanks_.append(text.substr(body.size()));
}

void OutputParser::enter_content(bool after_call) {
  state_ = State::kContent;
  held_blanks_.clear();
  drop_leading_blanks_ = !after_call;
  after_call_ = after_call;
}

void OutputParser::begin_call(std::string name) {
  held_blanks_.clear();
  state_ = State::kCall;
  call_ = {};
  call_.name = std::move(name);
  keys_.clear();
  emit(Kind::kToolCallBegin, call_.name);
}

void OutputParser::end_call() {
  emit(Kind::kToolCallArguments, call_.arguments.empty() ? "{}" : "}");
  emit(Kind::kToolCallEnd, {});
  calls_.push_back(std::move(call_));
  state_ = State::kAfterFunction;
}

void OutputParser::begin_parameter(std::string key) {
  state_ = State::kValueStart;
  key_ = std::move(key);
  value_.clear();
  ignored_ = !keys_.insert(key_).second;
  types_ = tools_.types(call_.name, key_);
  streamed_ = types_ == JsonTypes(JsonTypes::kString);
  if (ignored_) return;
  std::string text = call_.arguments.empty() ? "{\"" : ", \"";
  append_json_escaped(text, key_);
  text += streamed_ ? "\": \"" : "\": ";
  emit(Kind::kToolCallArguments, text);
}

void OutputParser::add_value(std::string_view text) {
  if (ignored_) return;
  value_.append(text);
  if (!streamed_) return;
  std::string escaped;
  append_json_escaped(escaped, text);
  emit(Kind::kToolCallArguments, escaped);
}

void OutputParser::end_parameter() {
  state_ = State::kCall;
  if (ignored_) return;
  base::Json value = typed_value(value_, types_);
  emit(Kind::kToolCallArguments, streamed_ ? "\"" : python_json(value));
  // ordered_json would search all keys; this one is known to be new.
  call_.arguments.get_ref<base::Json::object_t&>().push_back({std::move(key_), std::move(value)});
}

// Neighbours of one kind become one event.
void OutputParser::emit(Kind kind, std::string_view text) {
  if (text.empty() && kind != Kind::kToolCallEnd) return;
  const bool of_call = kind != Kind::kReasoning && kind != Kind::kContent;
  const int index = of_call ? static_cast<int>(calls_.size()) : -1;
  const bool joins = kind != Kind::kToolCallBegin && kind != Kind::kToolCallEnd;
  if (joins && !events_.empty() && events_.back().kind == kind && events_.back().tool_call == index) {
    events_.back().text.append(text);
  } else {
    events_.push_back({kind, std::string(text), index});
  }
}

}  // namespace tandem::text
