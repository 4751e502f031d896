// One request under way: its sequence, sampler and answer, advanced one step at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/answer.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/steering.h"
#include "engine/text_model.h"
#include "text/tokenizer.h"

namespace tandem::engine {

// What submit() made of a request.
struct GenerationPlan {
  uint64_t id = 0;
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 0;       // of the answer; prompt and answer together fit the context
  Sampling sampling;            // with a seed
  Answer::Options answer;
  Steering::Options steering;
  std::optional<int64_t> top_logprobs;
  bool progress = false;
  int64_t prefill_chunk = 512;
  UpdateSink sink;
};

// All but cancel() and id() belong to the step thread.
class Generation {
 public:
  // Throws base::Error{kBadInput} for stop strings that are not allowed. The tokenizer must outlive the generation.
  Generation(GenerationPlan plan, const text::Tokenizer& tokenizer);

  uint64_t id() const { return plan_.id; }
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  // Tokens of prompt and longest answer together.
  int64_t most_tokens() const;
  // Of the prompt, read so far.
  int64_t prompt_done() const { return prompt_done_; }
  double seconds_since_start() const;
  double seconds_of_decode() const;
  const Outcome& outcome() const { return outcome_; }
  bool started() const { return sequence_ != nullptr; }
  bool ended() const { return ended_; }

  // Takes a sequence of the model. Throws what TextModel::create throws.
  void start(TextModel& model);
  // Reads a chunk of the prompt, or draws a token; the last chunk draws the first token too. Throws what the model and
  // the sampler throw. REQUIRES: started, not ended.
  void step();
  // Ends without a further step: cancelled, or with the error of a step.
  void end_cancelled();
  void end_with_error(base::ErrorKind kind, const std::string& message);

 private:
  using Clock = std::chrono::steady_clock;

  void prefill();
  void draw();
  int32_t choose(int64_t position, const Allowed& allowed);
  // From the best logits alone, where these tell the token.
  std::optional<int32_t> choose_from_best(int64_t position, const Allowed& allowed);
  void take(int32_t token);
  // Sends what the step gave, if anything.
  void deliver(Update update);
  void finish(FinishReason reason, Update update = {});
  void send(const Update& update);

  GenerationPlan plan_;
  const text::Tokenizer& tokenizer_;
  Answer answer_;
  Sampler sampler_;
  Steering steering_;
  std::unique_ptr<TextSequence> sequence_;
  int64_t prompt_done_ = 0;  // tokens of the prompt that were read
  Outcome outcome_;
  std::atomic<bool> cancelled_ = false;
  bool ended_ = false;
  bool sink_failed_ = false;
  Clock::time_point submitted_ = Clock::now();
  Clock::time_point started_{};
  Clock::time_point prefilled_{};
};

}  // namespace tandem::engine
