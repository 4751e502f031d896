// Base64 of RFC 4648, section 4, with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::base {

std::string base64_encode(std::string_view bytes);

// Absent where `text` is not base64 with its padding, to the letter: no blanks, no bits beyond the bytes.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace tandem::base
