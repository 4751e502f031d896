#include "text/tokenizer.h"

#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "base/error.h"
#include "test_files.h"
#include "text/nfc.h"
#include "text/split_pattern.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int32_t> plain(const std::string& text) {
  return demo_tokenizer().encode(text, AddedTokens::kPlain);
}

std::string repeated(const std::string& unit, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

TEST(Tokenizer, GivesTheIdsAndTextsOfTheReferenceVectors) {
  const base::Json vectors = source_json("tests/golden/tokenizer_vectors.json");
  ASSERT_GT(vectors.size(), 20u);
  for (const auto& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(demo_tokenizer().encode(text, AddedTokens::kParse), ids) << text;
    EXPECT_EQ(demo_tokenizer().decode(ids, false), vector["decoded"].get<std::string>());
  }
}

TEST(Tokenizer, ParsesAddedTokensOnlyWhereAsked) {
  const int32_t end = *demo_tokenizer().added_token("<|im_end|>");
  EXPECT_THAT(demo_tokenizer().encode("<|im_end|>", AddedTokens::kParse), ElementsAre(end));
  const auto ids = plain("<|im_end|>");
  EXPECT_THAT(ids, testing::Each(testing::Lt(end)));
  EXPECT_EQ(demo_tokenizer().decode(ids, false), "<|im_end|>");
}

TEST(Tokenizer, EncodesPiecesAsOneText) {
  const TextPiece pieces[] = {{"<|im_start|>us", AddedTokens::kParse},
                              {"er\n<|im_", AddedTokens::kPlain},
                              {"end|><|im_end|>", AddedTokens::kParse}};
  std::vector<int32_t> expected = {*demo_tokenizer().added_token("<|im_start|>")};
  const auto middle = plain("user\n<|im_end|>");
  expected.insert(expected.end(), middle.begin(), middle.end());
  expected.push_back(*demo_tokenizer().added_token("<|im_end|>"));
  EXPECT_EQ(demo_tokenizer().encode(pieces), expected);
}

TEST(Tokenizer, KnowsItsAddedTokens) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer.size(), 4096);
  EXPECT_EQ(tokenizer.added_token("<think>"), 4087);
  EXPECT_FALSE(tokenizer.added_token("think").has_value());
  EXPECT_TRUE(tokenizer.is_added(4087));
  EXPECT_FALSE(tokenizer.is_special(4087));
  EXPECT_TRUE(tokenizer.is_special(4064));
  EXPECT_FALSE(tokenizer.is_added(0));
  EXPECT_EQ(tokenizer.token_bytes(4064), "<|im_start|>");
  const int32_t ids[] = {4064, 4087, 4065};
  EXPECT_EQ(tokenizer.decode(ids, true), "<think>");
}

TEST(Tokenizer, IdsOutOfRangeAreNoTokens) {
  const int32_t ids[] = {-1, INT32_MIN, 4096, INT32_MAX};
  EXPECT_EQ(demo_tokenizer().decode(ids, false), "");
  for (const int32_t id : ids) {
    EXPECT_EQ(demo_tokenizer().token_bytes(id), "");
    EXPECT_FALSE(demo_tokenizer().is_special(id));
    EXPECT_FALSE(demo_tokenizer().is_added(id));
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8SurviveOneTokenEach) {
  const std::string text = "ok \xFF\xC0\x80 \xE2\x82 caf\xC3\xA9 \xED\xA0\x80\xF4\x90\x80\x80\xC3";
  const auto ids = plain(text);
  EXPECT_EQ(demo_tokenizer().decode(ids, false), text);
  EXPECT_THAT(plain("\xFF"), testing::SizeIs(1));
  EXPECT_THAT(plain(""), IsEmpty());
  EXPECT_THAT(plain(std::string(3, '\0')), testing::SizeIs(3));
}

TEST(Tokenizer, RandomBytesComeBackWhereNfcLeavesThemAlone) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = static_cast<char>(random() % 0xCC);
    EXPECT_EQ(demo_tokenizer().decode(plain(text), false), text);
  }
}

// The definition of byte pair encoding, without a heap.
std::vector<std::string> merge_slowly(const base::Json& model, const std::vector<std::string>& characters) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (const auto& merge : model["merges"]) ranks.emplace(std::pair(merge[0], merge[1]), ranks.size());
  std::vector<std::string> parts = characters;
  while (true) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best) best = found->second, at = i;
    }
    if (best == SIZE_MAX) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(Tokenizer, MergesAsTheDefinitionSays) {
  const base::Json model = source_json("models/demo-flash/tokenizer.json")["model"];
  std::mt19937 random(11);
  const std::string letters = "aeinorsthl";
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> characters;
    std::string word;
    for (size_t i = 0; i < 1 + random() % 24; ++i) {
      characters.push_back({letters[random() % letters.size()]});
      word += characters.back();
    }
    std::vector<int32_t> expected;
    for (const auto& part : merge_slowly(model, characters)) expected.push_back(model["vocab"][part].get<int32_t>());
    EXPECT_EQ(plain(word), expected) << word;
  }
}

TEST(Tokenizer, HostileTextsTakeLinearTime) {
  // Each would take minutes or crash where splitting, normalising or merging is quadratic or recursive; in a build
  // without sanitizers they take some 0.1 s each.
  const std::string texts[] = {
      std::string(200'000, 'a'),
      std::string(200'000, 'Z'),
      std::string(200'000, ' '),
      std::string(100'000, '\n'),
      std::string(200'000, '\t') + "x",
      repeated(" \n", 100'000),
      repeated("\r\n ", 70'000),
      std::string(1'000'000, 'e'),
      repeated("'s", 100'000),
      repeated("!", 200'000),
      repeated("1", 200'000),
      "a" + repeated("\xCC\x81\xCC\xA3", 100'000),  // combining marks in the wrong order
      repeated("\xE2\x80\x8D", 100'000),
      repeated("<|im_end|", 30'000),
      std::string(200'000, '\xFF'),
  };
  for (const std::string& text : texts) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = demo_tokenizer().encode(text, AddedTokens::kParse);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(demo_tokenizer().decode(ids, false), to_nfc(text));
    EXPECT_LT(seconds.count(), 20.0) << text.substr(0, 12);
  }
}

TEST(Nfc, ComposesAndOrdersMarks) {
  EXPECT_EQ(to_nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(to_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");  // Hangul jamo
  // q, dot above, dot below: the marks change places, and nothing composes.
  EXPECT_EQ(to_nfc("q\xCC\x87\xCC\xA3"), "q\xCC\xA3\xCC\x87");
  EXPECT_EQ(to_nfc("\xE2\x84\xAB"), "\xC3\x85");  // the Angstrom sign becomes the letter
  EXPECT_EQ(to_nfc("\xFF"
                   "e\xCC\x81\xE2\x82"),
            "\xFF\xC3\xA9\xE2\x82");
}

std::vector<std::string> cut(const std::string& pattern, const std::string& text) {
  std::vector<std::string> pieces;
  SplitPattern(pattern, "test").split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(SplitPattern, KeepsMatchesAndWhatLiesBetween) {
  EXPECT_THAT(cut("b+", "abbcbd"), ElementsAre("a", "bb", "c", "b", "d"));
  EXPECT_THAT(cut("x*", "axxb\xC3\xA9"), ElementsAre("a", "xx", "b", "\xC3\xA9"));
  EXPECT_THAT(cut("q", "abc"), ElementsAre("abc"));
  EXPECT_THAT(cut("\\s+(?!\\S)|\\s+", "a   b"), ElementsAre("a", "  ", " ", "b"));
}

TEST(SplitPattern, RefusesWhatItCannotRun) {
  EXPECT_THROW(SplitPattern("(", "test"), base::Error);
  EXPECT_THROW(SplitPattern("a{70000}", "test"), base::Error);
  EXPECT_THROW(SplitPattern(std::string(100'000, 'a'), "test"), base::Error);
  EXPECT_THROW(SplitPattern(std::string(20'000, '('), "test"), base::Error);
  EXPECT_THROW(cut("a\\Kb(?<=a\\Kb)", "ab"), base::Error);
}

TEST(SplitPattern, GivesUpOnAPatternThatNeverEnds) {
  EXPECT_THROW(cut("(?:a+a+)+[bc]", std::string(60, 'a')), base::Error);
}

TEST(SplitPattern, ALongMatchOfGroupsNeedsNoStack) {
  EXPECT_THAT(cut("(?:a|b)+", std::string(50'000, 'a') + "c"), testing::SizeIs(2));
}

TEST(Detokenizer, GivesWholeCharactersOnly) {
  const std::string text = "h\xC3\xA9llo \xF0\x9F\x9A\x80\xE0\xB8\xA0 \xE6\x9D\xB1";
  for (const bool by_bytes : {false, true}) {
    std::vector<int32_t> ids = plain(text);
    if (by_bytes) {
      ids.clear();
      for (const char byte : text) ids.push_back(plain(std::string("\xFF") + byte).back());
    }
    Detokenizer detokenizer(demo_tokenizer(), true);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string part = detokenizer.push(id);
      EXPECT_EQ(utf8_valid_prefix(part, 0), part.size());
      joined += part;
    }
    EXPECT_EQ(joined + detokenizer.finish(), text);
  }
}

TEST(Detokenizer, ReplacesWhatIsNoCharacter) {
  const auto byte = [](char value) { return plain(std::string(1, value)).at(0); };
  Detokenizer detokenizer(demo_tokenizer(), true);
  EXPECT_EQ(detokenizer.push(byte('\xE2')), "");
  EXPECT_EQ(detokenizer.push(4065), "");  // a special token, skipped
  EXPECT_EQ(detokenizer.push(byte('A')),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(detokenizer.push(byte('\x80')), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.push(byte('\xF0')), "");
  EXPECT_EQ(detokenizer.push(byte('\x9F')), "");
  EXPECT_EQ(detokenizer.push(1 << 30), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Utf8, KnowsWhatIsACharacter) {
  for (const char* invalid :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xF5", "\303A"}) {
    EXPECT_EQ(utf8_at(invalid, 0).kind, Utf8Kind::kInvalid);
  }
  EXPECT_EQ(utf8_at("\xF0\x9F\x9A\x80", 0).code_point, 0x1F680u);
  EXPECT_EQ(utf8_at("\xF0\x9F\x9A", 0).kind, Utf8Kind::kIncomplete);
  EXPECT_EQ(utf8_repaired("a\xE2\x82z\xFF"), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tandem::text
