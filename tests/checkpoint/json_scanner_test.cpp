#include "checkpoint/json_scanner.h"

#include <gmock/gmock.h>

#include "files.h"

namespace tandem::checkpoint {
namespace {

using testing::HasSubstr;

const std::string kSource = "text";

std::string refusal_of_value(const std::string& text, int depth = 4) {
  return refusal([&] {
    JsonScanner scanner(text, kSource);
    scanner.skip_value(depth);
    scanner.expect_end();
  });
}

std::string string_of(const std::string& text) {
  JsonScanner scanner(text, kSource);
  return std::string(scanner.string());
}

TEST(JsonScanner, AcceptsEveryKindOfValue) {
  for (const char* text : {"0", "-0", "-1.5e+10", "1E3", "true", "false", "null", "\"\"", "[]", "{}", " [ 1 , 2 ] ",
                           R"({"a":{"b":[1,{}]},"c":"\u00e9\n"})", "\"\xC3\xA9 \xF0\x9F\x99\x82\""}) {
    EXPECT_EQ(refusal_of_value(text), "") << text;
  }
}

TEST(JsonScanner, RefusesWhatIsNotJson) {
  for (const char* text :
       {"",     "01",      "-",           "+1",       "1.",         ".5",       "1e",     "tru", "nul",
        "[1,]", "[1 2]",   "{\"a\"}",     "{\"a\":}", "{\"a\":1,}", "{a:1}",    "[",      "{",   "\"",
        "\"\\", "\"\\x\"", "\"\\u12g4\"", "NaN",      "1 2",        "\"\x01\"", "\"\n\"", "'a'"}) {
    EXPECT_THAT(refusal_of_value(text), HasSubstr("text: is not valid at byte")) << text;
  }
}

TEST(JsonScanner, RefusesWhatIsNotUtf8) {
  for (const char* text : {"\"\xFF\"", "\"\x80\"", "\"\xC0\xAF\"", "\"\xC3\"", "\"\xE0\x80\x80\"", "\"\xED\xA0\x80\"",
                           "\"\xF0\x80\x80\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xF5\x80\x80\x80\"", "\"\xE2\x82"}) {
    EXPECT_THAT(refusal_of_value(text), HasSubstr("not UTF-8")) << text;
  }
  EXPECT_EQ(refusal_of_value("\"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\""), "");
}

TEST(JsonScanner, DecodesEscapes) {
  EXPECT_EQ(string_of(R"("plain")"), "plain");
  EXPECT_EQ(string_of(R"("a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(string_of(R"("\u0041\u00E9\u20ac\uD83D\ude42!")"), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82!");
  for (const char* text : {R"("\ud83d")", R"("\ud83d\u0041")", R"("\ude42")", R"("\ud83dx")"}) {
    EXPECT_THAT(refusal([&] { (void)string_of(text); }), HasSubstr("surrogate")) << text;
  }
}

TEST(JsonScanner, WholeNumbersHaveNoSignPointOrExponentAndALimit) {
  const auto number = [](const std::string& text, uint64_t limit) {
    JsonScanner scanner(text, kSource);
    const uint64_t value = scanner.unsigned_integer(limit, "a size");
    scanner.expect_end();
    return value;
  };
  EXPECT_EQ(number("0", 10), 0u);
  EXPECT_EQ(number(" 9223372036854775807", INT64_MAX), static_cast<uint64_t>(INT64_MAX));
  EXPECT_EQ(number("18446744073709551615", UINT64_MAX), UINT64_MAX);
  EXPECT_THAT(refusal([&] { (void)number("9223372036854775808", INT64_MAX); }), HasSubstr("a size is larger than"));
  EXPECT_THAT(refusal([&] { (void)number("18446744073709551616", UINT64_MAX); }), HasSubstr("larger"));
  EXPECT_THAT(refusal([&] { (void)number("11", 10); }), HasSubstr("larger than 10"));
  EXPECT_THAT(refusal([&] { (void)number("7", 3); }), HasSubstr("larger than 3"));
  for (const char* text : {"-1", "1.0", "1e3", "1E3", "\"1\"", "", "null", "[1]"}) {
    EXPECT_THAT(refusal([&] { (void)number(text, 1000); }), HasSubstr("a size must be a whole number")) << text;
  }
  EXPECT_THAT(refusal([&] { (void)number("007", 1000); }), HasSubstr("begins with a zero"));
}

TEST(JsonScanner, BoundsTheDepth) {
  EXPECT_EQ(refusal_of_value("[[{\"a\":[]}]]", 4), "");
  EXPECT_THAT(refusal_of_value("[[{\"a\":[[]]}]]", 4), HasSubstr("too deep"));
  EXPECT_THAT(refusal_of_value(std::string(1'000'000, '['), 4), HasSubstr("at byte 4: the nesting is too deep"));
}

TEST(JsonScanner, RefusesDuplicateKeysAtAnyLevelEvenWhenWrittenDifferently) {
  EXPECT_THAT(refusal_of_value(R"({"a":1,"a":2})"), HasSubstr("twice"));
  EXPECT_THAT(refusal_of_value(R"([{"b":{"c":1,"\u0063":2}}])"), HasSubstr("twice"));
  EXPECT_EQ(refusal_of_value(R"([{"c":1},{"c":1}])"), "");
}

TEST(JsonScanner, KnowsControlCharacters) {
  for (const char* text : {"a\n", "\x01", "\x7F", "x\xC2\x80", "\xC2\x9F"}) EXPECT_TRUE(has_control_characters(text));
  for (const char* text : {"", "a b", "\xC2\xA0", "\xC3\x80", "\xE2\x80\x94"}) {
    EXPECT_FALSE(has_control_characters(text));
  }
}

}  // namespace
}  // namespace tandem::checkpoint
