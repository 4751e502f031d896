// What the fuzzers of grammars do with one that compiled.
#pragma once

#include <bit>
#include <memory>
#include <vector>

#include "demo_model.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"

namespace tandem::fuzz {

// Every byte, and a few tokens of several: masks are what is fuzzed, not the vocabulary.
inline std::shared_ptr<const grammar::Vocabulary> small_vocabulary() {
  static const auto kVocabulary = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* token : {"{\"", "\":", "\",\"", "}}", "[[", "]]", "ab", "aaaa", " the", "12", "\\u00", "\xC3\xA9",
                              "\xF0\x9F\x98", "\n  ", "null", "</parameter>"}) {
      tokens.emplace_back(token);
    }
    return std::make_shared<const grammar::Vocabulary>(std::move(tokens));
  }();
  return kVocabulary;
}

// Follows masks by the numbers of `choices`; each token's bit must say what accept says, and no place may be a dead
// end.
inline void walk_masks(const std::shared_ptr<const grammar::Grammar>& grammar, const uint8_t* choices, size_t count) {
  const auto vocabulary = small_vocabulary();
  grammar::Matcher matcher(grammar, vocabulary);
  std::vector<uint64_t> mask(vocabulary->mask_words());
  for (size_t step = 0; step < std::min<size_t>(count, 24) && !matcher.must_end(); ++step) {
    matcher.mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocabulary->size(); ++token) {
      const bool masked = (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
      if (step < 4) require(masked == matcher.allows(token));
      if (masked) allowed.push_back(token);
    }
    require(!allowed.empty());
    require(matcher.accept(allowed[choices[step] % allowed.size()]));
  }
}

}  // namespace tandem::fuzz
