#include "engine/answer.h"

#include <utility>

namespace tandem::engine {

using text::OutputEvent;

Answer::Answer(const text::Tokenizer& tokenizer, Options options)
    : detokenizer_(tokenizer, /*skip_special=*/true),
      parser_(std::move(options.tools), options.starts_in_reasoning),
      stop_(std::move(options.stop)),
      raw_(options.raw) {}

std::vector<OutputEvent> Answer::parse(const std::string& text) {
  if (!raw_) return parser_.push(text);
  if (text.empty()) return {};
  return {OutputEvent{.kind = OutputEvent::Kind::kContent, .text = text}};
}

std::vector<OutputEvent> Answer::push(int32_t token) {
  std::vector<OutputEvent> events;
  apply_stop(parse(detokenizer_.push(token)), events);
  return events;
}

std::vector<OutputEvent> Answer::finish() {
  std::vector<OutputEvent> events;
  if (!stop_string()) apply_stop(parse(detokenizer_.finish()), events);
  if (!stop_string() && !raw_) apply_stop(parser_.finish(), events);
  if (stop_string()) return events;
  if (std::string rest = stop_.flush(); !rest.empty()) {
    events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(rest)});
  }
  return events;
}

// Content passes the stop strings; before anything else what they hold back comes out, so that the order is kept.
void Answer::apply_stop(std::vector<OutputEvent> parsed, std::vector<OutputEvent>& events) {
  for (auto& event : parsed) {
    const bool content = event.kind == OutputEvent::Kind::kContent;
    std::string text = content ? stop_.push(event.text) : stop_.flush();
    if (!text.empty()) events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(text)});
    if (stop_string()) return;
    if (!content) events.push_back(std::move(event));
  }
}

bool ends_in_open_think(const std::vector<int32_t>& prompt, const text::Tokenizer& tokenizer) {
  const auto open = tokenizer.added_token("<think>");
  const auto close = tokenizer.added_token("</think>");
  const auto turn = tokenizer.added_token("<|im_start|>");
  for (auto token = prompt.rbegin(); token != prompt.rend(); ++token) {
    if (*token == open) return true;
    if (*token == close || *token == turn) return false;
  }
  return false;
}

}  // namespace tandem::engine
