#include "text/whitespace.h"

#include <algorithm>

#include "text/utf8.h"

namespace tandem::text {

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char first = utf8_at(text, 0);
    if (first.kind != Utf8Kind::kValid || !is_space(first.code_point)) break;
    text.remove_prefix(static_cast<size_t>(first.bytes));
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;  // of the last character: before at most three continuation bytes
    while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    const Utf8Char last = utf8_at(text, begin);
    if (last.kind != Utf8Kind::kValid || begin + static_cast<size_t>(last.bytes) != text.size() ||
        !is_space(last.code_point)) {
      break;
    }
    text.remove_suffix(static_cast<size_t>(last.bytes));
  }
  return text;
}

}  // namespace tandem::text
