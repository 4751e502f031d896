// Any bytes as tokenizer.json: refused with an Error, or a tokenizer that works.
#include "base/error.h"
#include "demo_model.h"
#include "text/tokenizer.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = text::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "tokenizer.json");
    const std::string text = "Hello, <|im_start|> w\xC3\xB6rld 12  \n\n\xFF";
    for (const int32_t id : tokenizer.encode(text, text::AddedTokens::kParse)) {
      fuzz::require(id >= 0 && id < tokenizer.size() && !tokenizer.token_bytes(id).empty());
    }
  } catch (const base::Error&) {
  }
  return 0;
}
