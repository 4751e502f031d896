// Turns the tokens of one answer into events: whole characters, split into reasoning, content and tool calls, ended by
// stop strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/stop_strings.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace tandem::engine {

// Not thread-safe; one an answer.
class Answer {
 public:
  struct Options {
    base::Json tools{};
    bool starts_in_reasoning = false;
    bool raw = false;  // everything is content
    std::vector<std::string> stop{};
  };
  // Throws base::Error{kBadInput} for stop strings that are not allowed. The tokenizer must outlive the answer.
  Answer(const text::Tokenizer& tokenizer, Options options);

  // What this token adds. Once stop_string() is set, the answer has ended and nothing may be pushed any more.
  std::vector<text::OutputEvent> push(int32_t token);
  // The end of the answer: everything that was held back.
  std::vector<text::OutputEvent> finish();

  const std::optional<std::string>& stop_string() const { return stop_.matched(); }
  bool in_reasoning() const { return !raw_ && parser_.in_reasoning(); }
  bool has_tool_calls() const { return !raw_ && !parser_.tool_calls().empty(); }

 private:
  std::vector<text::OutputEvent> parse(const std::string& text);
  void apply_stop(std::vector<text::OutputEvent> parsed, std::vector<text::OutputEvent>& events);

  text::Detokenizer detokenizer_;
  text::OutputParser parser_;
  StopStrings stop_;
  bool raw_;
};

// Whether the prompt leaves a think block open: its last <think> token stands after the last </think> and the last
// <|im_start|>.
bool ends_in_open_think(const std::vector<int32_t>& prompt, const text::Tokenizer& tokenizer);

}  // namespace tandem::engine
