#include "text/utf8.h"

#include <cstdint>

namespace tandem::text {

namespace {

struct Lead {
  int bytes;          // of the whole character; 0: no character begins with this byte
  uint8_t low, high;  // what the second byte may be (Unicode 15.0, table 3-7)
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char utf8_at(std::string_view text, size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  const Lead lead = lead_of(first);
  if (lead.bytes == 0) return {Utf8Kind::kInvalid, 1, 0};
  if (lead.bytes == 1) return {Utf8Kind::kValid, 1, first};
  char32_t code_point = first & (0x7F >> lead.bytes);
  for (int i = 1; i < lead.bytes; ++i) {
    if (at + static_cast<size_t>(i) >= text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(text[at + static_cast<size_t>(i)]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {Utf8Kind::kValid, lead.bytes, code_point};
}

size_t utf8_valid_prefix(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size()) {
    const Utf8Char next = utf8_at(text, end);
    if (next.kind != Utf8Kind::kValid) break;
    end += static_cast<size_t>(next.bytes);
  }
  return end - at;
}

size_t utf8_finished(std::string_view text) {
  // Only the last three bytes can be an unfinished character.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const Utf8Char last = utf8_at(text, text.size() - back);
    if (last.kind == Utf8Kind::kIncomplete && static_cast<size_t>(last.bytes) == back) return text.size() - back;
  }
  return text.size();
}

std::string utf8_repaired(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t valid = utf8_valid_prefix(text, at);
    out.append(text.substr(at, valid));
    at += valid;
    if (at == text.size()) break;
    out.append(kReplacementCharacter);
    at += static_cast<size_t>(utf8_at(text, at).bytes);
  }
  return out;
}

}  // namespace tandem::text
