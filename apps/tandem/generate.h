// One answer of the engine for a command: streamed to a callback, returned whole.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "text/message.h"

namespace tandem::app {

struct GeneratedAnswer {
  std::string text;
  std::string reasoning;
  std::vector<text::ToolCall> tool_calls;
  engine::Outcome outcome;
};

// Runs the request and calls `on_event` in the caller's thread for every event. Once `interrupted` is set (by a signal
// handler, say) the request is cancelled. Throws base::Error where the engine refuses the request or ends it with one.
GeneratedAnswer generate(engine::Engine& engine, engine::Request request,
                         const std::function<void(const text::OutputEvent&)>& on_event,
                         const std::atomic<bool>* interrupted = nullptr);

// A user's message, a system's, an assistant's, of one text.
text::Message text_message(text::Role role, std::string text);

// {"text", "reasoning", "tool_calls", "token_ids", "prompt_tokens", "finish_reason", "timings"}.
base::Json answer_json(const GeneratedAnswer& answer);

// "31 prompt tokens in 0.12 s (258.3/s), 40 tokens in 2.10 s (19.0/s)".
std::string speed_line(const engine::Outcome& outcome);

}  // namespace tandem::app
