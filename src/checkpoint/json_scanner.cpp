#include "checkpoint/json_scanner.h"

#include <array>

namespace tandem::checkpoint {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// True for the bytes of a string that need no attention: ASCII without controls, quote and backslash.
constexpr std::array<bool, 256> make_plain() {
  std::array<bool, 256> plain{};
  for (size_t c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}
constexpr std::array<bool, 256> kPlain = make_plain();

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

bool has_control_characters(std::string_view utf8) {
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    if (c < 0x20 || c == 0x7F) return true;
    // C1, U+0080 to U+009F
    if (c == 0xC2 && i + 1 < utf8.size() && static_cast<unsigned char>(utf8[i + 1]) < 0xA0) return true;
  }
  return false;
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 64));
  for (char& c : out) {
    if (c < 0x20 || c >= 0x7F) c = '?';
  }
  return text.size() > 64 ? out + "..." : out;
}

void JsonScanner::skip_space() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    ++position_;
  }
}

char JsonScanner::peek() {
  skip_space();
  return position_ < text_.size() ? text_[position_] : '\0';
}

bool JsonScanner::accept(char c) {
  skip_space();
  if (position_ >= text_.size() || text_[position_] != c) return false;
  ++position_;
  return true;
}

void JsonScanner::expect(char c) {
  if (accept(c)) return;
  if (position_ >= text_.size()) fail("the text ends where '{}' is expected", c);
  fail("'{}' is expected", c);
}

void JsonScanner::expect_end() {
  skip_space();
  if (position_ < text_.size()) fail("nothing may follow the closing brace");
}

std::string_view JsonScanner::string() {
  expect('"');
  size_t start = position_;  // of what is not yet copied to scratch_
  bool escaped = false;
  while (true) {
    while (position_ < text_.size() && kPlain[static_cast<unsigned char>(text_[position_])]) ++position_;
    if (position_ >= text_.size()) fail("the text ends inside a string");
    const auto c = static_cast<unsigned char>(text_[position_]);
    if (c == '"') break;
    if (c == '\\') {
      if (!escaped) scratch_.clear();
      escaped = true;
      scratch_.append(text_, start, position_ - start);
      decode_escape();
      start = position_;
    } else if (c < 0x20) {
      fail("a string holds the control character 0x{:02X}", c);
    } else {
      skip_utf8();
    }
  }
  const std::string_view rest = text_.substr(start, position_ - start);
  ++position_;
  if (!escaped) return rest;
  scratch_.append(rest);
  return scratch_;
}

void JsonScanner::decode_escape() {
  ++position_;  // the backslash
  if (position_ >= text_.size()) fail("the text ends inside a string");
  static constexpr std::string_view kLetters = "\"\\/bfnrt";
  static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = text_[position_];
  if (const size_t at = kLetters.find(letter); at != std::string_view::npos) {
    scratch_.push_back(kMeanings[at]);
    ++position_;
    return;
  }
  if (letter != 'u') fail("an unknown escape");
  ++position_;
  uint32_t code = hex4();
  if (code >= 0xD800 && code < 0xDC00) {
    if (text_.substr(position_, 2) != "\\u") fail("a surrogate without its partner");
    position_ += 2;
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("a surrogate without its partner");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code <= 0xDFFF) {
    fail("a surrogate without its partner");
  }
  append_utf8(scratch_, code);
}

uint32_t JsonScanner::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = position_ < text_.size() ? text_[position_] : '\0';
    uint32_t digit = 0;
    if (is_digit(c)) {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A') + 10;
    } else {
      fail("four hexadecimal digits are expected");
    }
    value = value << 4 | digit;
    ++position_;
  }
  return value;
}

// One character beyond ASCII. Overlong forms, surrogates and codes beyond U+10FFFF are not UTF-8.
void JsonScanner::skip_utf8() {
  const auto byte = [this](size_t i) {
    return position_ + i < text_.size() ? static_cast<unsigned char>(text_[position_ + i]) : 0u;
  };
  const uint32_t lead = byte(0);
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  uint32_t least = 0x80;
  uint32_t most = 0xBF;
  if (lead == 0xE0) least = 0xA0;
  if (lead == 0xED) most = 0x9F;
  if (lead == 0xF0) least = 0x90;
  if (lead == 0xF4) most = 0x8F;
  bool valid = lead >= 0xC2 && lead <= 0xF4 && byte(1) >= least && byte(1) <= most;
  for (size_t i = 2; i < length; ++i) valid = valid && byte(i) >= 0x80 && byte(i) <= 0xBF;
  if (!valid) fail("a string is not UTF-8");
  position_ += length;
}

uint64_t JsonScanner::unsigned_integer(uint64_t limit, std::string_view what) {
  skip_space();
  const size_t start = position_;
  uint64_t value = 0;
  while (position_ < text_.size() && is_digit(text_[position_])) {
    const auto digit = static_cast<uint64_t>(text_[position_] - '0');
    if (digit > limit || value > (limit - digit) / 10) fail("{} is larger than {}", what, limit);
    value = value * 10 + digit;
    ++position_;
  }
  const size_t digits = position_ - start;
  const char next = position_ < text_.size() ? text_[position_] : '\0';
  if (digits == 0 || next == '.' || next == 'e' || next == 'E') fail("{} must be a whole number, not negative", what);
  if (digits > 1 && text_[start] == '0') fail("{} begins with a zero", what);
  return value;
}

void JsonScanner::skip_number() {
  const auto digits = [this] {
    const size_t start = position_;
    while (position_ < text_.size() && is_digit(text_[position_])) ++position_;
    if (position_ == start) fail("a value is expected");
  };
  if (text_[position_] == '-') ++position_;
  const size_t start = position_;
  digits();
  if (position_ - start > 1 && text_[start] == '0') fail("a number begins with a zero");
  if (position_ < text_.size() && text_[position_] == '.') {
    ++position_;
    digits();
  }
  if (position_ < text_.size() && (text_[position_] == 'e' || text_[position_] == 'E')) {
    ++position_;
    if (position_ < text_.size() && (text_[position_] == '+' || text_[position_] == '-')) ++position_;
    digits();
  }
}

void JsonScanner::skip_value(int depth) {
  const char first = peek();
  if ((first == '{' || first == '[') && depth <= 0) fail("the nesting is too deep");
  if (first == '{') {
    std::unordered_set<std::string> keys;
    object([&](std::string_view key) {
      if (!keys.emplace(key).second) fail("a key stands twice in one object");
      skip_value(depth - 1);
    });
  } else if (first == '[') {
    array([&] { skip_value(depth - 1); });
  } else if (first == '"') {
    (void)string();
  } else if (first == '-' || is_digit(first)) {
    skip_number();
  } else {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return;
      }
    }
    fail("a value is expected");
  }
}

}  // namespace tandem::checkpoint
