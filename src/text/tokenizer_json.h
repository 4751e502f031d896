// What a tokenizer.json says, checked and in the form the tokenizer works with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"

namespace tandem::text {

struct AddedTokenEntry {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  // looked for in the text after NFC instead of before
};

struct TokenizerData {
  std::string split_pattern;
  std::vector<std::string> token_bytes;  // by id, added tokens too; empty where the id names no token
  std::vector<int32_t> byte_tokens;      // [256] the token of each single byte
  std::vector<Merge> merges;             // by rank
  std::vector<AddedTokenEntry> added;
  // ignore_merges: a word that is a token as a whole is that token. Empty where the flag is false.
  std::unordered_map<std::string, int32_t> whole_words;
};

// Throws base::Error{kBadInput} that names `source` and the part at fault.
TokenizerData read_tokenizer_json(std::string_view json, const std::string& source);

}  // namespace tandem::text
