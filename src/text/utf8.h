// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::text {

enum class Utf8Kind {
  kValid,
  kInvalid,     // these bytes can't begin or continue a character, whatever follows
  kIncomplete,  // the text ends within a character
};

struct Utf8Char {
  Utf8Kind kind = Utf8Kind::kInvalid;
  int bytes = 1;            // valid: of the character; otherwise: the bytes that stand for one U+FFFD
  char32_t code_point = 0;  // where valid
};

// The character at byte `at`; REQUIRES at < text.size().
Utf8Char utf8_at(std::string_view text, size_t at);

// Bytes from `at` on that are whole characters.
size_t utf8_valid_prefix(std::string_view text, size_t at);

// Bytes up to a character that the end of the text cuts, or all of them. What comes before may be invalid.
size_t utf8_finished(std::string_view text);

// `text` with each invalid or incomplete sequence replaced by U+FFFD.
std::string utf8_repaired(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace tandem::text
