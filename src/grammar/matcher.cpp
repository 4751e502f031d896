#include "grammar/matcher.h"

#include "grammar/automaton.h"
#include "grammar/state_cache.h"

namespace tandem::grammar {

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)), cache_(grammar_->cache(vocabulary_)) {
  enter(cache_->start());
}

void Matcher::enter(uint32_t state) {
  state_ = state;
  may_end_ = cache_->may_end(state);
  must_end_ = cache_->must_end(state);
}

// A cache that has grown full is given up for a new one by whoever comes first, and freed with its last user.
void Matcher::renew_cache() {
  std::shared_ptr<StateCache> current = grammar_->cache(vocabulary_);
  if (current == cache_) return;
  state_ = current->adopt(*cache_, state_);
  cache_ = std::move(current);
}

void Matcher::mask(std::span<uint64_t> out) {
  renew_cache();
  cache_->mask(state_, out);
}

bool Matcher::allows(int32_t token) const {
  const std::string_view bytes = vocabulary_->bytes(token);
  uint32_t state = state_;
  return !bytes.empty() && cache_->step(state, bytes);
}

bool Matcher::accept(int32_t token) {
  const std::string_view bytes = vocabulary_->bytes(token);
  return !bytes.empty() && accept_bytes(bytes);
}

bool Matcher::accept_bytes(std::string_view bytes) {
  renew_cache();
  uint32_t state = state_;
  if (!cache_->step(state, bytes)) return false;
  enter(state);
  return true;
}

}  // namespace tandem::grammar
