// Cuts a Jinja template into the tokens of its tags, far enough to find string literals and what stands around them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

struct JinjaToken {
  enum class Kind {
    kData,    // text outside tags that is more than blanks
    kOpen,    // {{ or {%
    kClose,   // }} or %}
    kName,    // a name or a number
    kString,  // a literal; `text` is its value
    kSymbol,  // one character of punctuation
  };
  Kind kind = Kind::kData;
  std::string text;  // for opening and closing tags without the "-" or "+" of whitespace control
};

// Comments are left out. Throws base::Error{kBadInput} with `source` for a tag, comment or literal without an end.
std::vector<JinjaToken> lex_jinja(std::string_view jinja, const std::string& source);

}  // namespace tandem::text
