// Any bytes as an EBNF grammar: refused with an Error, or a grammar without dead ends.
#include "base/error.h"
#include "grammar_walk.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    fuzz::walk_masks(grammar::compile_ebnf({reinterpret_cast<const char*>(data), size}), data, size);
  } catch (const base::Error& error) {
    fuzz::require(error.kind() == base::ErrorKind::kBadInput);
  }
  return 0;
}
