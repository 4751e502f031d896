#include "text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utf8proc.h>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace tandem::text {

namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// By combining class; marks of one class keep their order.
void sort_run(std::span<int32_t> marks) {
  std::vector<uint64_t> keys;  // class, place in the run, code point (21 bits)
  keys.reserve(marks.size());
  for (const int32_t mark : marks) {
    keys.push_back(static_cast<uint64_t>(combining_class(mark)) << 54 | uint64_t{keys.size()} << 21 |
                   static_cast<uint32_t>(mark));
  }
  std::sort(keys.begin(), keys.end());
  for (size_t i = 0; i < marks.size(); ++i) marks[i] = static_cast<int32_t>(keys[i] & 0x1FFFFF);
}

// utf8proc_decompose would do this for a whole string, but puts marks in order by neighbour swaps, which is quadratic
// in a run of marks that a caller may make as long as it likes.
void sort_marks(std::vector<int32_t>& code_points) {
  for (size_t at = 0; at < code_points.size();) {
    if (code_points[at] < 0x300 || combining_class(code_points[at]) == 0) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < code_points.size() && code_points[end] >= 0x300 && combining_class(code_points[end]) != 0) ++end;
    sort_run(std::span(code_points).subspan(at, end - at));
    at = end;
  }
}

// REQUIRES whole UTF-8 characters.
void append_nfc(std::string_view valid, std::string& out) {
  std::vector<int32_t> code_points;
  code_points.reserve(valid.size());
  int last_boundclass = 0;
  for (size_t at = 0; at < valid.size();) {
    const Utf8Char next = utf8_at(valid, at);
    at += static_cast<size_t>(next.bytes);
    int32_t decomposed[8];
    const auto count =
        utf8proc_decompose_char(static_cast<int32_t>(next.code_point), decomposed, 8, kOptions, &last_boundclass);
    if (count < 0 || count > 8) {
      base::internal_error("tokenizer", "utf8proc gives {} for U+{:04X}", count,
                           static_cast<uint32_t>(next.code_point));
    }
    code_points.insert(code_points.end(), decomposed, decomposed + count);
  }
  sort_marks(code_points);
  const auto length =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kOptions);
  if (length < 0) base::internal_error("tokenizer", "utf8proc gives {}: {}", length, utf8proc_errmsg(length));
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto count = utf8proc_encode_char(code_points[static_cast<size_t>(i)], bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(count));
  }
}

}  // namespace

bool is_trivially_nfc(std::string_view text) {
  // U+0300 is the first character that NFC may change or move; its first byte is 0xCC.
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string to_nfc(std::string_view text) {
  if (is_trivially_nfc(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t valid = utf8_valid_prefix(text, at);
    if (valid != 0) append_nfc(text.substr(at, valid), out);
    at += valid;
    if (at == text.size()) break;
    const auto skip = static_cast<size_t>(utf8_at(text, at).bytes);
    out.append(text.substr(at, skip));
    at += skip;
  }
  return out;
}

}  // namespace tandem::text
