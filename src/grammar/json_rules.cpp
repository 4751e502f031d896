#include "grammar/json_rules.h"

#include <map>

#include "grammar/number_rules.h"
#include "grammar/text_rules.h"

namespace tandem::grammar {

namespace {

constexpr int kMaxIndentation = 40;  // blanks: bounded, so that an answer can't consist of them

}  // namespace

void JsonRules::space(NodeId from, NodeId to, bool blank, bool line_break) {
  if (!blank) return builder_.skip(from, to);
  std::optional<RuleId>& rule = line_break ? line_break_ : blank_;
  if (!rule) {
    rule = builder_.add_rule("white space", 0);
    const NodeId start = builder_.start(*rule), end = builder_.add_node(*rule);
    builder_.skip(start, end);
    builder_.literal(start, " ", end);
    builder_.ends(end);
    NodeId at = line_break ? builder_.literal(start, "\n") : end;
    for (int i = 0; line_break && i < kMaxIndentation; ++i) {
      builder_.skip(at, end);
      at = builder_.literal(at, " ");
    }
    if (line_break) builder_.skip(at, end);
  }
  builder_.call(from, *rule, to);
}

RuleId JsonRules::any_string() {
  if (!any_string_) {
    any_string_ = strings_ ? string_rule(builder_, *strings_, Spelling::kJson) : any_string_rule(builder_);
  }
  return *any_string_;
}

RuleId JsonRules::any_value() {
  if (any_value_) return *any_value_;
  const RuleId rule = builder_.add_rule("a value", 0);
  any_value_ = rule;
  const NodeId start = builder_.start(rule), end = builder_.add_node(rule);
  builder_.ends(end);
  literals(start, {"null", "true", "false"}, end);
  builder_.call(start,
                shared("number " + NumberRange().key(), [&] { return number_rule(builder_, {}, builder_.source()); }),
                end);
  builder_.call(start, any_string(), end);
  builder_.call(start, any_array(), end);
  builder_.call(start, any_object(), end);
  return rule;
}

RuleId JsonRules::any_array() {
  if (any_array_) return *any_array_;
  const RuleId rule = builder_.add_rule("an array", 1);
  any_array_ = rule;
  const NodeId end = builder_.add_node(rule), item = builder_.add_node(rule), after = builder_.add_node(rule);
  builder_.ends(end);
  const NodeId open = builder_.literal(builder_.start(rule), "[");
  builder_.literal(open, "]", end);
  after_open(open, item);
  builder_.call(item, any_value(), after);
  after_comma(builder_.literal(after, ","), item);
  const NodeId closing = builder_.add_node(rule);
  before_close(after, closing);
  builder_.literal(closing, "]", end);
  return rule;
}

RuleId JsonRules::any_object() {
  if (any_object_) return *any_object_;
  const RuleId rule = builder_.add_rule("an object", 1);
  any_object_ = rule;
  const NodeId end = builder_.add_node(rule), key = builder_.add_node(rule), colon = builder_.add_node(rule),
               value = builder_.add_node(rule), after = builder_.add_node(rule);
  builder_.ends(end);
  const NodeId open = builder_.literal(builder_.start(rule), "{");
  builder_.literal(open, "}", end);
  after_open(open, key);
  builder_.call(key, any_string(), colon);
  after_colon(builder_.literal(colon, ":"), value);
  builder_.call(value, any_value(), after);
  after_comma(builder_.literal(after, ","), key);
  const NodeId closing = builder_.add_node(rule);
  before_close(after, closing);
  builder_.literal(closing, "}", end);
  return rule;
}

void JsonRules::literals(NodeId from, const std::vector<std::string>& texts, NodeId to) {
  std::map<std::pair<NodeId, char>, NodeId> children;
  for (const std::string& text : texts) {
    NodeId node = from;
    for (const char c : text) {
      const auto [child, added] = children.emplace(std::pair{node, c}, 0);
      if (added) child->second = builder_.literal(node, std::string_view(&c, 1));
      node = child->second;
    }
    builder_.skip(node, to);
  }
}

void JsonRules::value(NodeId from, const base::Json& value, NodeId to) {
  if (!value.is_structured()) {
    builder_.literal(from, value.is_string() ? json_quoted(value.get_ref<const std::string&>()) : value.dump(), to);
    return;
  }
  const bool object = value.is_object();
  NodeId at = builder_.literal(from, object ? "{" : "[");
  bool first = true;
  for (auto item = value.begin(); item != value.end(); ++item) {
    const NodeId begin = builder_.add_node(builder_.owner(from)), end = builder_.add_node(builder_.owner(from));
    if (first) {
      after_open(at, begin);
    } else {
      after_comma(builder_.literal(at, ","), begin);
    }
    NodeId content = begin;
    if (object) {
      content = builder_.add_node(builder_.owner(from));
      after_colon(builder_.literal(begin, json_quoted(item.key()) + ":"), content);
    }
    this->value(content, *item, end);
    at = end;
    first = false;
  }
  if (!first) {
    const NodeId closing = builder_.add_node(builder_.owner(from));
    before_close(at, closing);
    at = closing;
  }
  builder_.literal(at, object ? "}" : "]", to);
}

}  // namespace tandem::grammar
