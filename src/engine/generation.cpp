#include "engine/generation.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "engine/logprobs.h"

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Generation::Generation(GenerationPlan plan, const text::Tokenizer& tokenizer)
    : plan_(std::move(plan)),
      tokenizer_(tokenizer),
      answer_(tokenizer, std::move(plan_.answer)),
      sampler_(plan_.sampling, tokenizer.size()),
      steering_(std::move(plan_.steering), tokenizer) {
  outcome_.prompt_tokens = static_cast<int64_t>(plan_.prompt.size());
  sampler_.accept_prompt(plan_.prompt);
}

int64_t Generation::most_tokens() const {
  return outcome_.prompt_tokens + plan_.max_tokens;
}

double Generation::seconds_since_start() const {
  return started() ? seconds(started_, Clock::now()) : 0;
}

double Generation::seconds_of_decode() const {
  return prefilled_ == Clock::time_point{} ? 0 : seconds(prefilled_, Clock::now());
}

void Generation::start(TextModel& model) {
  started_ = Clock::now();
  sequence_ = model.create();
}

void Generation::step() {
  if (sequence_->length() < outcome_.prompt_tokens) {
    prefill();
    return;
  }
  sequence_->forward({&outcome_.token_ids.back(), 1}, true);
  draw();
}

// Chunks end at multiples of the chunk size counted from position 0, so that a prompt is always cut at the same places.
void Generation::prefill() {
  const int64_t begin = sequence_->length();
  const int64_t end = std::min(outcome_.prompt_tokens, (begin / plan_.prefill_chunk + 1) * plan_.prefill_chunk);
  const bool last = end == outcome_.prompt_tokens;
  const std::span<const int32_t> prompt(plan_.prompt);
  // The chunk after this one too: what it needs from disk comes while this one is computed.
  const int64_t ahead = std::min(outcome_.prompt_tokens, end + plan_.prefill_chunk);
  sequence_->prefetch(prompt.subspan(static_cast<size_t>(begin), static_cast<size_t>(ahead - begin)));
  const auto chunk = prompt.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  const bool answers = last && plan_.max_tokens > 0;
  sequence_->forward(chunk, answers);
  if (answers) sequence_->settle();  // the times of prompt and answer are told apart
  prompt_done_ = end;
  Update update;
  if (plan_.progress) {
    update.progress = {.done = end,
                       .total = outcome_.prompt_tokens,
                       .cached = outcome_.cached_tokens,
                       .seconds = seconds_since_start()};
  }
  deliver(std::move(update));
  if (!last || ended_) return;
  prefilled_ = Clock::now();
  if (plan_.max_tokens == 0) {
    finish(FinishReason::kLength);
  } else {
    draw();
  }
}

// While the step is computed, the steering makes up its mind about what may follow.
void Generation::draw() {
  bool chosen = false;
  const std::optional<int32_t> token = steering_.next([&](int64_t position, const Allowed& allowed) {
    chosen = true;
    return choose(position, allowed);
  });
  if (!chosen) sequence_->settle();
  ++outcome_.completion_tokens;
  if (token) {
    take(*token);
  } else {
    finish(FinishReason::kStop);
  }
}

int32_t Generation::choose(int64_t position, const Allowed& allowed) {
  // Log probabilities need all logits in any case.
  const auto token = plan_.top_logprobs ? std::nullopt : choose_from_best(position, allowed);
  // Where the best do not tell the token, for none is allowed or a logit is not finite, the sampler says so.
  return token ? *token : sampler_.draw(sequence_->logits(), position, allowed);
}

std::optional<int32_t> Generation::choose_from_best(int64_t position, const Allowed& allowed) {
  if (sampler_.takes_likeliest()) return sequence_->likeliest(allowed, tokenizer_.size());
  if (!sampler_.takes_candidates()) return std::nullopt;
  const auto candidates = sequence_->candidates(allowed, tokenizer_.size());
  return candidates ? sampler_.draw_from(*candidates, position) : std::nullopt;
}

void Generation::take(int32_t token) {
  sampler_.accept(token);
  if (outcome_.completion_tokens < plan_.max_tokens) sequence_->prefetch({&token, 1});
  outcome_.token_ids.push_back(token);
  const bool reasoning = answer_.in_reasoning();
  Update update{.events = answer_.push(token)};
  steering_.accept(token, reasoning, answer_.in_reasoning());
  outcome_.reasoning_tokens = steering_.reasoning_tokens();
  if (plan_.top_logprobs) {
    const std::span<const float> logits = sequence_->logits();
    const size_t tokens = std::min(logits.size(), static_cast<size_t>(tokenizer_.size()));
    update.logprobs = step_logprobs(logits.first(tokens), token, *plan_.top_logprobs);
    update.logprobs->reasoning = reasoning;
  }
  if (answer_.stop_string()) {
    finish(FinishReason::kStop, std::move(update));
  } else if (outcome_.completion_tokens == plan_.max_tokens) {
    finish(FinishReason::kLength, std::move(update));
  } else if (steering_.repeats()) {
    finish(FinishReason::kRepeat, std::move(update));
  } else {
    deliver(std::move(update));
  }
}

void Generation::deliver(Update update) {
  if (update.events.empty() && !update.logprobs && !update.progress) return;
  send(update);
  if (sink_failed_) finish(FinishReason::kCancelled);
}

void Generation::finish(FinishReason reason, Update update) {
  const auto now = Clock::now();
  std::vector<text::OutputEvent>& events = update.events;
  if (reason != FinishReason::kCancelled && reason != FinishReason::kError) {
    auto rest = answer_.finish();
    events.insert(events.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
    outcome_.stop_string = answer_.stop_string();
    if (outcome_.stop_string) reason = FinishReason::kStop;  // the held back text completed one
    if (reason == FinishReason::kStop && answer_.has_tool_calls()) reason = FinishReason::kToolCalls;
  }
  ended_ = true;
  outcome_.reason = reason;
  outcome_.guards = steering_.counts();
  outcome_.guards.repeats_ended = reason == FinishReason::kRepeat ? 1 : 0;
  const bool started = started_ != Clock::time_point{};
  const bool prefilled = prefilled_ != Clock::time_point{};
  outcome_.timings = {.queued_seconds = seconds(submitted_, started ? started_ : now),
                      .prefill_seconds = started ? seconds(started_, prefilled ? prefilled_ : now) : 0,
                      .decode_seconds = prefilled ? seconds(prefilled_, now) : 0};
  sequence_.reset();  // its pages are free before the caller hears of the end
  update.outcome = outcome_;
  send(update);
}

void Generation::end_cancelled() {
  finish(FinishReason::kCancelled);
}

void Generation::end_with_error(base::ErrorKind kind, const std::string& message) {
  if (ended_) return;
  outcome_.error_kind = kind;
  outcome_.error = message;
  finish(FinishReason::kError);
}

void Generation::send(const Update& update) {
  if (sink_failed_) return;
  try {
    plan_.sink(update);
  } catch (const std::exception& error) {
    sink_failed_ = true;
    spdlog::warn("request {}: its receiver failed and gets no more: {}", plan_.id, error.what());
  } catch (...) {
    sink_failed_ = true;
    spdlog::warn("request {}: its receiver failed and gets no more", plan_.id);
  }
}

}  // namespace tandem::engine
