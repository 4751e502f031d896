#include "text/added_tokens.h"

#include <algorithm>

namespace tandem::text {

void AddedTokenMatcher::add(std::string content, int32_t id) {
  auto& bucket = by_first_byte_[static_cast<uint8_t>(content.front())];
  const auto place = std::find_if(bucket.begin(), bucket.end(),
                                  [&](uint32_t other) { return entries_[other].content.size() < content.size(); });
  bucket.insert(place, static_cast<uint32_t>(entries_.size()));
  entries_.push_back({std::move(content), id});
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, size_t start) const {
  for (size_t at = start; at < text.size(); ++at) {
    for (const uint32_t index : by_first_byte_[static_cast<uint8_t>(text[at])]) {
      const Entry& entry = entries_[index];
      if (text.substr(at).starts_with(entry.content)) return {at, at + entry.content.size(), entry.id};
    }
  }
  return {text.size(), text.size(), -1};
}

}  // namespace tandem::text
