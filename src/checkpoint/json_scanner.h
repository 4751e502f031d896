// A pull scanner for JSON whose shape is known in advance: the headers and indices of checkpoints, which run to tens of
// megabytes. It builds no tree and never recurses beyond the depth it is given.
//
// Everything is strict: UTF-8, no raw control characters, no duplicate keys, no leading zeros. Errors are
// base::Error{kBadInput} whose source is the file and whose message has the byte position.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/error.h"

namespace tandem::checkpoint {

class JsonScanner {
 public:
  // `text` and `source` must outlive the scanner.
  JsonScanner(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  // The next character that is not white space, not consumed; '\0' at the end.
  char peek();
  // Consumes `c` if it is next.
  bool accept(char c);
  void expect(char c);
  // A string, decoded. The view points into the text or into the scanner and lasts until the next call.
  std::string_view string();
  // A whole number without sign, point or exponent, at most `limit`. `what` names it in messages.
  uint64_t unsigned_integer(uint64_t limit, std::string_view what);
  // Any value, nested at most `depth` levels; duplicate keys are refused in it too.
  void skip_value(int depth);
  // Nothing but white space may follow.
  void expect_end();

  // An object: on_key(key) must consume the value. Duplicate keys are the caller's to find; the key lasts until the
  // next call of the scanner.
  template <typename OnKey>
  void object(OnKey on_key) {
    expect('{');
    if (accept('}')) return;
    do {
      const std::string_view key = string();
      expect(':');
      on_key(key);
    } while (accept(','));
    expect('}');
  }

  // An array: on_element() must consume one value.
  template <typename OnElement>
  void array(OnElement on_element) {
    expect('[');
    if (accept(']')) return;
    do {
      on_element();
    } while (accept(','));
    expect(']');
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    base::bad_input(source_, "is not valid at byte {}: {}", position_,
                    fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void skip_space();
  void decode_escape();
  uint32_t hex4();
  void skip_utf8();
  void skip_number();

  std::string_view text_;
  const std::string& source_;
  size_t position_ = 0;
  std::string scratch_;
};

// Whether decoded text holds a control character (C0, DEL or C1): no name may.
bool has_control_characters(std::string_view utf8);
// At most 64 bytes of a text from a file, with '?' for what would not print in one line.
std::string printable(std::string_view text);

}  // namespace tandem::checkpoint
