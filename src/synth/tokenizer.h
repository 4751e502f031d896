// A tokenizer.json for a synthetic model: byte-level BPE with as many tokens as the config's vocabulary, made by rule.
//
// The tokens are the 256 bytes, then made-up words of letters, short ones first, each with the merge that makes it from
// a shorter one and a letter; then the 33 added tokens of the family. Text of any kind can be written in them.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::synth {

// Throws base::Error{kBadInput} where the vocabulary is too small for the bytes and the added tokens.
std::string tokenizer_json(int64_t vocab);
std::string generation_config_json(int64_t vocab);

}  // namespace tandem::synth
