#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/support.h"

namespace tandem::grammar {
namespace {

struct SchemaCase {
  const char* schema;
  std::vector<const char*> taken;
  std::vector<const char*> refused;
};

TEST(JsonSchema, TakesWhatHoldsAndNothingElse) {
  const SchemaCase cases[] = {
      {R"({"type": "string"})",
       {R"("")", R"("a")", R"("ä€😀")", R"("\n\"\\\/\u00e4\ud83d\ude00")"},
       {"a", "\"", "\"a", "\"\n\"", "\"\xff\"", "\"\xed\xa0\x80\"", R"("\ud83d")", R"("\ude00")", R"("\x")", "1"}},
      {R"({"type": "integer"})",
       {"0", "-1", "42", "9223372036854775807", "-9223372036854775808"},
       {"-0", "00", "01", "1.0", "1e3", "9223372036854775808", "-9223372036854775809", "+1", "\"1\"", ""}},
      {R"({"type": "integer", "minimum": -12, "maximum": 345})",
       {"-12", "-9", "-1", "0", "7", "99", "100", "345"},
       {"-13", "-20", "-100", "346", "400", "1000"}},
      {R"({"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991})",
       {"1", "9007199254740991"},
       {"0", "-1", "9007199254740992", "10000000000000000"}},
      {R"({"type": "integer", "multipleOf": 12, "minimum": 5})", {"12", "24", "1200"}, {"0", "6", "13", "-12"}},
      {R"({"type": "number"})",
       {"0", "-0.5", "1.25", "1e5", "1E-10", "12.5e+100"},
       {".5", "1.", "01", "1e", "1e999", "NaN", "--1"}},
      {R"({"type": "number", "minimum": 0.1, "exclusiveMaximum": 2.5})",
       {"0.1", "0.10", "0.11", "1", "2", "2.0", "2.4999", "2.49"},
       {"0", "0.0999", "0.09", "2.5", "2.50", "2.6", "3", "10", "-1"}},
      {R"({"type": "number", "exclusiveMinimum": -1.5, "maximum": -0.25})",
       {"-1.4999", "-1", "-0.5", "-0.25", "-0.250"},
       {"-1.5", "-2", "-0.2", "-0.2499", "0", "1", "-0"}},
      {R"({"type": "number", "multipleOf": 0.05, "minimum": 0})",
       {"0", "0.05", "0.1", "0.10", "1.35", "7"},
       {"0.01", "0.051", "0.3333"}},
      {R"({"type": ["string", "null"]})", {"null", R"("x")"}, {"1", "true"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"True", "tru", "truefalse"}},
      {R"({"enum": ["a", "ab", 1, 1.5, null, {"x": [1, 2]}]})",
       {R"("a")", R"("ab")", "1", "1.5", "null", R"({"x":[1,2]})", R"({"x": [1, 2]})"},
       {R"("abc")", "2", R"({"x":[1]})"}},
      {R"({"const": "a\"b\n"})", {R"("a\"b\n")"}, {R"("ab")"}},
      {R"({"type": "integer", "enum": ["a", 5, 7], "minimum": 6})", {"7"}, {"5", R"("a")"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
           "required": ["a"], "additionalProperties": false})",
       {R"({"a":1})", R"({"a": 1, "b": true})", "{\n  \"a\": 1,\n  \"b\": false\n}", R"({ "a": 1 })"},
       {"{}", R"({"b":true})", R"({"b":true,"a":1})", R"({"a":1,"a":2})", R"({"a":1,})", R"({"a":1,"c":2})",
        R"({"a":"1"})", R"({"a"  :1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}})",
       {"{}", R"({"b":true})", R"({"x":[{}]})", R"({"a":1,"x":null,"y":2})", R"({"aa":1})"},
       {R"({"x":1,"a":1})", R"({"\u0061":true})", R"({"a":true})", "{ }"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"pattern": "^[a-c]+$"},
           "minProperties": 1, "maxProperties": 2})",
       {R"({"a":1})", R"({"a":1,"bc":2})"},
       {"{}", R"({"d":1})", R"({"a":"1"})", R"({"a":1,"b":2,"c":3})"}},
      {R"({"type": "object", "properties": {"bad": false, "a": {}}, "additionalProperties": false})",
       {"{}", R"({"a":{"x":[]}})"},
       {R"({"bad":1})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2, 3]", "[1,2]", "[\n  1,\n  2\n]"},
       {"[]", "[1,2,3,4]", "[1,]", "[\"1\"]", "[,1]"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "boolean"},
           "minItems": 1, "maxItems": 4})",
       {"[1]", R"([1,"a"])", R"([1,"a",true])", R"([1,"a",true,false])"},
       {"[]", R"(["a"])", R"([1,true])", R"([1,"a",true,false,true])"}},
      {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": false})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type": "array", "items": false, "minItems": 0})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]", "[null]"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("äöü")", R"("\ud83d\ude00x")", R"("😀\n")"},
       {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type": "string", "pattern": "^[a-z]+-\\d{2,3}$"})",
       {R"("ab-12")", R"("x-123")"},
       {R"("ab-1")", R"("-12")"}},
      {R"({"type": "string", "pattern": "b.d|^x"})", {R"("abcde")", R"("xyz")", R"("x")"}, {R"("bd")", R"("ax")"}},
      {R"({"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 4})",
       {R"("aa")", R"("aaaa")"},
       {R"("a")", R"("aaaaa")", R"("ab")"}},
      {R"({"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 5})",
       {R"("abab")"},
       {R"("ab")", R"("aba")"}},
      {R"({"type": "string", "format": "date"})",
       {R"("2024-02-29")", R"("2026-12-31")"},
       {R"("2023-02-29")", R"("2026-04-31")", R"("26-01-01")", R"("1900-02-29")"}},
      {R"({"type": "string", "format": "date-time"})",
       {R"("2026-01-02T03:04:05.123Z")", R"("2026-01-02T03:04:05+02:00")"},
       {R"("2026-01-02 03:04:05Z")", R"("2026-01-02T24:04:05Z")"}},
      {R"({"type": "string", "format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"type": "string", "format": "ipv4"})",
       {R"("192.168.0.255")"},
       {R"("192.168.0.256")", R"("1.2.3")", R"("01.2.3.4")"}},
      {R"({"type": "string", "format": "ipv6"})",
       {R"("::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")"},
       {R"("1::2::3")", R"(":1")"}},
      {R"({"type": "string", "format": "email"})", {R"("a.b+c@example.org")"}, {R"("a@")", R"("a b@c.d")"}},
      {R"({"type": "string", "format": "uri"})",
       {R"("https://a.example/b%20c?d=e#f")", R"("mailto:a@b.c")", R"("file:///etc/passwd")"},
       {R"("not a uri")", R"("http://a b")", R"("//a")", R"("https://a:b")"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})", {"1", R"("a")"}, {R"("ab")", "null"}},
      {R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "n": {"type": "integer"}}, "required": ["k"],
                      "additionalProperties": false},
                     {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"],
                      "additionalProperties": false}, {"type": "null"}]})",
       {R"({"k":"a","n":1})", R"({"k":"b"})", "null"},
       {R"({"k":"b","n":1})", R"({"k":"c"})"}},
      {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                     {"properties": {"a": {"maximum": 5}, "b": {"type": "string"}}, "additionalProperties": false}]})",
       {R"({"a":4})", R"({"a":3,"b":""})"},
       {R"({"a":2})", R"({"a":6})", R"({"b":""})", R"({"a":4,"c":1})"}},
      {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false,
           "anyOf": [{"required": ["a"]}, {"maxProperties": 1}]})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})"}},
      {R"({"$ref": "#/$defs/list", "$defs": {"list": {"anyOf": [{"type": "null"}, {"type": "object",
           "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/list"}}, "required": ["v", "next"],
           "additionalProperties": false}]}}})",
       {"null", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{}})"}},
      {"{}", {"1", "[]", R"({"a":[null,{"b":1e5}]})"}, {"[1", "nul"}},
      {"true", {"1"}, {""}},
      {R"({"type": "string", "nullable": true})", {"null", R"("a")"}, {"1"}},
      {R"({"minimum": 5})", {"5", R"("a")", "null", "7.5"}, {"4", "-6"}},
  };
  for (const SchemaCase& one : cases) {
    SCOPED_TRACE(one.schema);
    const auto grammar = schema_grammar(one.schema);
    for (const char* text : one.taken) EXPECT_TRUE(takes(grammar, text)) << text;
    for (const char* text : one.refused) EXPECT_FALSE(takes(grammar, text)) << text;
  }
}

TEST(JsonSchema, CompactFormHasNoLineBreaks) {
  SchemaOptions options;
  options.pretty = false;
  const auto grammar = schema_grammar(R"({"type": "array", "items": {"type": "integer"}})", options);
  EXPECT_TRUE(takes(grammar, "[1, 2,3]"));
  EXPECT_FALSE(takes(grammar, "[1,\n2]"));
  EXPECT_FALSE(takes(grammar, "[ 1]"));
}

TEST(JsonSchema, WhiteSpaceIsBounded) {
  const auto grammar = schema_grammar("{}");
  EXPECT_TRUE(takes(grammar, "[\n" + std::string(40, ' ') + "1]"));
  EXPECT_FALSE(takes(grammar, "[\n" + std::string(41, ' ') + "1]"));
  EXPECT_FALSE(takes(grammar, "[\n\n1]"));
  EXPECT_FALSE(takes(grammar, " 1"));
  EXPECT_FALSE(takes(grammar, "1 "));
}

TEST(JsonSchema, LineBreaksMayComeFirstWhereAskedFor) {
  SchemaOptions options;
  options.leading_newlines = 4;
  const auto grammar = schema_grammar(R"({"type": "integer"})", options);
  for (int count = 0; count <= 5; ++count) {
    EXPECT_EQ(takes(grammar, std::string(static_cast<size_t>(count), '\n') + "1"), count <= 4) << count;
  }
}

TEST(JsonSchema, NestingEndsWhereTheReaderOfJsonEnds) {
  const auto grammar = schema_grammar("{}");
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(takes(grammar, nested(64)));
  EXPECT_NO_THROW(json(nested(64)));
  EXPECT_FALSE(takes(grammar, nested(65)));
  EXPECT_THROW(json(nested(65)), base::Error);
  Matcher matcher(grammar, demo_vocabulary());
  ASSERT_TRUE(matcher.accept_bytes(std::string(63, '[')));
  EXPECT_TRUE(Matcher(matcher).accept_bytes("1"));
  ASSERT_TRUE(matcher.accept_bytes("{"));
  EXPECT_FALSE(Matcher(matcher).accept_bytes("\""));
  EXPECT_TRUE(matcher.accept_bytes("}" + std::string(63, ']')));
  EXPECT_TRUE(matcher.must_end());
}

TEST(JsonSchema, FaultsAreNamedWithTheirPath) {
  const auto said = [](const char* schema) { return refusal([&] { schema_grammar(schema); }); };
  using testing::HasSubstr;
  EXPECT_THAT(said(R"({"properties": {"a": {"pattern": "("}}})"), HasSubstr("schema.properties.a.pattern: "));
  EXPECT_THAT(said(R"({"properties": {"a": {"not": {}}}})"), HasSubstr("schema.properties.a.not: is not supported"));
  EXPECT_THAT(said(R"({"items": {"uniqueItems": true}})"), HasSubstr("schema.items.uniqueItems: "));
  EXPECT_THAT(said(R"({"type": "strin"})"), HasSubstr("schema.type: must name types"));
  EXPECT_THAT(said(R"({"format": "colour"})"), HasSubstr("schema.format: \"colour\" is not supported"));
  EXPECT_THAT(said(R"({"$ref": "#/nowhere"})"), HasSubstr("schema.$ref: \"#/nowhere\" leads nowhere"));
  EXPECT_THAT(said(R"({"$ref": "http://a"})"), HasSubstr("leads out of the schema"));
  EXPECT_THAT(said(R"({"$ref": "#"})"), HasSubstr("leads back to itself"));
  EXPECT_THAT(said(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"), HasSubstr("leads back to itself"));
  EXPECT_THAT(said(R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})"), HasSubstr("alternatives 0 and 1"));
  EXPECT_THAT(said(R"({"type": "integer", "minimum": 5, "maximum": 4})"), HasSubstr("nothing satisfies it"));
  EXPECT_THAT(said("false"), HasSubstr("nothing satisfies it"));
  EXPECT_THAT(said(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})"), HasSubstr("nothing satisfies it"));
  EXPECT_THAT(said("[]"), HasSubstr("schema: must be an object"));
}

TEST(JsonSchema, LooseSchemasPassOverWhatIsNotSupported) {
  SchemaOptions options;
  options.loose = true;
  const auto grammar =
      schema_grammar(R"({"type": "object", "properties": {"a": {"type": "integer", "not": {}, "uniqueItems": true},
                         "b": {"type": "string", "pattern": "(?=x)y"
}
}
, "required" : ["a"], "if" : {}
})",
                     options);
  EXPECT_TRUE(takes(grammar, R"({"a":1,"b":"y"})"));
  EXPECT_FALSE(takes(grammar, R"({"b":"y"})"));
  // Also what is malformed.
  for (const char* schema : {R"({"enum": [[1]], "prefixItems": {}, "items": 5})", R"({"enum": [{"a": 1}],
       "properties": [], "additionalProperties": 3, "required": 7, "propertyNames": 1, "anyOf": {}, "allOf": 1})"}) {
    EXPECT_NO_THROW(schema_grammar(schema, options)) << schema;
  }
}

}  // namespace
}  // namespace tandem::grammar
