// Blanks as Python's str.strip (and so Jinja's trim) counts them.
#pragma once

#include <string_view>

namespace tandem::text {

bool is_space(char32_t code_point);

std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
inline std::string_view strip(std::string_view text) {
  return strip_right(strip_left(text));
}

}  // namespace tandem::text
