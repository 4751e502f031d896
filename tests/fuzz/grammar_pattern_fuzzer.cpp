// Any text as the pattern of a string: refused with an Error, or strings that it and its automaton agree on.
#include "base/error.h"
#include "base/json.h"
#include "grammar/pattern.h"
#include "grammar_walk.h"
#include "text/utf8.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string pattern = text::utf8_repaired({reinterpret_cast<const char*>(data), size});
  try {
    const grammar::CharDfa strings = grammar::compile_pattern(pattern, "pattern");
    fuzz::require(strings.matches(pattern) != strings.complement().matches(pattern));
    fuzz::walk_masks(grammar::compile_json_schema({{"type", "string"}, {"pattern", pattern}}), data, size);
  } catch (const base::Error& error) {
    fuzz::require(error.kind() == base::ErrorKind::kBadInput);
  }
  return 0;
}
