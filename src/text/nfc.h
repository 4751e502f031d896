// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace tandem::text {

// `text` in NFC, by the Unicode version of utf8proc. Bytes that are not UTF-8 are kept as they are. Time is linear up
// to the logarithm of the longest run of combining marks.
std::string to_nfc(std::string_view text);

// True where to_nfc(text) is `text` for sure (no character from U+0300 on), which is quick to see.
bool is_trivially_nfc(std::string_view text);

}  // namespace tandem::text
