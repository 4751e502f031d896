// Tool calls in the models' form, so that text::OutputParser reads back arguments which the schema admits.
#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/leading_newlines.h"
#include "grammar/pattern.h"
#include "grammar/schema_rules.h"
#include "grammar/text_rules.h"
#include "text/argument_types.h"

namespace tandem::grammar {

namespace {

using base::Json;
using text::JsonTypes;

constexpr size_t kMaxTools = 1'000;
constexpr size_t kMaxNameBytes = 512;  // that the parser of answers takes
constexpr std::string_view kSource = "tools";

// What ends a value to the parser: the tag where another one of the call follows, or two closing tags. A line break
// before the tag always is its end here.
#define TANDEM_VALUE_ENDS                                                                                             \
  "\\n</parameter>|</parameter>[ \\t\\r\\n]{0,32}(?:<parameter=|</function>|</tool_call>)|</function>[ \\t\\r\\n]{0," \
  "32}</tool_call>"
// Blanks as text::strip counts them.
#define TANDEM_BLANKS "[\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]*"

// Automata that all tool grammars share.
struct TagFree {
  // Text of which the parser takes nothing for a tag. Not at the end: a carriage return, which would belong to the tag.
  CharDfa values = compile_pattern(TANDEM_VALUE_ENDS "|\\r$", "values").complement();
  CharDfa values_without_returns = compile_pattern(TANDEM_VALUE_ENDS "|\\r", "values").complement();
  CharDfa json_strings = compile_pattern("</parameter>|</function>", "strings").complement();
  CharDfa content = compile_pattern("<tool_call>", "content").complement();
  CharDfa names = compile_pattern("^[^<>\\r\\n]{1,64}$", "names");
  // Text that the parser reads as a value of another type.
  CharDfa nulls = compile_pattern("^" TANDEM_BLANKS "null" TANDEM_BLANKS "$", "values");
  CharDfa booleans = compile_pattern("^" TANDEM_BLANKS "(?:[tT]rue|[fF]alse)" TANDEM_BLANKS "$", "values");
  CharDfa numbers =
      compile_pattern("^" TANDEM_BLANKS "-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d+)?" TANDEM_BLANKS "$", "values");
  CharDfa arrays = compile_pattern("^" TANDEM_BLANKS "\\[", "values");
  CharDfa objects = compile_pattern("^" TANDEM_BLANKS "\\{", "values");
};
#undef TANDEM_VALUE_ENDS
#undef TANDEM_BLANKS

const TagFree& tag_free() {
  static const TagFree kTagFree;
  return kTagFree;
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.find_first_of("<>\r\n") == std::string_view::npos;
}

// Writes the calls of one tool.
class ToolRules {
 public:
  // `typed`: the schema says what values may be; otherwise only what types they have.
  ToolRules(JsonRules& json, const ToolGrammar& tool, std::string source, const text::ToolSchemas& parser,
            PatternCache& patterns, bool typed)
      : json_(json),
        builder_(json.builder()),
        tool_(tool),
        parser_(parser),
        typed_(typed),
        reader_(tool.parameters.is_null() ? no_parameters() : tool.parameters, std::move(source), !tool.strict,
                patterns),
        rules_(json, reader_) {}

  RuleId call() {
    const RuleId rule = builder_.add_rule(fmt::format("a call of {}", tool_.name), 0);
    const NodeId end = builder_.add_node(rule);
    builder_.ends(end);
    const NodeId open = builder_.literal(builder_.start(rule), "<tool_call>\n<function=" + tool_.name + ">\n");
    std::vector<SchemaFacts> ways;
    for (const Conjunction& way : reader_.alternatives({reader_.root()})) ways.push_back(reader_.facts(way));
    // The parser takes a name's type from whichever alternative lists it.
    std::vector<std::string> listed_names;
    for (const SchemaFacts& facts : ways) {
      for (std::string& name : SchemaReader::property_names(facts)) listed_names.push_back(std::move(name));
    }
    for (const SchemaFacts& facts : ways) {
      if (facts.types.has(JsonTypes::kObject)) parameters(open, facts, listed_names, end);
    }
    rules_.finish();
    return rule;
  }

 private:
  static const Json& no_parameters() {
    static const Json kNone = Json::object();
    return kNone;
  }

  void parameters(NodeId from, const SchemaFacts& facts, const std::vector<std::string>& listed_names, NodeId to) {
    if (facts.values) base::bad_input(facts.path, "must not list whole objects");
    const std::vector<std::string> names = SchemaReader::property_names(facts);
    const Conjunction others = SchemaReader::other_properties(facts);
    const bool open = !others.empty() && !is_false(others);
    check_counts(facts, open ? kNoLimit : names.size());
    NodeId at = from;
    for (const std::string& name : names) {
      const NodeId next = builder_.add_node(builder_.owner(from));
      const bool required = std::find(facts.required.begin(), facts.required.end(), name) != facts.required.end();
      if (!required) builder_.skip(at, next);
      const Conjunction schema = SchemaReader::property(facts, name);
      const bool allowed = facts.names.empty() || reader_.admits(facts.names, Json(name));
      if (is_name(name) && allowed && !is_false(schema)) {
        parameter(builder_.literal(at, "<parameter=" + name + ">\n"), name, schema, next);
      }
      at = next;
    }
    if (open) other_parameters(at, facts, listed_names, others);
    builder_.literal(at, "</function>\n</tool_call>", to);
  }

  static bool is_false(const Conjunction& schema) {
    return std::any_of(schema.begin(), schema.end(), [](const SchemaPlace& place) { return *place.schema == false; });
  }

  void check_counts(const SchemaFacts& facts, size_t most) const {
    if (reader_.loose() || (facts.property_count.need <= facts.required.size() && facts.property_count.left >= most)) {
      return;
    }
    base::bad_input(facts.path, "minProperties and maxProperties are not supported for the parameters of a tool");
  }

  void other_parameters(NodeId at, const SchemaFacts& facts, const std::vector<std::string>& names,
                        const Conjunction& schema) {
    CharDfa allowed = tag_free().names;
    if (const auto own = rules_.other_names(facts, names)) allowed = allowed.intersect(*own, facts.path);
    const NodeId name = builder_.literal(at, "<parameter="), close = builder_.add_node(builder_.owner(at));
    builder_.call(name, string_rule(builder_, allowed, Spelling::kRaw), close);
    // The parser gives all names that the schema does not list one type.
    parameter(builder_.literal(close, ">\n"), unlisted(names), schema, at);
  }

  static std::string unlisted(const std::vector<std::string>& names) {
    std::string name = "_";
    while (std::find(names.begin(), names.end(), name) != names.end()) name += '_';
    return name;
  }

  // A value and the closing tag.
  void parameter(NodeId from, const std::string& name, const Conjunction& schema, NodeId to) {
    const NodeId end = builder_.add_node(builder_.owner(from));
    builder_.literal(end, "\n</parameter>\n", to);
    const JsonTypes types = parser_.types(tool_.name, name);
    if (!typed_) {
      SchemaFacts facts;
      facts.path = reader_.root().path;
      alternative(from, facts, {}, types, end);
      return;
    }
    for (const Conjunction& way : reader_.alternatives(schema)) {
      alternative(from, reader_.facts(way), schema, types, end);
    }
  }

  // `types` are those that the parser turns text into.
  void alternative(NodeId from, const SchemaFacts& facts, const Conjunction& schema, JsonTypes types, NodeId to) {
    if (facts.values) return listed(from, facts, schema, types, to);
    const bool any_number = types.has(JsonTypes::kNumber);
    for (const JsonTypes::Type type : {JsonTypes::kNull, JsonTypes::kBoolean, JsonTypes::kInteger, JsonTypes::kNumber,
                                       JsonTypes::kArray, JsonTypes::kObject}) {
      if (!facts.types.has(type)) continue;
      const bool read = type == JsonTypes::kInteger ? types.has(type) || any_number : types.has(type);
      if (!read || (type == JsonTypes::kInteger && any_number && facts.types.has(JsonTypes::kNumber))) continue;
      rules_.value_of_type(from, facts, type, to);
    }
    if (facts.types.has(JsonTypes::kString) && types.has(JsonTypes::kString)) text(from, facts, types, to);
  }

  void listed(NodeId from, const SchemaFacts& facts, const Conjunction& schema, JsonTypes types, NodeId to) {
    std::vector<std::string> texts;
    for (const Json& value : rules_.listed_values(facts)) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      if (!tag_free().values.matches(text) || !reader_.admits(schema, text::typed_value(text, types))) continue;
      if (value.is_structured()) {
        json_.value(from, value, to);
      } else {
        texts.push_back(text);
      }
    }
    json_.literals(from, texts, to);
  }

  // A string as it is, where the parser leaves it one.
  void text(NodeId from, const SchemaFacts& facts, JsonTypes types, NodeId to) {
    if (facts.length.left != kNoLimit && facts.length.need > facts.length.left) return;
    std::string key = "text " + facts.string_key();
    for (const auto& [type, strings] : other_types()) key += types.has(type) ? '1' : '0';
    const RuleId rule = json_.shared(key, [&] { return text_rule(facts, types); });
    builder_.call(from, rule, to);
  }

  RuleId text_rule(const SchemaFacts& facts, JsonTypes types) {
    const bool counted = !(facts.length == Counter{0, kNoLimit});
    CharDfa within = counted ? tag_free().values_without_returns : tag_free().values;
    for (const auto& [type, strings] : other_types()) {
      if (types.has(type)) within = within.intersect(strings->complement(), facts.path);
    }
    const CharDfa strings = rules_.strings(facts, within).value_or(within);
    return string_rule(builder_, strings, Spelling::kRaw, strings.open_ended() ? facts.length : Counter{0, kNoLimit});
  }

  static std::array<std::pair<JsonTypes::Type, const CharDfa*>, 6> other_types() {
    return {{{JsonTypes::kNull, &tag_free().nulls},
             {JsonTypes::kBoolean, &tag_free().booleans},
             {JsonTypes::kInteger, &tag_free().numbers},
             {JsonTypes::kNumber, &tag_free().numbers},
             {JsonTypes::kArray, &tag_free().arrays},
             {JsonTypes::kObject, &tag_free().objects}}};
  }

  JsonRules& json_;
  AutomatonBuilder& builder_;
  const ToolGrammar& tool_;
  const text::ToolSchemas& parser_;
  bool typed_;
  SchemaReader reader_;
  SchemaRules rules_;
};

Json parser_tools(const ToolCallOptions& options) {
  Json tools = Json::array();
  for (const ToolGrammar& tool : options.tools) {
    tools.push_back({{"name", tool.name}, {"parameters", tool.parameters}});
  }
  return tools;
}

// A schema that names the same parameters and says nothing about their values.
Json names_only(const Json& parameters) {
  Json result = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  if (!parameters.is_object()) return result;
  const Json& properties = base::json_member(parameters, "properties");
  if (properties.is_object()) {
    for (auto item = properties.begin(); item != properties.end(); ++item) result["properties"][item.key()] = true;
  }
  for (const Json& name : base::json_member(parameters, "required")) {
    if (name.is_string() && result["properties"].contains(name.get<std::string>())) result["required"].push_back(name);
  }
  return result;
}

// The calls of each tool that may be called.
std::vector<RuleId> tool_rules(JsonRules& json, const ToolCallOptions& options, std::vector<std::string>& sources) {
  const text::ToolSchemas parser(parser_tools(options));
  PatternCache patterns;
  std::vector<RuleId> rules;
  std::set<std::string> known;
  for (size_t i = 0; i < options.tools.size(); ++i) {
    const ToolGrammar& tool = options.tools[i];
    const std::string place = fmt::format("{}[{}]", kSource, i);
    if (!is_name(tool.name)) {
      base::bad_input(place + ".name", "must have 1 to {} bytes, and no <, > or line break", kMaxNameBytes);
    }
    if (!known.insert(tool.name).second || (!options.only.empty() && tool.name != options.only)) continue;
    sources.push_back(place + ".parameters");
    try {
      rules.push_back(ToolRules(json, tool, sources.back(), parser, patterns, true).call());
    } catch (const base::Error&) {
      if (tool.strict) throw;
      // The schema exceeds a limit.
      const ToolGrammar bare = {tool.name, names_only(tool.parameters), false};
      rules.push_back(ToolRules(json, bare, sources.back(), parser, patterns, false).call());
    }
  }
  return rules;
}

}  // namespace

std::shared_ptr<const Grammar> compile_tool_calls(const ToolCallOptions& options) {
  if (options.tools.size() > kMaxTools) {
    base::bad_input(std::string(kSource), "has {} tools; at most {} are supported", options.tools.size(), kMaxTools);
  }
  AutomatonBuilder builder{std::string(kSource)};
  JsonRules json(builder, true, tag_free().json_strings);
  std::vector<std::string> sources;
  const std::vector<RuleId> tools = tool_rules(json, options, sources);
  if (tools.empty()) {
    base::bad_input(std::string(kSource), "has no tool{}{}", options.only.empty() ? "" : " named ", options.only);
  }
  const std::vector<bool> satisfiable = builder.satisfiable(tools);
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!satisfiable[i]) base::bad_input(sources[i], "no arguments satisfy it");
  }
  const RuleId calls = builder.add_rule("the calls", 0);
  const NodeId called = builder.add_node(calls);
  builder.ends(called);
  NodeId next = builder.start(calls);
  for (const RuleId tool : tools) builder.call(next, tool, called);
  if (options.parallel) builder.literal(called, "\n", next);
  if (options.mode == ToolCallOptions::Mode::kRequired) {
    const RuleId root = after_newlines(builder, calls, options.leading_newlines);
    return std::make_shared<const Grammar>(std::move(builder).finish(root, kMaxJsonDepth));
  }
  if (options.content) {
    JsonRules content(builder, true, tag_free().content);  // a string that quotes <tool_call> would be read as a call
    PatternCache patterns;
    SchemaReader reader(*options.content, options.content_source, false, patterns);
    SchemaRules rules(content, reader);
    const RuleId value = rules.value({reader.root()});
    rules.finish();
    const RuleId either = builder.add_rule("the answer", 0);
    const NodeId end = builder.add_node(either);
    builder.call(builder.start(either), value, end);
    builder.call(builder.start(either), calls, end);
    builder.ends(end);
    const RuleId root = after_newlines(builder, either, options.leading_newlines);
    return std::make_shared<const Grammar>(std::move(builder).finish(root, kMaxJsonDepth));
  }
  const RuleId root = builder.add_rule("the answer", 0);
  const NodeId content = builder.add_node(root), end = builder.add_node(root);
  builder.call(builder.start(root), string_rule(builder, tag_free().content, Spelling::kRaw), content);
  builder.ends(content);
  builder.call(content, calls, end);
  builder.ends(end);
  return std::make_shared<const Grammar>(std::move(builder).finish(root, kMaxJsonDepth));
}

}  // namespace tandem::grammar
