#include <bit>
#include <gtest/gtest.h>

#include "tests/grammar/support.h"

namespace tandem::grammar {
namespace {

// Each token tried by itself on a copy.
std::vector<uint64_t> tried_mask(const Matcher& matcher) {
  std::vector<uint64_t> mask(matcher.vocabulary().mask_words(), 0);
  for (int32_t token = 0; token < matcher.vocabulary().size(); ++token) {
    Matcher copy = matcher;
    if (copy.accept(token)) mask[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
  }
  return mask;
}

int32_t random_token(const std::vector<uint64_t>& mask, std::mt19937& random) {
  std::vector<int32_t> allowed;
  for (size_t i = 0; i < mask.size(); ++i) {
    for (uint64_t rest = mask[i]; rest != 0; rest &= rest - 1) {
      allowed.push_back(static_cast<int32_t>(i * 64 + static_cast<size_t>(std::countr_zero(rest))));
    }
  }
  return allowed.empty() ? -1 : allowed[random() % allowed.size()];
}

TEST(Mask, EqualsTryingEachToken) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const char* const schemas[] = {
      "{}",
      R"({"type": "string", "minLength": 3, "maxLength": 12})",
      R"({"type": "string", "pattern": "^[^/]+/.*x$"})",
      R"({"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 3, "maxItems": 5})",
      R"({"type": "object", "properties": {"name": {"type": "string"}, "number": {"type": "number", "minimum": 0.5},
          "names": {"type": "array", "items": {"type": "string", "maxLength": 5}}}, "required": ["number"]})",
  };
  for (const char* schema : schemas) {
    SCOPED_TRACE(schema);
    const auto grammar = schema_grammar(schema);
    for (int answer = 0; answer < 3; ++answer) {
      Matcher matcher(grammar, demo_vocabulary());
      for (int step = 0; step < 12; ++step) {
        const std::vector<uint64_t> mask = mask_of(matcher);
        ASSERT_EQ(mask, tried_mask(matcher)) << "answer " << answer << ", step " << step;
        const int32_t token = random_token(mask, random);
        if (token < 0) {
          ASSERT_TRUE(matcher.must_end());
          break;
        }
        ASSERT_TRUE(matcher.accept(token));
      }
    }
  }
}

TEST(Mask, NeverAllowsSpecialTokens) {
  const text::Tokenizer& tokenizer = text::demo_tokenizer();
  Matcher matcher(schema_grammar(R"({"type": "string"})"), demo_vocabulary());
  ASSERT_TRUE(matcher.accept_bytes("\""));
  const std::vector<uint64_t> mask = mask_of(matcher);
  for (int32_t token = 0; token < tokenizer.size(); ++token) {
    if (tokenizer.is_special(token)) {
      EXPECT_FALSE(has_bit(mask, token)) << token;
      EXPECT_FALSE(matcher.allows(token)) << token;
    }
  }
  const auto think = tokenizer.added_token("<think>");
  ASSERT_TRUE(think);
  EXPECT_EQ(has_bit(mask, *think), !tokenizer.is_special(*think));
}

}  // namespace
}  // namespace tandem::grammar
