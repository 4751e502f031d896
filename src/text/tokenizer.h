// Byte-level BPE as tokenizer.json describes it: NFC, a split pattern, merges, added tokens with their flags
// (docs/text.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

enum class AddedTokens {
  kParse,  // strings of added tokens in the text become those tokens
  kPlain,  // they are text like any other
};

struct TextPiece {
  std::string_view text;
  AddedTokens added = AddedTokens::kPlain;
};

// Immutable; all members may be called from several threads.
class Tokenizer {
 public:
  // The text of tokenizer.json. Throws base::Error{kBadInput} for another model, normaliser or pre-tokenizer than this
  // family uses, for ids out of range and for merges that name no token.
  static Tokenizer from_json(std::string_view tokenizer_json, const std::string& source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes: what is not UTF-8 is encoded byte by byte. Time is linear in the text up to a logarithm. Throws
  // base::Error{kBadInput} for a text of 1 GiB or more, and where the file's split pattern exceeds its limits.
  std::vector<int32_t> encode(std::string_view text, AddedTokens added) const;
  // The pieces as one text: a word may begin in one piece and end in the next. Added tokens are looked for within each
  // piece that says kParse, and nowhere else.
  std::vector<int32_t> encode(std::span<const TextPiece> pieces) const;

  // The bytes of the tokens, which need not be whole characters (Detokenizer assembles them). An id out of range gives
  // no bytes. Special tokens are left out where skip_special is set.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  std::string_view token_bytes(int32_t id) const;  // empty where the id names no token
  bool is_special(int32_t id) const;               // an added token with special: true
  bool is_added(int32_t id) const;
  std::optional<int32_t> added_token(std::string_view content) const;
  int32_t size() const;  // one more than the largest id

  struct Impl;

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of tokens into text that is always whole UTF-8 characters; bytes that can't be part of a character
// become U+FFFD. One stream each; not thread-safe. REQUIRES that the tokenizer outlives it.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special);

  // The characters completed by this token; possibly none.
  std::string push(int32_t id);
  // What is left at the end of the stream: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;  // the bytes of an unfinished character, at most 3
};

}  // namespace tandem::text
