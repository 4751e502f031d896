#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tandem::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  pending_.append(tokenizer_.token_bytes(id));
  const size_t complete = utf8_finished(pending_);
  std::string whole = utf8_repaired(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return whole;
}

std::string Detokenizer::finish() {
  std::string rest = utf8_repaired(pending_);
  pending_.clear();
  return rest;
}

}  // namespace tandem::text
