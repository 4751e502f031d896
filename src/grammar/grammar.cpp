#include "grammar/grammar.h"

#include <list>
#include <mutex>

#include "grammar/automaton.h"
#include "grammar/state_cache.h"

namespace tandem::grammar {

namespace {

// A process serves one tokenizer; tests use several.
constexpr size_t kMaxVocabularies = 4;

}  // namespace

struct Grammar::Caches {
  std::mutex mutex;
  std::list<std::shared_ptr<StateCache>> by_use;  // the last used first
};

Grammar::Grammar(Automaton automaton)
    : automaton_(std::make_unique<const Automaton>(std::move(automaton))), caches_(std::make_unique<Caches>()) {}

Grammar::~Grammar() = default;

std::shared_ptr<StateCache> Grammar::cache(const std::shared_ptr<const Vocabulary>& vocabulary) const {
  const std::lock_guard lock(caches_->mutex);
  auto& caches = caches_->by_use;
  for (auto at = caches.begin(); at != caches.end(); ++at) {
    if ((*at)->vocabulary().serial() != vocabulary->serial()) continue;
    caches.splice(caches.begin(), caches, at);
    if (caches.front()->bytes() > kCacheBytes) caches.front() = std::make_shared<StateCache>(*automaton_, vocabulary);
    return caches.front();
  }
  caches.push_front(std::make_shared<StateCache>(*automaton_, vocabulary));
  if (caches.size() > kMaxVocabularies) caches.pop_back();
  return caches.front();
}

}  // namespace tandem::grammar
