// The tokens of a tokenizer, laid out for finding all those that a grammar allows next.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {
class Tokenizer;
}

namespace tandem::grammar {

// Tokens as a trie of bytes, in the order of a walk from the root: a node is followed by its descendants.
struct TokenTrie {
  struct Node {
    uint32_t after = 0;        // the first node that is no descendant
    uint32_t first_token = 0;  // the node's own tokens in `tokens`; they end where the next node's begin
    uint16_t depth = 0;        // bytes from the root; the root itself is not stored
    uint8_t byte = 0;
  };
  std::vector<Node> nodes;  // and one more that ends the last
  std::vector<int32_t> tokens;
};

// Immutable; all members may be called from several threads. Built once a tokenizer.
class Vocabulary {
 public:
  // Special tokens (tokenizer.is_special) are never allowed by a mask; other added ones count as their bytes.
  explicit Vocabulary(const text::Tokenizer& tokenizer);
  // The bytes of each token, by id; empty where an id is never allowed. Throws base::Error{kBadInput} for a token of
  // more than 4,096 bytes, and for more than 16,777,216 tokens.
  explicit Vocabulary(std::vector<std::string> tokens);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  size_t mask_words() const { return (tokens_.size() + 63) / 64; }
  std::string_view bytes(int32_t token) const;  // empty where the token is never allowed, or out of range
  size_t longest() const { return longest_; }   // bytes

  const TokenTrie& trie() const { return trie_; }  // of all tokens
  // The tokens that are printable text: whole characters from U+0020 on, without ", \, < and >. Places where any text
  // may stand allow them all; only the others need a walk.
  std::span<const uint64_t> printable() const { return printable_; }
  const TokenTrie& unprintable() const { return unprintable_; }

  uint64_t serial() const { return serial_; }  // tells vocabularies of this process apart

 private:
  void build();

  std::vector<std::string> tokens_;
  size_t longest_ = 0;
  TokenTrie trie_, unprintable_;
  std::vector<uint64_t> printable_;
  uint64_t serial_ = 0;
};

}  // namespace tandem::grammar
