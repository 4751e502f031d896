// Any bytes as text: nothing is lost, and the detokenizer gives whole characters. The first two bytes say where the
// text is cut into pieces.
#include <algorithm>

#include "demo_model.h"
#include "text/nfc.h"
#include "text/utf8.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto& tokenizer = fuzz::demo_tokenizer();
  const auto ids = tokenizer.encode(text, text::AddedTokens::kPlain);
  const std::string bytes = tokenizer.decode(ids, false);
  fuzz::require(bytes == text::to_nfc(text));
  text::Detokenizer detokenizer(tokenizer, true);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    fuzz::require(text::utf8_valid_prefix(part, 0) == part.size());
    streamed += part;
  }
  fuzz::require(streamed + detokenizer.finish() == text::utf8_repaired(bytes));

  const size_t first = std::min<size_t>(data[0], text.size());
  const size_t second = std::min<size_t>(data[1], text.size() - first);
  const text::TextPiece pieces[] = {{text.substr(0, first), text::AddedTokens::kPlain},
                                    {text.substr(first, second), text::AddedTokens::kParse},
                                    {text.substr(first + second), text::AddedTokens::kPlain}};
  for (const int32_t id : tokenizer.encode(pieces)) fuzz::require(id >= 0 && id < tokenizer.size());
  return 0;
}
