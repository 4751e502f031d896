// Strings that become one token each wherever they stand in a text, such as "<|im_start|>".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

// Finds the leftmost added token of a text, and the longest of those that begin there. Immutable once built.
class AddedTokenMatcher {
 public:
  // REQUIRES a content that is not empty and was not added before.
  void add(std::string content, int32_t id);
  bool empty() const { return entries_.empty(); }

  struct Match {
    size_t begin = 0, end = 0;  // bytes of the text
    int32_t id = -1;            // -1: none from `start` on
  };
  Match find(std::string_view text, size_t start) const;

 private:
  struct Entry {
    std::string content;
    int32_t id = 0;
  };
  std::vector<Entry> entries_;
  std::array<std::vector<uint32_t>, 256> by_first_byte_;  // into entries_, the longest content first
};

}  // namespace tandem::text
