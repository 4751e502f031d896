#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tandem::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  pending_.append(tokenizer_.token_bytes(id));
  // Only the last three bytes can be an unfinished character.
  size_t complete = pending_.size();
  for (size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
    const size_t at = pending_.size() - back;
    const Utf8Char last = utf8_at(pending_, at);
    if (last.kind == Utf8Kind::kIncomplete && static_cast<size_t>(last.bytes) == back) {
      complete = at;
      break;
    }
  }
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
