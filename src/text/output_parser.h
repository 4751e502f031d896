// Splits what the model writes into reasoning, content and tool calls while it streams, at any split of the bytes
// (docs/text.md, "The answer").
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "text/argument_types.h"
#include "text/message.h"

namespace tandem::text {

// One step of the answer. Tool calls are announced when their name is complete and finished when they close, so that a
// server can stream them; `arguments` holds the next characters of the arguments' JSON text. Texts are whole UTF-8
// characters, and never empty but for kToolCallEnd.
struct OutputEvent {
  enum class Kind { kReasoning, kContent, kToolCallBegin, kToolCallArguments, kToolCallEnd };
  Kind kind = Kind::kContent;
  std::string text;    // reasoning, content: the characters; begin: the function's name; arguments: JSON text
  int tool_call = -1;  // index of the call, from 0, for the three tool call kinds
};

// Not thread-safe; one parser an answer. Time is linear in the answer however it is cut.
class OutputParser {
 public:
  // `tools` types the arguments: a parameter's text becomes what its JSON schema says (string, number, boolean, array,
  // object, null), and a string where it says nothing or does not fit. Without tools nothing is a call.
  // `starts_in_reasoning` where the prompt ended with an open think block.
  OutputParser(base::Json tools, bool starts_in_reasoning);

  // `text` is any number of bytes of the answer, also a part of a tag or of a character.
  std::vector<OutputEvent> push(std::string_view text);
  // The end of the answer: what was held back as a possible tag comes out as text, an open call is closed.
  std::vector<OutputEvent> finish();

  bool in_reasoning() const { return state_ == State::kReasoning; }
  // The complete calls so far (ids are empty: the server names them).
  const std::vector<ToolCall>& tool_calls() const { return calls_; }

 private:
  enum class State {
    kReasoning,
    kContent,
    kCall,           // within a function, between parameters
    kValueStart,     // right after <parameter=KEY>
    kValue,          // within a parameter's value
    kAfterFunction,  // after </function>
  };

  void run();
  bool step_text();
  bool step_call();
  bool step_value_start();
  bool step_value();
  bool step_after_function();

  void add_text(std::string_view text);
  void enter_content(bool after_call);
  void begin_call(std::string name);
  void end_call();
  void begin_parameter(std::string key);
  void add_value(std::string_view text);
  void end_parameter();
  void emit(OutputEvent::Kind kind, std::string_view text);

  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }

  ToolSchemas tools_;
  State state_;
  bool final_ = false;  // no more input will come

  std::string bytes_;   // of an unfinished character
  std::string buffer_;  // characters not yet taken, from at_ on
  size_t at_ = 0;
  std::vector<OutputEvent> events_;

  // Reasoning and content: blanks are held until it is known what follows.
  std::string held_blanks_;
  bool drop_leading_blanks_ = false;
  bool after_call_ = false;  // nothing but blanks since the last call

  std::vector<ToolCall> calls_;
  ToolCall call_;  // being read
  std::unordered_set<std::string> keys_;
  std::string key_, value_;
  JsonTypes types_;
  bool ignored_ = false;      // a parameter given before: the first one counts
  bool streamed_ = false;     // a string: its characters go out as they come
  bool long_breaks_ = false;  // the value's first line break is "\r\n"
};

}  // namespace tandem::text
