#include "text/jinja_lexer.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace tandem::text {

namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    out += {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  }
}

class Lexer {
 public:
  Lexer(std::string_view jinja, const std::string& source) : text_(jinja), source_(source) {}

  std::vector<JinjaToken> run() {
    while (at_ < text_.size()) {
      const size_t tag = next_tag();
      const std::string_view data = text_.substr(at_, tag - at_);
      if (!std::all_of(data.begin(), data.end(), is_blank)) add(JinjaToken::Kind::kData, std::string(data));
      at_ = tag;
      if (at_ == text_.size()) break;
      if (text_[at_ + 1] == '#') {
        skip_comment();
      } else {
        read_tag();
      }
    }
    return std::move(tokens_);
  }

 private:
  size_t next_tag() const {
    size_t at = text_.find('{', at_);
    while (at < text_.size() &&
           !(at + 1 < text_.size() && std::string_view("{%#").find(text_[at + 1]) != std::string_view::npos)) {
      at = text_.find('{', at + 1);
    }
    return std::min(at, text_.size());
  }

  void add(JinjaToken::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text)}); }

  [[noreturn]] void unfinished(const char* what, size_t begin) {
    base::bad_input(source_, "the {} that begins at byte {} has no end", what, begin);
  }

  void skip_comment() {
    const size_t end = text_.find("#}", at_ + 2);
    if (end == std::string_view::npos) unfinished("comment", at_);
    at_ = end + 2;
  }

  void read_tag() {
    const size_t begin = at_;
    const char closing = text_[at_ + 1] == '{' ? '}' : '%';
    add(JinjaToken::Kind::kOpen, std::string(text_.substr(at_, 2)));
    at_ += 2;
    if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (is_blank(c)) {
        ++at_;
      } else if (c == '"' || c == '\'') {
        add(JinjaToken::Kind::kString, read_string());
      } else if (is_name(c)) {
        const size_t name = at_;
        while (at_ < text_.size() && is_name(text_[at_])) ++at_;
        add(JinjaToken::Kind::kName, std::string(text_.substr(name, at_ - name)));
      } else if (const size_t bytes = closing_bytes(closing); bytes != 0) {
        add(JinjaToken::Kind::kClose, {closing, '}'});
        at_ += bytes;
        return;
      } else {
        add(JinjaToken::Kind::kSymbol, std::string(1, c));
        ++at_;
      }
    }
    unfinished("tag", begin);
  }

  size_t closing_bytes(char closing) const {
    const std::string_view rest = text_.substr(at_);
    const size_t sign = rest.starts_with('-') || rest.starts_with('+') ? 1 : 0;
    const bool closes = rest.size() >= sign + 2 && rest[sign] == closing && rest[sign + 1] == '}';
    return closes ? sign + 2 : 0;
  }

  std::string read_string() {
    const size_t begin = at_;
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        read_escape(value);
      } else {
        value += text_[at_++];
      }
    }
    if (at_ == text_.size()) unfinished("string", begin);
    ++at_;
    return value;
  }

  // Python's escapes; one it does not know stands for itself, backslash included.
  void read_escape(std::string& value) {
    const char c = text_[at_ + 1];
    constexpr std::string_view kLetters = "ntrbfva\\'\"", kValues = "\n\t\r\b\f\v\a\\'\"";
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      value += kValues[i];
      at_ += 2;
    } else if (const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0; digits != 0 && hex(at_ + 2, digits) >= 0) {
      append_utf8(value, static_cast<uint32_t>(hex(at_ + 2, digits)));
      at_ += 2 + digits;
    } else {
      value += '\\';
      at_ += 1;
    }
  }

  int hex(size_t at, size_t digits) const {
    if (at + digits > text_.size()) return -1;
    int value = 0;
    for (const char c : text_.substr(at, digits)) {
      const size_t digit = std::string_view("0123456789abcdefABCDEF").find(c);
      if (digit == std::string_view::npos) return -1;
      value = value * 16 + static_cast<int>(digit < 16 ? digit : digit - 6);
    }
    return value;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  std::vector<JinjaToken> tokens_;
};

}  // namespace

std::vector<JinjaToken> lex_jinja(std::string_view jinja, const std::string& source) {
  return Lexer(jinja, source).run();
}

}  // namespace tandem::text
