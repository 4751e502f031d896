#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "engine/request.h"

namespace tandem::engine {
namespace {

// Bytes at the end of `text` that are a proper beginning of `word`; the most there are.
size_t overlap(std::string_view text, std::string_view word) {
  for (size_t length = std::min(text.size(), word.size() - 1); length > 0; --length) {
    if (text.ends_with(word.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  if (strings_.size() > kMaxStopStrings) {
    base::bad_input("stop", "{} strings, at most {} are allowed", strings_.size(), kMaxStopStrings);
  }
  for (const auto& string : strings_) {
    if (string.empty()) base::bad_input("stop", "an empty string would end every answer at once");
    if (string.size() > kMaxStopBytes) {
      base::bad_input("stop", "a string of {} bytes, at most {} are allowed", string.size(), kMaxStopBytes);
    }
  }
}

std::string StopStrings::push(std::string_view text) {
  if (strings_.empty()) return std::string(text);
  held_ += text;
  // The one that completes first wins, and of those that complete together the longest: so the result does not depend
  // on how the text was split.
  size_t begin = 0;
  size_t end = std::string::npos;
  for (const auto& string : strings_) {
    const size_t at = held_.find(string);
    if (at == std::string::npos) continue;
    const size_t after = at + string.size();
    if (after < end || (after == end && at < begin)) {
      begin = at;
      end = after;
      matched_ = string;
    }
  }
  if (matched_) return std::exchange(held_, {}).substr(0, begin);

  size_t hold = 0;
  for (const auto& string : strings_) hold = std::max(hold, overlap(held_, string));
  std::string ready = held_.substr(0, held_.size() - hold);
  held_.erase(0, ready.size());
  return ready;
}

std::string StopStrings::flush() {
  return std::exchange(held_, {});
}

}  // namespace tandem::engine
