#include "serve/grammar_cache.h"

#include <algorithm>

namespace tandem::serve {

namespace {

constexpr size_t kKeptGrammars = 16;

// All that the grammar depends on.
std::string grammar_key(const ToolRequest& tools, const OutputFormat& format) {
  const base::Json key = {tools.tools,
                          static_cast<int>(tools.choice.mode),
                          tools.choice.name,
                          tools.parallel,
                          static_cast<int>(format.kind),
                          format.schema,
                          format.grammar,
                          format.blank_lines};
  return key.dump(-1, ' ', false, base::Json::error_handler_t::replace);
}

}  // namespace

std::shared_ptr<const grammar::Grammar> GrammarCache::get(const ToolRequest& tools, const OutputFormat& format) {
  if (!forces_something(tools, format)) return nullptr;
  const std::string key = grammar_key(tools, format);
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.first == key; });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      return entries_.front().second;
    }
  }
  auto grammar = answer_grammar(tools, format);  // not under the lock: it may take some milliseconds
  const std::lock_guard lock(mutex_);
  entries_.emplace_front(key, grammar);
  if (entries_.size() > kKeptGrammars) entries_.pop_back();
  return grammar;
}

}  // namespace tandem::serve
