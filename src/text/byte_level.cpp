#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace tandem::text {

namespace {

constexpr int kAlphabetEnd = 0x144;  // one past the last character used

struct Alphabet {
  std::array<int, 256> character{};
  std::array<int, kAlphabetEnd> byte{};

  Alphabet() {
    byte.fill(-1);
    int next = 256;  // bytes that print nothing, or a blank, get the characters from U+0100 on, in order
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[static_cast<size_t>(b)] = printable ? b : next++;
      byte[static_cast<size_t>(character[static_cast<size_t>(b)])] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

std::string byte_to_character(uint8_t byte) {
  const int code_point = alphabet().character[byte];
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const Utf8Char next = utf8_at(spelling, at);
    if (next.kind != Utf8Kind::kValid || next.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet().byte[next.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    at += static_cast<size_t>(next.bytes);
  }
  return bytes;
}

}  // namespace tandem::text
