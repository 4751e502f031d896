#include "grammar/vocabulary.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tandem::grammar {

namespace {

constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxTokens = size_t{1} << 24;

bool is_printable(std::string_view bytes) {
  for (const char c : bytes) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>') return false;
  }
  return text::utf8_valid_prefix(bytes, 0) == bytes.size();
}

// REQUIRES: ids sorted by their bytes, none of them empty.
TokenTrie trie_of(const std::vector<std::string>& tokens, const std::vector<int32_t>& ids) {
  TokenTrie trie;
  trie.tokens.reserve(ids.size());
  std::vector<uint32_t> open;  // the nodes of the previous token, by depth
  const auto close_to = [&](size_t depth) {
    while (open.size() > depth) {
      trie.nodes[open.back()].after = static_cast<uint32_t>(trie.nodes.size());
      open.pop_back();
    }
  };
  std::string_view previous;
  for (const int32_t id : ids) {
    const std::string& bytes = tokens[static_cast<size_t>(id)];
    const auto common = static_cast<size_t>(
        std::mismatch(previous.begin(), previous.end(), bytes.begin(), bytes.end()).second - bytes.begin());
    close_to(common);
    for (size_t at = common; at < bytes.size(); ++at) {
      open.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({0, static_cast<uint32_t>(trie.tokens.size()), static_cast<uint16_t>(at + 1),
                            static_cast<uint8_t>(bytes[at])});
    }
    trie.tokens.push_back(id);
    previous = bytes;
  }
  close_to(0);
  trie.nodes.push_back({0, static_cast<uint32_t>(trie.tokens.size()), 0, 0});
  return trie;
}

}  // namespace

Vocabulary::Vocabulary(const text::Tokenizer& tokenizer) {
  tokens_.resize(static_cast<size_t>(tokenizer.size()));
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    if (!tokenizer.is_special(id)) tokens_[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  build();
}

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  build();
}

void Vocabulary::build() {
  if (tokens_.size() > kMaxTokens) {
    base::bad_input("vocabulary", "has {} tokens; at most {} are supported", tokens_.size(), kMaxTokens);
  }
  static std::atomic<uint64_t> next_serial{1};
  serial_ = next_serial++;
  std::vector<int32_t> ids;
  ids.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].size() > kMaxTokenBytes) {
      base::bad_input("vocabulary", "token {} has {} bytes; at most {} are supported", id, tokens_[id].size(),
                      kMaxTokenBytes);
    }
    longest_ = std::max(longest_, tokens_[id].size());
    if (!tokens_[id].empty()) ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids.begin(), ids.end(), [this](int32_t a, int32_t b) {
    const int order = tokens_[static_cast<size_t>(a)].compare(tokens_[static_cast<size_t>(b)]);
    return order != 0 ? order < 0 : a < b;
  });
  trie_ = trie_of(tokens_, ids);

  printable_.assign(mask_words(), 0);
  std::vector<int32_t> others;
  for (const int32_t id : ids) {
    const auto index = static_cast<size_t>(id);
    if (is_printable(tokens_[index])) {
      printable_[index / 64] |= uint64_t{1} << (index % 64);
    } else {
      others.push_back(id);
    }
  }
  unprintable_ = trie_of(tokens_, others);
}

std::string_view Vocabulary::bytes(int32_t token) const {
  if (token < 0 || token >= size()) return {};
  return tokens_[static_cast<size_t>(token)];
}

}  // namespace tandem::grammar
