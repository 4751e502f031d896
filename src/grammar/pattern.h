// Regular expressions of JSON schemas: the part of ECMAScript's that describes regular sets of strings.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "grammar/char_dfa.h"

namespace tandem::grammar {

// The strings in which the pattern is found: it may begin and end anywhere but where ^ and $ say. Throws
// base::Error{kBadInput} with `source`, naming the place, for what is malformed, for back references, look-around and
// word borders, and beyond the limits of size and depth.
CharDfa compile_pattern(std::string_view pattern, const std::string& source);

// Patterns that were compiled already. Not thread-safe.
class PatternCache {
 public:
  const CharDfa& get(const std::string& pattern, const std::string& source);

 private:
  std::map<std::string, CharDfa> patterns_;
};

}  // namespace tandem::grammar
