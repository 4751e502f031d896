#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "test_files.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace tandem::text {
namespace {

using base::Json;
using testing::ElementsAre;
using testing::HasSubstr;

// A tokenizer of the 256 bytes (ids 0-255), "ab" (256) and "abc" (257).
Json small_tokenizer() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_to_character(static_cast<uint8_t>(byte))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  Json root = Json::parse(R"({"added_tokens": [], "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
    "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false},
    "model": {"type": "BPE", "dropout": null, "ignore_merges": false, "merges": [["a", "b"]]}})");
  root["model"]["vocab"] = std::move(vocab);
  return root;
}

Json added(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

std::vector<int32_t> encode(const Json& tokenizer, const std::string& text) {
  return Tokenizer::from_json(tokenizer.dump(), "small").encode(text, AddedTokens::kParse);
}

std::string refusal(const std::string& json) {
  try {
    Tokenizer::from_json(json, "small");
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "accepted";
}
std::string refusal(const Json& tokenizer) {
  return refusal(tokenizer.dump());
}

TEST(TokenizerJson, ReadsBothFormsOfMerges) {
  Json tokenizer = small_tokenizer();
  EXPECT_THAT(encode(tokenizer, "abab c"), ElementsAre(256, 256, ' ', 'c'));
  tokenizer["model"]["merges"] = Json::array({"a b", "ab c"});
  EXPECT_THAT(encode(tokenizer, "abab abc"), ElementsAre(256, 256, ' ', 257));
}

TEST(TokenizerJson, IgnoreMergesTakesWholeWords) {
  Json tokenizer = small_tokenizer();
  EXPECT_THAT(encode(tokenizer, "abc"), ElementsAre(256, 'c'));
  tokenizer["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode(tokenizer, "abc abcd"), ElementsAre(257, ' ', 256, 'c', 'd'));
}

TEST(TokenizerJson, TheLongestAddedTokenOfAPlaceWins) {
  Json tokenizer = small_tokenizer();
  tokenizer["added_tokens"] = Json::array({added(300, "<a>"), added(301, "<a><b>"), added(302, "<b>")});
  EXPECT_THAT(encode(tokenizer, "<a><a><b><b>"), ElementsAre(300, 301, 302));
}

TEST(TokenizerJson, NormalizedAddedTokensAreFoundAfterNfc) {
  Json tokenizer = small_tokenizer();
  tokenizer["added_tokens"] = Json::array({added(300, "<\xC3\xA9>")});
  EXPECT_THAT(encode(tokenizer, "<e\xCC\x81>"), ElementsAre('<', 0xC3, 0xA9, '>'));
  tokenizer["added_tokens"][0]["normalized"] = true;
  EXPECT_THAT(encode(tokenizer, "x<e\xCC\x81>y"), ElementsAre('x', 300, 'y'));
}

TEST(TokenizerJson, RefusesFlagsItDoesNotHonour) {
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    Json tokenizer = small_tokenizer();
    tokenizer["added_tokens"] = Json::array({added(300, "<a>")});
    tokenizer["added_tokens"][0][flag] = true;
    EXPECT_THAT(refusal(tokenizer), testing::AllOf(HasSubstr(flag), HasSubstr("<a>")));
  }
}

TEST(TokenizerJson, NamesTheComponentOfAnotherFamily) {
  const auto with = [](const char* pointer, Json value) {
    Json tokenizer = small_tokenizer();
    tokenizer[Json::json_pointer(pointer)] = std::move(value);
    return refusal(tokenizer);
  };
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("Unigram"));
  EXPECT_THAT(with("/normalizer", nullptr), HasSubstr("none"));
  EXPECT_THAT(with("/normalizer/type", "Lowercase"), HasSubstr("Lowercase"));
  EXPECT_THAT(with("/pre_tokenizer/type", "Metaspace"), HasSubstr("Metaspace"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/behavior", "Removed"), HasSubstr("Removed"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/pattern", Json{{"String", " "}}), HasSubstr("Regex"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(?<=x"), HasSubstr("does not compile"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/1/use_regex", true), HasSubstr("use_regex"));
  EXPECT_THAT(with("/decoder/type", "Metaspace"), HasSubstr("Metaspace"));
  EXPECT_THAT(with("/post_processor", Json{{"type", "TemplateProcessing"}}), HasSubstr("TemplateProcessing"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("</w>"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
}

TEST(TokenizerJson, RefusesIdsThatCannotBe) {
  const auto with_id = [](Json id) {
    Json tokenizer = small_tokenizer();
    tokenizer["model"]["vocab"]["ab"] = std::move(id);
    return refusal(tokenizer);
  };
  EXPECT_THAT(with_id(-1), HasSubstr("\"ab\" has the id -1"));
  EXPECT_THAT(with_id(1 << 30), HasSubstr("1073741824"));
  EXPECT_THAT(with_id(1.5), HasSubstr("1.5"));
  EXPECT_THAT(with_id("7"), HasSubstr("string"));
  EXPECT_THAT(with_id(97), HasSubstr("the same id 97"));
  Json tokenizer = small_tokenizer();
  tokenizer["added_tokens"] = Json::array({added(97, "<a>")});
  EXPECT_THAT(refusal(tokenizer), HasSubstr("of another token"));
  tokenizer["added_tokens"] = Json::array({added(300, "ab")});
  EXPECT_THAT(refusal(tokenizer), HasSubstr("256 in the vocabulary"));
  tokenizer["added_tokens"] = Json::array({added(300, "<a>"), added(301, "<a>")});
  EXPECT_THAT(refusal(tokenizer), HasSubstr("twice"));
}

TEST(TokenizerJson, RefusesTokensAndMergesThatCannotBe) {
  Json tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"][std::string(10 << 20, 'a')] = 300;
  EXPECT_THAT(refusal(tokenizer), HasSubstr("10485760 bytes"));
  tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"][""] = 300;
  EXPECT_THAT(refusal(tokenizer), HasSubstr("without characters"));
  tokenizer = small_tokenizer();
  tokenizer["model"]["vocab"].erase("!");
  EXPECT_THAT(refusal(tokenizer), HasSubstr("0x21"));
  for (const Json& merge : {Json("ab"), Json("a b c"), Json({"a"}), Json({"a", 1}), Json(3)}) {
    tokenizer = small_tokenizer();
    tokenizer["model"]["merges"].push_back(merge);
    EXPECT_THAT(refusal(tokenizer), HasSubstr("merge 1 must be two tokens"));
  }
  tokenizer = small_tokenizer();
  tokenizer["model"]["merges"].push_back({"b", "c"});
  EXPECT_THAT(refusal(tokenizer), HasSubstr("makes \"bc\""));
  tokenizer["model"].erase("merges");
  EXPECT_THAT(refusal(tokenizer), HasSubstr("merges"));
}

TEST(TokenizerJson, RefusesWhatIsNoTokenizer) {
  EXPECT_THAT(refusal(std::string()), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(std::string("[]")), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal(std::string("{}")), HasSubstr("model must be BPE, found none"));
  EXPECT_THAT(refusal(std::string((64 << 20) + 1, ' ')), HasSubstr("67108865 bytes"));
  const std::string whole = small_tokenizer().dump();
  EXPECT_THAT(refusal(whole.substr(0, whole.size() / 2)), HasSubstr("not valid JSON"));
}

// The published file: 248,044 tokens and 247,587 merges; this one joins random tokens of two to make new ones.
std::string full_size_tokenizer() {
  Json tokenizer = small_tokenizer();
  auto& vocab = tokenizer["model"]["vocab"].get_ref<Json::object_t&>();
  vocab.resize(256);
  std::vector<std::string> tokens;
  for (const auto& entry : vocab) tokens.push_back(entry.first);
  Json merges = Json::array();
  for (size_t i = 0; tokens.size() < 248'044; ++i) {
    const std::string &left = tokens[i / 256], &right = tokens[i % 256];
    merges.push_back({left, right});
    vocab.push_back({left + right, tokens.size()});
    tokens.push_back(left + right);
  }
  tokenizer["model"]["merges"] = std::move(merges);
  return tokenizer.dump();
}

TEST(TokenizerJson, AVocabularyOfFullSizeLoadsFast) {
  const std::string json = full_size_tokenizer();
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = Tokenizer::from_json(json, "full size");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1000));
  EXPECT_EQ(tokenizer.size(), 248'044);
  EXPECT_LT(seconds.count(), 30.0);
  EXPECT_EQ(tokenizer.encode("hello", AddedTokens::kPlain).size(), 3u);  // h, el, lo
}

}  // namespace
}  // namespace tandem::text
