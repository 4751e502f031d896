#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/support.h"

namespace tandem::grammar {
namespace {

using Mode = ToolCallOptions::Mode;

ToolCallOptions options_for(Mode mode, std::vector<ToolGrammar> tools) {
  ToolCallOptions options;
  options.tools = std::move(tools);
  options.mode = mode;
  return options;
}

ToolGrammar tool(std::string name, std::string_view parameters, bool strict = true) {
  return {std::move(name), json(parameters), strict};
}

constexpr const char* kRead = R"({"type": "object", "properties": {"path": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1}, "lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["path"], "additionalProperties": false})";

std::string call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}

std::string parameter(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(ToolCalls, RequiredModeTakesCallsAlone) {
  const auto grammar = compile_tool_calls(options_for(Mode::kRequired, {tool("read", kRead), tool("stop", "{}")}));
  EXPECT_TRUE(takes(grammar, call("stop", "")));
  EXPECT_TRUE(takes(grammar, call("read", parameter("path", "/a b"))));
  EXPECT_TRUE(takes(grammar, call("read", parameter("path", "") + parameter("limit", "12"))));
  EXPECT_TRUE(takes(grammar, call("read", parameter("path", "two\nlines\n") + parameter("lines", R"(["a", "b"])"))));
  EXPECT_TRUE(takes(grammar, call("stop", "") + "\n" + call("read", parameter("path", "x"))));
  EXPECT_FALSE(takes(grammar, ""));
  EXPECT_FALSE(takes(grammar, "Well. " + call("stop", "")));
  EXPECT_FALSE(takes(grammar, call("stop", "") + "done"));
  EXPECT_FALSE(takes(grammar, call("delete", "")));
  EXPECT_FALSE(takes(grammar, call("read", "")));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x") + parameter("limit", "0"))));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x") + parameter("limit", "many"))));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x") + parameter("other", "y"))));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x") + parameter("path", "y"))));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x\r"))));
  EXPECT_FALSE(takes(grammar, call("stop", parameter("x", "y"))));
}

TEST(ToolCalls, AutoModeTakesTextUntilACallBegins) {
  const auto grammar = compile_tool_calls(options_for(Mode::kAuto, {tool("read", kRead)}));
  EXPECT_TRUE(takes(grammar, ""));
  EXPECT_TRUE(takes(grammar, "Plain text, <b>bold</b> \"quoted\" <tool"));
  EXPECT_TRUE(takes(grammar, "I'll read it.\n\n" + call("read", parameter("path", "x"))));
  EXPECT_FALSE(takes(grammar, "<tool_call> is a tag"));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x")) + " text"));
  Matcher matcher(grammar, demo_vocabulary());
  ASSERT_TRUE(matcher.accept_bytes("text <tool_call>"));
  EXPECT_FALSE(matcher.may_end());
  EXPECT_TRUE(matcher.accept_bytes("\n<function=read>\n<parameter=path>\n"));
}

TEST(ToolCalls, ContentUnderASchemaIsJsonOrACall) {
  ToolCallOptions options = options_for(Mode::kAuto, {tool("read", kRead)});
  options.content = json(R"({"type": "object", "properties": {"ok": {"type": "boolean"}, "why": {"type": "string"}},
                             "required": ["ok"], "additionalProperties": false})");
  options.leading_newlines = 4;
  const auto grammar = compile_tool_calls(options);
  EXPECT_TRUE(takes(grammar, R"({"ok": true})"));
  EXPECT_TRUE(takes(grammar,
                    "\n\n"
                    R"({"ok":false,"why":"a < b"})"));
  EXPECT_TRUE(takes(grammar, "\n\n" + call("read", parameter("path", "x"))));
  EXPECT_TRUE(takes(grammar, call("read", parameter("path", "x")) + "\n" + call("read", parameter("path", "y"))));
  EXPECT_FALSE(takes(grammar, ""));
  EXPECT_FALSE(takes(grammar, "Text. " + call("read", parameter("path", "x"))));
  EXPECT_FALSE(takes(grammar, R"({"ok": 1})"));
  EXPECT_FALSE(takes(grammar, R"({"ok": true, "why": "<tool_call>"})")) << "it would be read as a call";
  options.content = json(R"({"type": "object", "uniqueItems": true, "not": {}})");
  options.content_source = "format";
  try {
    (void)compile_tool_calls(options);
    ADD_FAILURE() << "compiled";
  } catch (const base::Error& error) {
    EXPECT_THAT(error.source(), ::testing::StartsWith("format"));
  }
}

TEST(ToolCalls, OneToolAndOneCallWhereAskedFor) {
  ToolCallOptions options = options_for(Mode::kRequired, {tool("read", kRead), tool("stop", "{}")});
  options.only = "stop";
  options.parallel = false;
  options.leading_newlines = 2;
  const auto grammar = compile_tool_calls(options);
  EXPECT_TRUE(takes(grammar, call("stop", "")));
  EXPECT_TRUE(takes(grammar, "\n\n" + call("stop", "")));
  EXPECT_FALSE(takes(grammar, "\n\n\n" + call("stop", "")));
  EXPECT_FALSE(takes(grammar, call("read", parameter("path", "x"))));
  EXPECT_FALSE(takes(grammar, call("stop", "") + "\n" + call("stop", "")));
  Matcher matcher(grammar, demo_vocabulary());
  ASSERT_TRUE(matcher.accept_bytes(call("stop", "")));
  EXPECT_TRUE(matcher.must_end());
}

TEST(ToolCalls, StringsAreRawTextWithinTheirSchema) {
  const auto grammar = compile_tool_calls(options_for(
      Mode::kRequired,
      {tool("t", R"({"properties": {"e": {"enum": ["a b", "c\"d"]}, "p": {"type": "string", "pattern": "^x+$"},
                      "l": {"type": "string", "minLength": 2, "maxLength": 3}, "d": {"type": "string", "format": "date"},
                      "m": {"type": ["string", "null", "integer"]}, "n": {"type": ["integer", "null"]}}})")}));
  const auto taken = [&](const char* name, const char* value) {
    return takes(grammar, call("t", parameter(name, value)));
  };
  EXPECT_TRUE(taken("e", "a b"));
  EXPECT_TRUE(taken("e", "c\"d"));
  EXPECT_FALSE(taken("e", "a"));
  EXPECT_FALSE(taken("e", "\"a b\""));
  EXPECT_TRUE(taken("p", "xx"));
  EXPECT_FALSE(taken("p", "y"));
  EXPECT_TRUE(taken("l", "ä\n"));
  EXPECT_FALSE(taken("l", "a"));
  EXPECT_FALSE(taken("l", "abcd"));
  EXPECT_TRUE(taken("d", "2026-11-30"));
  EXPECT_FALSE(taken("d", "2026-11-31"));
  EXPECT_TRUE(taken("m", "null"));
  EXPECT_TRUE(taken("m", "text"));
  EXPECT_TRUE(taken("m", "12"));
  EXPECT_TRUE(taken("m", "true"));
  EXPECT_FALSE(taken("m", "1.5"));
  EXPECT_TRUE(taken("n", "null"));
  EXPECT_TRUE(taken("n", "-3"));
  EXPECT_FALSE(taken("n", "text"));
}

TEST(ToolCalls, ValuesMayQuoteTagsThatEndNothing) {
  const auto grammar = compile_tool_calls(options_for(Mode::kRequired, {tool("read", kRead)}));
  const auto taken = [&](const char* value) { return takes(grammar, call("read", parameter("path", value))); };
  EXPECT_TRUE(taken("a </parameter> b"));
  EXPECT_TRUE(taken("<parameter=x>\n<tool_call>"));
  EXPECT_TRUE(taken("</function> </tool_cal"));
  EXPECT_FALSE(taken("a\n</parameter> b"));
  EXPECT_FALSE(taken("a</parameter>\n\n</function>"));
  EXPECT_FALSE(taken("</function></tool_call>"));
}

TEST(ToolCalls, OtherParametersWhereTheSchemaAllowsThem) {
  const auto grammar =
      compile_tool_calls(options_for(Mode::kRequired, {tool("t", R"({"properties": {"a": {"type": "integer"}},
                                      "additionalProperties": {"type": "boolean"}})")}));
  EXPECT_TRUE(takes(grammar, call("t", parameter("a", "1") + parameter("b", "true") + parameter("c", "false"))));
  EXPECT_FALSE(takes(grammar, call("t", parameter("b", "text"))));
  EXPECT_FALSE(takes(grammar, call("t", parameter("b", "true") + parameter("a", "1"))));
}

TEST(ToolCalls, StrictToolsRefuseWhatOthersPassOver) {
  const char* const schema = R"({"properties": {"a": {"type": "string", "pattern": "(?=x)y"}}, "required": ["a"]})";
  EXPECT_THAT(refusal([&] { compile_tool_calls(options_for(Mode::kAuto, {tool("s", "{}"), tool("t", schema)})); }),
              testing::HasSubstr("tools[1].parameters.properties.a.pattern: "));
  const auto grammar = compile_tool_calls(options_for(Mode::kRequired, {tool("t", schema, false)}));
  EXPECT_TRUE(takes(grammar, call("t", parameter("a", "z"))));
  EXPECT_FALSE(takes(grammar, call("t", "")));
  EXPECT_FALSE(takes(grammar, call("t", parameter("b", "z"))));
}

TEST(ToolCalls, FaultsNameTheTool) {
  const auto said = [](std::vector<ToolGrammar> tools, std::string only = "") {
    ToolCallOptions options = options_for(Mode::kRequired, std::move(tools));
    options.only = std::move(only);
    return refusal([&] { compile_tool_calls(options); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(said({}), HasSubstr("tools: has no tool"));
  EXPECT_THAT(said({tool("a", "{}")}, "b"), HasSubstr("tools: has no tool named b"));
  EXPECT_THAT(said({tool("a\n", "{}")}), HasSubstr("tools[0].name: "));
  EXPECT_THAT(said({tool("a", "{}"), tool("b", R"({"properties": {"x": false}, "required": ["x"]})")}),
              HasSubstr("tools[1].parameters: no arguments satisfy it"));
  EXPECT_THAT(said({tool("a", R"({"properties": {"x>": {}}, "required": ["x>"]})")}), HasSubstr("no arguments"));
}

}  // namespace
}  // namespace tandem::grammar
