// Schemas and grammars that are made to hang, overflow or fill the memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/support.h"
#include "tests/support/slack.h"

namespace tandem::grammar {
namespace {

using base::Json;

std::string repeated(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

// Refused in one line, or compiled and able to give masks; in any case soon.
template <typename Compile>
std::string outcome(Compile&& compile) {
  const double begin = testing_support::processor_seconds();
  std::string result = "accepted";
  result = refusal([&] {
    Matcher matcher(compile(), demo_vocabulary());
    std::mt19937 random(1);
    for (int step = 0; step < 30 && !matcher.must_end(); ++step) {
      const std::vector<uint64_t> mask = mask_of(matcher);
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < matcher.vocabulary().size(); ++token) {
        if (has_bit(mask, token)) allowed.push_back(token);
      }
      ASSERT_FALSE(allowed.empty());
      ASSERT_TRUE(matcher.accept(allowed[random() % allowed.size()]));
    }
  });
  EXPECT_LT(testing_support::processor_seconds() - begin, 10 * testing_support::kSlack) << result;
  EXPECT_EQ(result.find('\n'), std::string::npos) << result;
  EXPECT_LT(result.size(), 1000u) << result;
  return result;
}

std::string schema_outcome(const Json& schema) {
  return outcome([&] { return compile_json_schema(schema); });
}

std::string pattern_outcome(const std::string& pattern) {
  return schema_outcome({{"type", "string"}, {"pattern", pattern}});
}

using testing::HasSubstr;

TEST(HostileSchema, DeepNestingIsRefused) {
  Json schema = Json::object();
  for (int i = 0; i < 10'000; ++i) {
    Json outer = {{"type", "object"}, {"required", {"a"}}};
    outer["properties"]["a"] = std::move(schema);
    schema = std::move(outer);
  }
  EXPECT_THAT(schema_outcome(schema), HasSubstr("nests too deep"));
}

TEST(HostileSchema, ReferencesThatFanOutAreBounded) {
  Json schema = {{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 40; ++i) {
    const std::string next = "#/$defs/" + std::to_string(i + 1);
    schema["$defs"][std::to_string(i)] = {{"anyOf", {{{"$ref", next}}, {{"$ref", next}}}}};
  }
  schema["$defs"]["40"] = {{"type", "string"}};
  EXPECT_THAT(schema_outcome(schema), HasSubstr("alternatives"));
  for (int i = 0; i < 40; ++i) {
    const std::string next = "#/$defs/" + std::to_string(i + 1);
    Json both = {{"type", "object"}};
    both["properties"] = {{"a", {{"$ref", next}}}, {"b", {{"$ref", next}}}};
    schema["$defs"][std::to_string(i)] = both;
  }
  EXPECT_EQ(schema_outcome(schema), "accepted");
}

TEST(HostileSchema, CombinationsAreBounded) {
  Json all = Json::array();
  for (int i = 0; i < 100; ++i) all.push_back({{"anyOf", {{{"minLength", i}}, {{"maxLength", i + 1000}}}}});
  EXPECT_THAT(schema_outcome({{"allOf", all}}), HasSubstr("alternatives"));
}

TEST(HostileSchema, HugeCountsAreRefusedOrCounted) {
  EXPECT_THAT(schema_outcome({{"type", "array"}, {"minItems", 1'000'000'000}}), HasSubstr("minItems: is above"));
  EXPECT_EQ(schema_outcome({{"type", "array"}, {"maxItems", 1'000'000'000}}), "accepted");
  EXPECT_EQ(schema_outcome({{"type", "string"}, {"maxLength", 1e300}}), "accepted");
  EXPECT_THAT(schema_outcome({{"type", "string"}, {"maxLength", -1}}), HasSubstr("maxLength: must be"));
  EXPECT_THAT(schema_outcome({{"type", "string"}, {"minLength", 1.5}}), HasSubstr("minLength: must be"));
  EXPECT_THAT(schema_outcome({{"type", "string"}, {"minLength", 30'000}, {"pattern", "^a*b$"}}), HasSubstr("states"));
  EXPECT_THAT(schema_outcome({{"type", "integer"}, {"multipleOf", 999'999'937}}), HasSubstr("states"));
  EXPECT_EQ(schema_outcome({{"type", "number"}, {"minimum", -1e300}, {"maximum", 1e-300}}), "accepted");
}

TEST(HostileSchema, LargeObjectsAndListsAreTakenOrRefused) {
  Json properties = Json::object(), values = Json::array();
  for (int i = 0; i < 1'500; ++i) properties["property_" + std::to_string(i)] = {{"type", "string"}};
  for (int i = 0; i < 20'000; ++i) values.push_back("value " + std::to_string(i));
  EXPECT_EQ(schema_outcome({{"type", "object"}, {"properties", properties}}), "accepted");
  EXPECT_EQ(schema_outcome({{"enum", values}}), "accepted");
  for (int i = 0; i < 1'500; ++i) properties["another_" + std::to_string(i)] = true;
  EXPECT_THAT(schema_outcome({{"type", "object"}, {"properties", properties}}), HasSubstr("properties; at most"));
}

TEST(HostileSchema, RecursionThroughCombinationsEnds) {
  EXPECT_THAT(schema_outcome(json(R"({"allOf": [{"$ref": "#"}]})")), HasSubstr("leads back to itself"));
  EXPECT_EQ(schema_outcome(json(R"({"type": "object", "properties": {"a": {"allOf": [{"$ref": "#"}, {"type": "object",
      "properties": {"b": {"$ref": "#"}}}]}}})")),
            "accepted");
}

TEST(HostilePattern, EachIsRefusedOrBounded) {
  const std::pair<std::string, const char*> cases[] = {
      {repeated("(", 20'000), "characters"},
      {repeated("(", 5'000), "nests groups deeper"},
      {repeated("(?:", 90) + repeated(")", 90), "accepted"},
      {"^+[a-z]$", "repeats ^ or $"},
      {"^{2}x$", "repeats ^ or $"},
      {"$*", "repeats ^ or $"},
      {"(?<=x)*", "look-around"},
      {"(?!x)", "look-around"},
      {"(?i)x", "look-around or flags"},
      {"(a)\\1", "\\1, which is not supported"},
      {"\\bx", "\\b, which is not supported"},
      {"\\p{L}", "\\p, which is not supported"},
      {"a**", "quantifier after a quantifier"},
      {"a{2}{3}", "quantifier after a quantifier"},
      {"*a", "nothing before it"},
      {"a{1,99999999999}", "repeats more than"},
      {"a{3,2}", "m above n"},
      {"a{x}", "lacks a number"},
      {"((a{1000}){1000}){1000}", "states"},
      {"(((){20000}){20000}){20000}", "states"},
      {"(a*)*b", "accepted"},
      {"(a|a)*$", "accepted"},
      {"^(a|aa)+$", "accepted"},
      {"^(.*a){20}$", "accepted"},
      {"a.{40}$", "s"},
      {"[", "not closed"},
      {"[b-a]", "out of order"},
      {"[\\d-z]", "range between classes"},
      {"\\", "ends in a backslash"},
      {"\\ud800", "surrogate"},
      {"\\u{110000}", "malformed"},
      {"x)", "unmatched )"},
      {"(x", "lacks a )"},
      {"]", "nothing opens"},
      {"$^", "accepted"},
      {"a^b", "nothing satisfies"},
      {"", "accepted"},
      {"|", "accepted"},
      {repeated("[a-z]?", 1000) + repeated("[a-z]", 1000), ""},
  };
  for (const auto& [pattern, expected] : cases) {
    EXPECT_THAT(pattern_outcome(pattern), HasSubstr(expected)) << pattern.substr(0, 100);
  }
}

TEST(HostileEbnf, EachIsRefusedOrBounded) {
  const std::pair<std::string, const char*> cases[] = {
      {"root ::= " + repeated("(", 60'000), "nest deeper"},
      {"root ::= " + repeated("(", 150) + "\"a\"" + repeated(")*", 150), "accepted"},
      {"root ::= \"a\"" + repeated("*", 60'000), "too many quantifiers"},
      {"root ::= \"a\"" + repeated("{1000}", 100), "accepted"},
      {"root ::= \"a\"{99999999999}", "repetitions"},
      {"root ::= \"a\"{0,1000000}", "accepted"},
      {"root ::= [a-z]{1000000}", "accepted"},
      {"root ::= (\"a\" | \"aa\" | \"aaa\"){1,100000}", "accepted"},
      {"root ::= root", "nothing satisfies it"},
      {"root ::= root | \"a\"", "leads back to itself"},
      {"root ::= a  a ::= b  b ::= a | \"x\"", "leads back to itself"},
      {"root ::= \"x\"? root \"y\" | \"z\"", "leads back to itself"},
      {"root ::= s  s ::= \"a\" s s | \"a\" s | \"a\"", "accepted"},
      {"root ::= s  s ::= [a-z] s t | [a-z] t s | [a-z] u s s | [a-z]\nt ::= s [a-z] | \"b\"\nu ::= s s | \"c\"",
       "accepted"},
      {"root ::= \"\"", ""},
      {"root ::= a" + repeated("\na ::= b", 1), "there is no rule b"},
      {repeated("r ::= \"a\"\n", 2), "defined twice"},
      {std::string("root ::= \"\0\"", 12), "accepted"},
      {repeated(" ", 2'000'000), "bytes; at most"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(outcome([&text = text] { return compile_ebnf(text); }), HasSubstr(expected)) << text.substr(0, 100);
  }
}

TEST(HostileEbnf, DeepRecursionOfAnAnswerIsBounded) {
  const auto grammar = compile_ebnf("root ::= \"(\" root \")\" | \"x\"");
  Matcher matcher(grammar, demo_vocabulary());
  size_t depth = 0;
  while (depth < 100'000 && matcher.accept_bytes("(")) ++depth;
  EXPECT_GT(depth, 500u);
  EXPECT_LT(depth, 2'000u);
  EXPECT_TRUE(matcher.accept_bytes("x" + std::string(depth, ')')));
  EXPECT_TRUE(matcher.must_end());
}

}  // namespace
}  // namespace tandem::grammar
