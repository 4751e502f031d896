// The grammars of the last requests: an agent sends the same tools with every turn, and a grammar's token masks are
// found again with it.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "serve/output_format.h"

namespace tandem::serve {

// Thread-safe.
class GrammarCache {
 public:
  // answer_grammar, or what it gave for an equal request. Throws what answer_grammar throws.
  std::shared_ptr<const grammar::Grammar> get(const ToolRequest& tools, const OutputFormat& format);

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const grammar::Grammar>>;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace tandem::serve
