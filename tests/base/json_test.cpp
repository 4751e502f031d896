#include "base/json.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace tandem::base {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    (void)parse_json(text, "test", limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "";
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"z":1,"a":[{"y":null,"b":-2.5}]})", "test").dump(), R"({"z":1,"a":[{"y":null,"b":-2.5}]})");
}

TEST(Json, RefusesDuplicateKeysAtAnyLevel) {
  EXPECT_THAT(refusal(R"({"a":1,"a":2})"), HasSubstr("\"a\" twice"));
  EXPECT_THAT(refusal(R"([{"b":{"c":1,"d":2,"c":3}}])"), HasSubstr("\"c\" twice"));
  EXPECT_EQ(refusal(R"([{"c":1},{"c":1}])"), "");
}

TEST(Json, TheLastOfRepeatedKeysCountsWhereTheyAreAllowed) {
  const auto read = [](std::string_view text) { return parse_json(text, "text", {.repeated_keys = true}).dump(); };
  EXPECT_EQ(read(R"({"a":1,"b":2,"a":{"c":3,"c":{"d":4}},"e":5})"), R"({"a":{"c":{"d":4}},"b":2,"e":5})");
  EXPECT_EQ(read(R"([{"a":[1,2]},{"a":{"x":1},"a":[{"a":2,"a":3}],"b":{"a":4}}])"),
            R"([{"a":[1,2]},{"a":[{"a":3}],"b":{"a":4}}])");
}

TEST(Json, RefusesDeepNestingWithoutRecursing) {
  EXPECT_THAT(refusal(std::string(1000000, '['), {.max_depth = 64}), HasSubstr("deeper than 64"));
  EXPECT_EQ(refusal("[[1]]", {.max_depth = 2}), "");
  EXPECT_THAT(refusal("[[[1]]]", {.max_depth = 2}), HasSubstr("deeper than 2"));
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "{]", "[1,]", "nul", "1 2", "\"\xff\"", "{\"a\":NaN}", "{\"a\":01}"}) {
    EXPECT_THAT(refusal(text), HasSubstr("not valid JSON")) << text;
  }
}

TEST(Json, TypedAccessNamesTheKey) {
  const Json value = parse_json(R"({"n":3,"f":2.0,"s":"x","b":true,"z":null,"big":18446744073709551615})", "cfg");
  EXPECT_EQ(json_int(value, "n", "cfg"), 3);
  EXPECT_EQ(json_int(value, "f", "cfg"), 2);
  EXPECT_EQ(json_int(value, "z", 7, "cfg"), 7);
  EXPECT_EQ(json_string(value, "s", "cfg"), "x");
  EXPECT_THROW((void)json_int(value, "s", "cfg"), Error);
  EXPECT_THROW((void)json_int(value, "absent", "cfg"), Error);
  EXPECT_THROW((void)json_int(value, "big", "cfg"), Error);
  EXPECT_THROW((void)json_bool(value, "n", false, "cfg"), Error);
}

}  // namespace
}  // namespace tandem::base
