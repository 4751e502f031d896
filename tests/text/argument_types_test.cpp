#include "text/argument_types.h"

#include <chrono>
#include <gtest/gtest.h>

namespace tandem::text {
namespace {

using base::Json;

// What `text` becomes for a parameter of this schema; `defs` are the tool's "$defs".
Json value(const std::string& text, const char* schema, const char* defs = "{}") {
  const Json parameters = {
      {"type", "object"}, {"properties", {{"p", Json::parse(schema)}}}, {"$defs", Json::parse(defs)}};
  const Json tools = Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}});
  return typed_value(text, ToolSchemas(tools).types("f", "p"));
}

TEST(ArgumentTypes, AStringStaysAsItIs) {
  for (const char* text : {"5", "true", "null", "\"x\"", " a ", "{}", ""}) {
    EXPECT_EQ(value(text, R"({"type": "string"})"), text);
    EXPECT_EQ(value(text, "{}"), text);
    EXPECT_EQ(value(text, "true"), text);
    EXPECT_EQ(value(text, R"({"description": "anything"})"), text);
  }
}

TEST(ArgumentTypes, OtherTypesAreReadAsJson) {
  EXPECT_EQ(value("5", R"({"type": "integer"})").dump(), "5");
  EXPECT_EQ(value(" -5\n", R"({"type": "integer"})").dump(), "-5");
  EXPECT_EQ(value("5.0", R"({"type": "integer"})").dump(), "5");
  EXPECT_EQ(value("5", R"({"type": "number"})").dump(), "5");
  EXPECT_EQ(value("2.5e3", R"({"type": "number"})").dump(), "2500.0");
  EXPECT_EQ(value("true", R"({"type": "boolean"})"), true);
  EXPECT_EQ(value("False", R"({"type": "boolean"})"), false);
  EXPECT_EQ(value("null", R"({"type": "null"})"), nullptr);
  EXPECT_EQ(value("[1, {\"a\": null}]", R"({"type": "array"})").dump(), R"([1,{"a":null}])");
  EXPECT_EQ(value("{\"b\": 1, \"a\": 2}", R"({"type": "object"})").dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(value("{\"a\": {\"b\": 1}, \"c\": 2, \"a\": [3]}", R"({"type": "object"})").dump(), R"({"a":[3],"c":2})");
}

TEST(ArgumentTypes, WhatDoesNotFitIsAString) {
  EXPECT_EQ(value("5.5", R"({"type": "integer"})"), "5.5");
  EXPECT_EQ(value("five", R"({"type": "integer"})"), "five");
  EXPECT_EQ(value("", R"({"type": "integer"})"), "");
  EXPECT_EQ(value("1", R"({"type": "boolean"})"), "1");
  EXPECT_EQ(value("{}", R"({"type": "array"})"), "{}");
  EXPECT_EQ(value("[1", R"({"type": "array"})"), "[1");
  EXPECT_EQ(value("1e999", R"({"type": "number"})"), "1e999");
  EXPECT_EQ(value("\"5\"", R"({"type": "integer"})"), "\"5\"");
  // As a JSON number these would lose digits.
  EXPECT_EQ(value("123456789012345678901", R"({"type": "integer"})"), "123456789012345678901");
  EXPECT_EQ(value("18446744073709551615", R"({"type": "integer"})").dump(), "18446744073709551615");
}

TEST(ArgumentTypes, UnionsTakeTheTypeThatFits) {
  for (const char* schema : {R"({"type": ["integer", "null", "string"]})",
                             R"({"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "string"}]})",
                             R"({"oneOf": [{"const": 1}, {"enum": [null, "x"]}]})",
                             R"({"type": ["integer", "string"], "nullable": true})"}) {
    EXPECT_EQ(value("7", schema).dump(), "7") << schema;
    EXPECT_EQ(value("null", schema), nullptr) << schema;
    EXPECT_EQ(value("7x", schema), "7x") << schema;
  }
  EXPECT_EQ(value("[1]", R"({"anyOf": [{"type": "string"}, {"type": "array"}]})").dump(), "[1]");
  EXPECT_EQ(value("7", R"({"enum": ["7", "8"]})"), "7");
  EXPECT_EQ(value("7", R"({"const": 7})"), 7);
  EXPECT_EQ(value("7", R"({"anyOf": [{}, {"type": "integer"}]})"), "7");
}

TEST(ArgumentTypes, ReferencesAndCombinationsAreFollowed) {
  const char* defs =
      R"({"Count": {"type": "integer"}, "Deep": {"$ref": "#/$defs/Count"}, "Loop": {"$ref": "#/$defs/Loop"}})";
  EXPECT_EQ(value("7", R"({"$ref": "#/$defs/Count"})", defs), 7);
  EXPECT_EQ(value("7", R"({"$ref": "#/$defs/Deep"})", defs), 7);
  EXPECT_EQ(value("7", R"({"allOf": [{"$ref": "#/$defs/Deep"}, {"minimum": 1}]})", defs), 7);
  for (const char* lost : {"#/$defs/Loop", "#/$defs/None", "#/$defs/Count/type/0", "other.json", "#x", "#/~9", ""}) {
    EXPECT_EQ(value("7", (R"({"$ref": ")" + std::string(lost) + "\"}").c_str(), defs), "7") << lost;
  }
  EXPECT_EQ(value("{\"a\": 1}", R"({"properties": {"a": {}}})").dump(), R"({"a":1})");
  EXPECT_EQ(value("[1]", R"({"items": {}})").dump(), "[1]");
}

TEST(ArgumentTypes, PropertiesAreSoughtThroughTheWholeSchema) {
  const Json tools = Json::parse(R"([{"name": "f", "parameters": {"$ref": "#/$defs/Args", "$defs": {"Args":
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"additionalProperties": {"type": "boolean"}}]}}}},
    {"name": "g"}, {"function": {"name": 3}}, 5, {"name": "h", "parameters": [1]}])");
  const ToolSchemas schemas(tools);
  EXPECT_EQ(schemas.types("f", "a"), JsonTypes(JsonTypes::kInteger));
  EXPECT_EQ(schemas.types("f", "other"), JsonTypes(JsonTypes::kBoolean));
  EXPECT_TRUE(schemas.has("g"));
  for (const char* name : {"g", "h", "unknown"}) EXPECT_EQ(schemas.types(name, "a"), JsonTypes(JsonTypes::kString));
}

TEST(ArgumentTypes, ASchemaThatFansOutForEverIsGivenUp) {
  Json defs = Json::object();
  for (int i = 0; i < 31; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    defs["d" + std::to_string(i)] = {{"anyOf", {next, next, next}}};
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(value("7", R"({"$ref": "#/$defs/d0"})", defs.dump().c_str()), "7");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tandem::text
