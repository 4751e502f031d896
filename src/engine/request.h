// What the engine is asked for, and what it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/message.h"
#include "text/output_parser.h"

namespace tandem::engine {

// How the next token is chosen from the logits.
struct Sampling {
  double temperature = 1.0;        // 0 is greedy: the highest logit, the lower id among equals
  double top_p = 1.0;              // (0, 1]
  int64_t top_k = 0;               // 0 is off
  double min_p = 0.0;              // [0, 1]
  double presence_penalty = 0.0;   // [-2, 2], on tokens of the answer so far
  double frequency_penalty = 0.0;  // [-2, 2], on tokens of the answer so far
  std::optional<uint64_t> seed{};  // absent: drawn at random
};

// What a request says about sampling; what it leaves out comes from generation_config.json and the family's thinking
// or plain preset (docs/sampling.md).
struct SamplingRequest {
  std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
};

// Limits of Request::stop, so that holding text back stays cheap.
inline constexpr size_t kMaxStopStrings = 32;
inline constexpr size_t kMaxStopBytes = 1024;

struct Request {
  // A conversation, unless prompt_ids is set: then exactly these tokens are continued.
  std::vector<text::Message> messages;
  base::Json tools;  // null or an array
  text::TemplateOptions template_options;
  std::optional<std::vector<int32_t>> prompt_ids;
  // The whole answer is content as it was written: no reasoning and no tool calls are taken out of it.
  bool raw = false;

  SamplingRequest sampling;
  std::optional<int64_t> max_tokens;  // of the answer; 0 only reads the prompt; absent: what the context leaves
  std::vector<std::string> stop;      // strings that end the content and are not part of it; not sought in reasoning
  bool ignore_end_tokens = false;     // run to max_tokens whatever is drawn (benchmarks)
};

enum class FinishReason { kStop, kLength, kToolCalls, kCancelled, kError };
// OpenAI's words: stop, length, tool_calls; and cancelled, error.
std::string_view finish_reason_name(FinishReason reason);

// Wall time of a request's three parts, one after the other; with several requests at once each part also holds what
// the others took in between.
struct Timings {
  double queued_seconds = 0;   // from submit to the first step
  double prefill_seconds = 0;  // until the logits of the prompt's last token
  double decode_seconds = 0;   // from there to the last token
};

struct Outcome {
  FinishReason reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, taken from the context cache
  int64_t completion_tokens = 0;  // every token drawn, the end token too
  int64_t reasoning_tokens = 0;
  std::vector<int32_t> token_ids;          // the answer, without the end token
  std::optional<std::string> stop_string;  // which of Request::stop ended it
  Timings timings;
  base::ErrorKind error_kind = base::ErrorKind::kInternal;  // where reason is kError
  std::string error;
};

// One step's news of a request. `outcome` is set in the last one and only there.
struct Update {
  std::vector<text::OutputEvent> events;
  std::optional<Outcome> outcome;
};

// Called on the engine's thread: must not block and must not call back into the engine. A sink that throws ends its
// request and is not called again.
using UpdateSink = std::function<void(const Update&)>;

}  // namespace tandem::engine
