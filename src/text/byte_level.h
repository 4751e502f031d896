// The alphabet of byte-level BPE: one printable character stands for each byte, so that any bytes can be written as
// text in tokenizer.json (the map of GPT-2's encoder).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::text {

// The UTF-8 spelling of the character that stands for `byte`.
std::string byte_to_character(uint8_t byte);

// The bytes a token is spelled for; nothing where it has a character outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

}  // namespace tandem::text
