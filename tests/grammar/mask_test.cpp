#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "grammar/state_cache.h"
#include "tests/grammar/random_walk.h"

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

TEST(Mask, IsTheSameWhateverCameBefore) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const char* const schema = R"({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"},
      "b": {"type": "array", "items": {"type": "number"}, "maxItems": 4}}}, "maxItems": 9})";
  const auto used = schema_grammar(schema);
  for (int answer = 0; answer < 10; ++answer) {
    Matcher matcher(used, demo_vocabulary());
    Matcher fresh(schema_grammar(schema), demo_vocabulary());  // whose grammar has seen nothing
    for (int step = 0; step < 20; ++step) {
      const std::vector<uint64_t> mask = mask_of(matcher);
      ASSERT_EQ(mask, mask_of(fresh));
      ASSERT_EQ(matcher.may_end(), fresh.may_end());
      const int32_t token = random_token(mask, random);
      if (token < 0) break;
      ASSERT_TRUE(matcher.accept(token));
      ASSERT_TRUE(fresh.accept(token));
    }
  }
}

TEST(Mask, OneGrammarServesSeveralThreads) {
  const auto grammar = schema_grammar(R"({"type": "array", "items": {"type": "object", "properties": {"a": {}}}})");
  std::atomic<int> faults = 0;
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int answer = 0; answer < 20; ++answer) {
        const auto text = random_answer(grammar, random, {"\"", "}", "]"}, 40);
        if (text && !takes(grammar, *text)) ++faults;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(faults, 0);
}

TEST(Mask, LongAnswersStayWithinTheMemoryOfStates) {
  const auto grammar = schema_grammar(R"({"type": "array", "items": {"type": "string", "maxLength": 1000000}})");
  Matcher matcher(grammar, demo_vocabulary());
  ASSERT_TRUE(matcher.accept_bytes("[\""));
  const std::vector<uint64_t> before = mask_of(matcher);
  const Matcher early = matcher;
  const std::string piece(1'000, 'x');
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(matcher.accept_bytes(piece));
    ASSERT_LT(grammar->cache(demo_vocabulary())->bytes(), Grammar::kCacheBytes + (size_t{4} << 20));
  }
  EXPECT_EQ(mask_of(matcher), before);
  EXPECT_TRUE(matcher.accept_bytes("\"]"));
  EXPECT_TRUE(matcher.must_end());
  Matcher old = early;  // its memory was given up meanwhile
  EXPECT_EQ(mask_of(old), before);
  EXPECT_TRUE(old.accept_bytes("\",\"\"]"));
  EXPECT_TRUE(old.must_end());
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
