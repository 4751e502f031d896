#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/grammar/random_schema.h"
#include "tests/grammar/random_walk.h"
#include "text/output_parser.h"

namespace tandem::grammar {
namespace {

using base::Json;

// The grammar of a random schema; nothing where no value satisfies it.
std::shared_ptr<const Grammar> compiled(const Json& schema) {
  try {
    return compile_json_schema(schema);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.message(), "nothing satisfies it") << schema.dump();
    return nullptr;
  }
}

// Whether the grammar takes the text in tokens that are drawn at random among those that fit, each by its mask.
bool takes_split(const std::shared_ptr<const Grammar>& grammar, std::string_view text, std::mt19937& random) {
  Matcher matcher(grammar, demo_vocabulary());
  while (!text.empty()) {
    std::vector<int32_t> fitting;
    for (int32_t token = 0; token < matcher.vocabulary().size(); ++token) {
      const std::string_view bytes = matcher.vocabulary().bytes(token);
      if (!bytes.empty() && text.starts_with(bytes)) fitting.push_back(token);
    }
    const int32_t token = fitting.at(random() % fitting.size());
    const bool masked = has_bit(mask_of(matcher), token);
    EXPECT_EQ(masked, matcher.allows(token));
    EXPECT_EQ(masked, Matcher(matcher).accept(token));
    if (!masked || !matcher.accept(token)) return false;
    text.remove_prefix(matcher.vocabulary().bytes(token).size());
  }
  return matcher.may_end();
}

TEST(Conformance, TextsAreTakenWhereTheirValuesAreValid) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  RandomSchema make(random);
  int valid = 0, invalid = 0;
  for (int round = 0; round < 400; ++round) {
    const Json schema = make.document();
    const auto grammar = compiled(schema);
    if (grammar == nullptr) continue;
    for (int i = 0; i < 6; ++i) {
      Json value = make.value(schema);
      if (i % 2 == 1) value = make.changed(std::move(value));
      const bool expected = is_valid(schema, schema, value);
      ++(expected ? valid : invalid);
      const std::string text = value.dump();
      ASSERT_EQ(takes(grammar, text), expected) << schema.dump() << "\n" << text;
      if (i > 0) continue;
      ASSERT_EQ(takes_split(grammar, text, random), expected) << schema.dump() << "\n" << text;
    }
  }
  EXPECT_GT(valid, 500);
  EXPECT_GT(invalid, 200);
}

TEST(Conformance, AnswersDrawnFromMasksAreValid) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  RandomSchema make(random);
  int complete = 0;
  for (int round = 0; round < 300; ++round) {
    const Json schema = make.document();
    const auto grammar = compiled(schema);
    if (grammar == nullptr) continue;
    const auto text = random_answer(grammar, random, {"\"", "}", "]", "1", "null"});
    if (!text) continue;
    ++complete;
    Json value;
    // Names that the schema does not list may be equal: nlohmann's own reader takes the last.
    ASSERT_NO_THROW(value = Json::parse(*text)) << schema.dump() << "\n" << *text;
    ASSERT_TRUE(is_valid(schema, schema, value)) << schema.dump() << "\n" << *text;
  }
  EXPECT_GT(complete, 100);
}

TEST(Conformance, CallsDrawnFromMasksAreReadBackAsValidArguments) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  RandomSchema make(random);
  int complete = 0;
  for (int round = 0; round < 300; ++round) {
    ToolCallOptions options;
    options.mode = ToolCallOptions::Mode::kRequired;
    options.tools.push_back({"first tool", make.parameters(), true});
    options.tools.push_back({"second", make.parameters(), true});
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = compile_tool_calls(options);
    } catch (const base::Error& error) {
      ASSERT_EQ(error.message(), "no arguments satisfy it");
      continue;
    }
    const auto text =
        random_answer(grammar, random, {"\"", "}", "]", "1", "null", "\n</parameter>\n", "</function>\n</tool_call>"});
    if (!text) continue;
    ++complete;
    Json tools = Json::array();
    for (const ToolGrammar& tool : options.tools) {
      tools.push_back({{"name", tool.name}, {"parameters", tool.parameters}});
    }
    text::OutputParser parser(tools, false);
    for (const char c : *text) {
      for (const text::OutputEvent& event : parser.push(std::string_view(&c, 1))) {
        ASSERT_NE(event.kind, text::OutputEvent::Kind::kContent) << *text;
      }
    }
    parser.finish();
    ASSERT_FALSE(parser.tool_calls().empty()) << *text;
    for (const text::ToolCall& call : parser.tool_calls()) {
      const Json& schema = options.tools[call.name == "second" ? 1 : 0].parameters;
      ASSERT_TRUE(is_valid(schema, schema, call.arguments)) << schema.dump() << "\n"
                                                            << *text << "\n"
                                                            << call.arguments.dump();
    }
  }
  EXPECT_GT(complete, 100);
}

}  // namespace
}  // namespace tandem::grammar
