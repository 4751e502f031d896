// Ends an answer at a stop string, also where it is split over tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// Watches a stream of text. Not thread-safe; one an answer.
class StopStrings {
 public:
  // Throws base::Error{kBadInput} for an empty string and beyond kMaxStopStrings or kMaxStopBytes.
  explicit StopStrings(std::vector<std::string> strings);

  // The text that can be passed on: what could still become a stop string is held back. Once a stop string is complete,
  // the text before it is returned, matched() is set and nothing may be pushed any more.
  std::string push(std::string_view text);
  // The end of the text, or something other than text that no stop string spans: what was held back.
  std::string flush();

  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace tandem::engine
