#include "engine/steering.h"

#include <algorithm>
#include <utility>

#include "text/whitespace.h"

namespace tandem::engine {

Steering::Steering(Options options, const text::Tokenizer& tokenizer)
    : options_(std::move(options)), tokenizer_(tokenizer), in_reasoning_(options_.starts_in_reasoning) {
  if (!options_.grammar) return;
  mask_.resize((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  if (!in_reasoning_) matcher_.emplace(options_.grammar, options_.vocabulary);
}

bool Steering::is_end(int32_t token) const {
  return std::binary_search(options_.end_tokens.begin(), options_.end_tokens.end(), token);
}

int32_t Steering::take_forced() {
  const int32_t token = forced_.front();
  forced_.pop_front();
  return token;
}

// As the model ends its reasoning itself: on a line of its own, with a blank line after it.
void Steering::close_reasoning() {
  closed_ = true;
  const bool on_new_line = last_ < 0 || tokenizer_.token_bytes(last_).ends_with('\n');
  const auto tokens = tokenizer_.encode(on_new_line ? "</think>\n\n" : "\n</think>\n\n", text::AddedTokens::kParse);
  forced_.assign(tokens.begin(), tokens.end());
}

Allowed Steering::allowed() {
  Allowed out;
  if (matcher_) {
    matcher_->mask(mask_);
    if (matcher_->may_end()) {
      for (const int32_t end : options_.end_tokens) {
        mask_[static_cast<size_t>(end) / 64] |= uint64_t{1} << (static_cast<size_t>(end) % 64);
      }
    }
    out.mask = mask_;
  }
  if (tokens_ < options_.min_tokens) out.banned = options_.end_tokens;
  return out;
}

std::optional<int32_t> Steering::next(const Draw& draw) {
  const bool over_budget = options_.max_reasoning_tokens && reasoning_tokens_ >= *options_.max_reasoning_tokens;
  if (in_reasoning_ && !closed_ && over_budget) close_reasoning();
  if (!forced_.empty()) return take_forced();
  if (matcher_ && matcher_->must_end()) return std::nullopt;
  Allowed choice = allowed();
  int32_t token = draw(tokens_, choice);
  if (!is_end(token)) return token;
  if (in_reasoning_) {
    if (!options_.guards.open_thinking || closed_) return std::nullopt;
    ++counts_.reasoning_closed;
    close_reasoning();
    return take_forced();
  }
  const bool says_nothing = options_.starts_in_reasoning && !said_;
  if (!says_nothing || !options_.guards.empty_answer) return std::nullopt;
  ++counts_.ends_redrawn;
  choice.banned = options_.end_tokens;
  return draw(tokens_, choice);
}

void Steering::accept(int32_t token, bool reasoning_before, bool reasoning_after) {
  ++tokens_;
  repeats_ = token == last_ ? repeats_ + 1 : 1;
  last_ = token;
  in_reasoning_ = reasoning_after;
  if (reasoning_before) {
    if (!closed_) ++reasoning_tokens_;  // what closes the reasoning by force is none of the model's
    if (!reasoning_after && options_.grammar) matcher_.emplace(options_.grammar, options_.vocabulary);
    return;
  }
  if (!said_) said_ = !text::strip(tokenizer_.token_bytes(token)).empty();
  // Forced tokens are blank lines, which every grammar takes at its beginning.
  if (matcher_ && !matcher_->accept(token)) {
    base::internal_error("grammar", "token {} was drawn where the grammar forbids it", token);
  }
}

}  // namespace tandem::engine
