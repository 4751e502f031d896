// What the engine is asked for, and what it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/message.h"
#include "text/output_parser.h"

namespace tandem::grammar {
class Grammar;
}

namespace tandem::engine {

// Added to the token's logit before anything else looks at it.
struct LogitBias {
  int32_t token = 0;
  float bias = 0;  // [-100, 100]
};

// How the next token is chosen from the logits.
struct Sampling {
  double temperature = 1.0;         // 0 is greedy: the highest logit, the lower id among equals
  double top_p = 1.0;               // (0, 1]
  int64_t top_k = 0;                // 0 is off
  double min_p = 0.0;               // [0, 1]
  double presence_penalty = 0.0;    // [-2, 2], on tokens of the answer so far
  double frequency_penalty = 0.0;   // [-2, 2], on tokens of the answer so far
  double repetition_penalty = 1.0;  // (0, 2], divides positive and multiplies negative logits of tokens seen so far, in
                                    // the prompt too; 1 is off
  std::vector<LogitBias> logit_bias{};
  std::optional<uint64_t> seed{};  // absent: drawn at random
};

// What a request says about sampling; what it leaves out comes from generation_config.json and the family's thinking
// or plain preset (docs/sampling.md).
struct SamplingRequest {
  std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<int64_t> top_k;
  std::vector<LogitBias> logit_bias;
  std::optional<uint64_t> seed;
};

// Limits of Request::stop, so that holding text back stays cheap.
inline constexpr size_t kMaxStopStrings = 32;
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr int64_t kMostTopLogprobs = 20;
inline constexpr size_t kMostLogitBiases = 1024;

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
  int64_t min_tokens = 0;             // no end token is drawn before so many tokens
  // Reasoning is closed after so many of its tokens; the answer follows. Absent: no limit but max_tokens.
  std::optional<int64_t> max_reasoning_tokens;
  std::vector<std::string> stop;   // strings that end the content and are not part of it; not sought in reasoning
  bool ignore_end_tokens = false;  // run to max_tokens whatever is drawn (benchmarks)
  // What everything after the reasoning must match; null: anything.
  std::shared_ptr<const grammar::Grammar> grammar;
  // Update::logprobs with so many of the likeliest tokens beside the drawn one, [0, kMostTopLogprobs]; absent: none.
  std::optional<int64_t> top_logprobs;
  bool progress = false;  // Update::progress while the prompt is read
};

// What is done against answers that say nothing or never end; each can be switched off.
struct Guards {
  bool empty_answer = true;   // an end token that would end the answer right after the reasoning is drawn again
  bool open_thinking = true;  // an end token within the reasoning closes it, once, and the answer goes on
  bool repeat = true;         // kMostRepeats equal tokens in a row end the answer
};

// How often guards stepped in.
struct GuardCounts {
  int64_t ends_redrawn = 0;
  int64_t reasoning_closed = 0;
  int64_t repeats_ended = 0;
};

// kRepeat: the guard against an endless repetition of one token ended the answer.
enum class FinishReason { kStop, kLength, kToolCalls, kRepeat, kCancelled, kError };
// OpenAI's words: stop, length, tool_calls; and repeat, cancelled, error.
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
  GuardCounts guards;
  base::ErrorKind error_kind = base::ErrorKind::kInternal;  // where reason is kError
  std::string error;
};

// Natural logarithm of the probability that the model itself gave a token: before penalties, temperature, filters and
// grammar.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct StepLogprobs {
  TokenLogprob drawn;
  std::vector<TokenLogprob> top;  // descending; of equals the lower id first
  bool reasoning = false;         // the token is part of the reasoning
};

// How far a prompt has been read.
struct Progress {
  int64_t done = 0;  // tokens, of them `cached` from the context cache
  int64_t total = 0;
  int64_t cached = 0;
  double seconds = 0;  // since the first step
};

// One step's news of a request. `outcome` is set in the last one and only there. Where log probabilities were asked
// for, every step that draws a token of the answer tells them, also where it completes no event.
struct Update {
  std::vector<text::OutputEvent> events;
  std::optional<StepLogprobs> logprobs{};
  std::optional<Progress> progress{};
  std::optional<Outcome> outcome{};
};

// Called on the engine's thread: must not block and must not call back into the engine. A sink that throws ends its
// request and is not called again.
using UpdateSink = std::function<void(const Update&)>;

}  // namespace tandem::engine
