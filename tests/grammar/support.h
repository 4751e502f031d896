// What the tests of grammars share.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "grammar/vocabulary.h"
#include "tests/text/test_files.h"

namespace tandem::grammar {

inline std::shared_ptr<const Vocabulary> demo_vocabulary() {
  static const auto kVocabulary = std::make_shared<const Vocabulary>(text::demo_tokenizer());
  return kVocabulary;
}

inline base::Json json(std::string_view text) {
  return base::parse_json(text, "test");
}

inline std::shared_ptr<const Grammar> schema_grammar(std::string_view schema, SchemaOptions options = {}) {
  return compile_json_schema(json(schema), options);
}

// Whether the grammar takes the whole text.
inline bool takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar, demo_vocabulary());
  return matcher.accept_bytes(text) && matcher.may_end();
}

inline std::vector<uint64_t> mask_of(Matcher& matcher) {
  std::vector<uint64_t> mask(matcher.vocabulary().mask_words());
  matcher.mask(mask);
  return mask;
}

inline bool has_bit(const std::vector<uint64_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
}

// What is said about a compilation that must fail.
template <typename Compile>
std::string refusal(Compile&& compile) {
  try {
    compile();
  } catch (const base::Error& error) {
    return error.kind() == base::ErrorKind::kBadInput ? error.what() : std::string("another kind: ") + error.what();
  }
  return "accepted";
}

}  // namespace tandem::grammar
