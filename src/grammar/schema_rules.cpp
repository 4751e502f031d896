#include "grammar/schema_rules.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/text_rules.h"

namespace tandem::grammar {

namespace {

using text::JsonTypes;

constexpr size_t kMaxRules = 20'000;
constexpr size_t kMaxProperties = 2'000;  // named ones of one object

constexpr bool is_free(Counter counter) {
  return counter == Counter{0, kNoLimit};
}

bool is_never(const Conjunction& conjunction) {
  return std::any_of(conjunction.begin(), conjunction.end(),
                     [](const SchemaPlace& place) { return place.schema->is_boolean() && !place.schema->get<bool>(); });
}

}  // namespace

RuleId SchemaRules::value(const Conjunction& conjunction) {
  std::vector<const base::Json*> key;
  for (const SchemaPlace& place : conjunction) {
    const bool says_nothing = *place.schema == true || (place.schema->is_object() && place.schema->empty());
    if (!says_nothing) key.push_back(place.schema);
  }
  if (key.empty()) return json_.any_value();
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  const auto known = rules_.find(key);
  if (known != rules_.end()) return known->second;
  if (rules_.size() >= kMaxRules) {
    base::bad_input(conjunction.front().path, "the schema combines to more than {} different ones", kMaxRules);
  }
  const RuleId rule = json_.builder().add_rule(conjunction.front().path, 0);
  rules_.emplace(std::move(key), rule);
  unwritten_.emplace_back(rule, conjunction);
  return rule;
}

void SchemaRules::finish() {
  while (!unwritten_.empty()) {
    const auto [rule, conjunction] = std::move(unwritten_.front());
    unwritten_.pop_front();
    write(rule, conjunction);
  }
}

void SchemaRules::write(RuleId rule, const Conjunction& conjunction) {
  AutomatonBuilder& builder = json_.builder();
  const NodeId end = builder.add_node(rule);
  builder.ends(end);
  for (const Conjunction& one : reader_.alternatives(conjunction)) {
    alternative(builder.start(rule), reader_.facts(one), end);
  }
}

std::vector<base::Json> SchemaRules::listed_values(const SchemaFacts& facts) {
  if (!facts.values) return {};
  SchemaFacts others = facts;
  others.values.reset();
  std::vector<base::Json> result;
  for (const base::Json& value : *facts.values) {
    if (reader_.admits(others, value)) result.push_back(value);
  }
  return result;
}

void SchemaRules::alternative(NodeId from, const SchemaFacts& facts, NodeId to) {
  if (facts.values) {
    std::vector<std::string> scalars;
    const std::optional<CharDfa>& allowed = json_.strings();
    for (const base::Json& value : listed_values(facts)) {
      if (value.is_structured()) {
        json_.value(from, value, to);
      } else if (!value.is_string()) {
        scalars.push_back(value.dump());
      } else if (const auto& text = value.get_ref<const std::string&>(); !allowed || allowed->matches(text)) {
        scalars.push_back(json_quoted(text));
      }
    }
    json_.literals(from, scalars, to);
    return;
  }
  for (const JsonTypes::Type type : {JsonTypes::kNull, JsonTypes::kBoolean, JsonTypes::kInteger, JsonTypes::kNumber,
                                     JsonTypes::kString, JsonTypes::kArray, JsonTypes::kObject}) {
    if (!facts.types.has(type)) continue;
    if (type == JsonTypes::kInteger && facts.types.has(JsonTypes::kNumber)) continue;
    value_of_type(from, facts, type, to);
  }
}

void SchemaRules::value_of_type(NodeId from, const SchemaFacts& facts, JsonTypes::Type type, NodeId to) {
  AutomatonBuilder& builder = json_.builder();
  switch (type) {
    case JsonTypes::kNull:
      return builder.literal(from, "null", to);
    case JsonTypes::kBoolean:
      return json_.literals(from, {"true", "false"}, to);
    case JsonTypes::kInteger:
    case JsonTypes::kNumber: {
      NumberRange range = facts.numbers;
      range.whole = type == JsonTypes::kInteger;
      const RuleId rule =
          json_.shared("number " + range.key(), [&] { return number_rule(builder, range, facts.path); });
      return builder.call(from, rule, to);
    }
    case JsonTypes::kString:
      return string(from, facts, to);
    case JsonTypes::kArray:
      return facts.any_array() ? builder.call(from, json_.any_array(), to) : array(from, facts, to);
    case JsonTypes::kObject:
      return facts.any_object() ? builder.call(from, json_.any_object(), to) : object(from, facts, to);
  }
}

std::optional<CharDfa> SchemaRules::strings(const SchemaFacts& facts, const std::optional<CharDfa>& within) {
  std::optional<CharDfa> result = within;
  for (const auto& [pattern, path] : facts.patterns) {
    const CharDfa& own = reader_.pattern(pattern, path);
    result = result ? result->intersect(own, path) : own;
  }
  if (result && !is_free(facts.length) && !result->open_ended()) {
    result = result->of_length(facts.length.need, facts.length.left, facts.path);
  }
  return result;
}

void SchemaRules::string(NodeId from, const SchemaFacts& facts, NodeId to) {
  AutomatonBuilder& builder = json_.builder();
  if (facts.any_string()) return builder.call(from, json_.any_string(), to);
  if (facts.length.left != kNoLimit && facts.length.need > facts.length.left) return;
  const RuleId rule = json_.shared("string " + facts.string_key(), [&] {
    const std::optional<CharDfa> dfa = strings(facts, json_.strings());
    if (!dfa) return any_string_rule(builder, facts.length);
    return string_rule(builder, *dfa, Spelling::kJson, dfa->open_ended() ? facts.length : Counter{0, kNoLimit});
  });
  builder.call(from, rule, to);
}

// Nodes: before[i] where property i or a later one must come, after[i] behind one of the first i properties.
void SchemaRules::object(NodeId from, const SchemaFacts& facts, NodeId to) {
  AutomatonBuilder& builder = json_.builder();
  const std::vector<std::string> names = SchemaReader::property_names(facts);
  if (names.size() > kMaxProperties) {
    base::bad_input(facts.path, "names {} properties; at most {} are supported", names.size(), kMaxProperties);
  }
  const bool others = !is_never(SchemaReader::other_properties(facts));
  Counter counter = facts.property_count;
  if (!is_free(counter) && (!names.empty() || !others)) {
    const size_t most = others ? kNoLimit : names.size();
    if (counter.need > facts.required.size() || counter.left < most) {
      if (!reader_.loose()) {
        base::bad_input(facts.path, "minProperties and maxProperties are not supported where properties are named");
      }
    }
    counter = {0, kNoLimit};
  }
  if (counter.left != kNoLimit && counter.need > counter.left) return;
  const bool counted = !is_free(counter);
  const RuleId rule = builder.add_rule(facts.path, 1, counter);
  const NodeId end = builder.add_node(rule), close = builder.add_node(rule), closing = builder.add_node(rule);
  builder.ends(end);
  json_.before_close(close, closing);
  builder.literal(closing, "}", end);

  const auto is_required = [&](const std::string& name) {
    return std::find(facts.required.begin(), facts.required.end(), name) != facts.required.end();
  };
  std::vector<NodeId> before, after;
  for (size_t i = 0; i <= names.size(); ++i) {
    before.push_back(builder.add_node(rule));
    after.push_back(builder.add_node(rule));
  }
  const NodeId open = builder.literal(builder.start(rule), "{");
  if (counted) {
    const NodeId first = builder.add_node(rule);
    builder.count(open, first);
    json_.after_open(first, before[0]);
  } else {
    json_.after_open(open, before[0]);
  }
  bool rest_optional = true;
  for (size_t i = names.size() + 1; i-- > 0;) {
    if (i < names.size()) {
      const bool required = is_required(names[i]);
      rest_optional &= !required;
      if (!required) builder.skip(before[i], before[i + 1]);
      property(before[i], facts, names[i], after[i + 1]);
    } else if (others) {
      other_property(before[i], facts, names, after[i]);
    }
    if (counted) {
      const NodeId next = builder.add_node(rule);
      builder.count(after[i], next);
      json_.after_comma(builder.literal(next, ","), before[i]);
      builder.done(after[i], close);
    } else {
      json_.after_comma(builder.literal(after[i], ","), before[i]);
      if (rest_optional) builder.skip(after[i], close);
    }
  }
  if (rest_optional && counter.need == 0) builder.literal(open, "}", end);
  builder.call(from, rule, to);
}

void SchemaRules::property(NodeId from, const SchemaFacts& facts, const std::string& name, NodeId to) {
  AutomatonBuilder& builder = json_.builder();
  const Conjunction schema = SchemaReader::property(facts, name);
  const std::optional<CharDfa>& allowed = json_.strings();
  if (is_never(schema) || (allowed && !allowed->matches(name))) return;
  if (!facts.names.empty() && !reader_.admits(facts.names, base::Json(name))) return;
  const NodeId begin = builder.add_node(builder.owner(from));
  json_.after_colon(builder.literal(from, json_quoted(name) + ":"), begin);
  builder.call(begin, value(schema), to);
}

void SchemaRules::other_property(NodeId from, const SchemaFacts& facts, const std::vector<std::string>& names,
                                 NodeId to) {
  AutomatonBuilder& builder = json_.builder();
  const NodeId colon = builder.add_node(builder.owner(from)), begin = builder.add_node(builder.owner(from));
  const std::optional<CharDfa> allowed = other_names(facts, names);
  builder.call(from, allowed ? string_rule(builder, *allowed, Spelling::kJson) : json_.any_string(), colon);
  json_.after_colon(builder.literal(colon, ":"), begin);
  builder.call(begin, value(SchemaReader::other_properties(facts)), to);
}

std::optional<CharDfa> SchemaRules::other_names(const SchemaFacts& facts, const std::vector<std::string>& names) {
  std::optional<CharDfa> result = json_.strings();
  const auto restrict_to = [&](const CharDfa& own) { result = result ? result->intersect(own, facts.path) : own; };
  if (!facts.names.empty()) {
    const std::vector<Conjunction> ways = reader_.alternatives(facts.names);
    if (ways.size() != 1) {
      base::bad_input(facts.names.front().path, "alternatives are not supported for the names of properties");
    }
    const SchemaFacts own = reader_.facts(ways.front());
    if (!own.types.has(JsonTypes::kString)) return CharDfa({});
    if (own.values) {
      std::vector<std::string> texts;
      for (const base::Json& value : listed_values(own)) {
        if (value.is_string()) texts.push_back(value.get<std::string>());
      }
      restrict_to(CharDfa::of_strings(texts));
    } else if (!own.any_string()) {
      const CharDfa lengths = CharDfa::everything().of_length(own.length.need, own.length.left, own.path);
      restrict_to(strings(own, lengths).value_or(lengths));
    }
  }
  if (!names.empty()) restrict_to(CharDfa::of_strings(names).complement());
  return result;
}

// Nodes: before an item that must come, and behind it.
void SchemaRules::array(NodeId from, const SchemaFacts& facts, NodeId to) {
  AutomatonBuilder& builder = json_.builder();
  const auto [least, most] = facts.item_count;
  if (most != kNoLimit && least > most) return;
  const auto first = static_cast<uint32_t>(SchemaReader::first_items(facts));
  if (first > kMaxProperties) {
    base::bad_input(facts.path, "has schemas for {} items; at most {} are supported", first, kMaxProperties);
  }
  const Counter others = {least > first ? least - first : 0, most == kNoLimit ? kNoLimit
                                                             : most > first   ? most - first
                                                                              : 0};
  const RuleId rule = builder.add_rule(facts.path, 1, others);
  const NodeId end = builder.add_node(rule), close = builder.add_node(rule), closing = builder.add_node(rule);
  builder.ends(end);
  json_.before_close(close, closing);
  builder.literal(closing, "]", end);
  const NodeId open = builder.literal(builder.start(rule), "[");
  if (least == 0) builder.literal(open, "]", end);

  // `at` is where the next item may come, with `open` before the first one.
  NodeId at = open;
  for (uint32_t i = 0; i < std::min(first, most); ++i) {
    const NodeId item = builder.add_node(rule), after = builder.add_node(rule);
    if (i == 0) {
      json_.after_open(at, item);
    } else {
      json_.after_comma(builder.literal(at, ","), item);
    }
    builder.call(item, value(SchemaReader::item(facts, i)), after);
    if (i + 1 >= least) builder.skip(after, close);
    at = after;
  }
  const NodeId item = builder.add_node(rule), after = builder.add_node(rule);
  const auto next_item = [&](NodeId behind, bool opening) {
    const NodeId counted = builder.add_node(rule);
    builder.count(behind, counted);
    if (opening) {
      json_.after_open(counted, item);
    } else {
      json_.after_comma(builder.literal(counted, ","), item);
    }
  };
  next_item(at, at == open);
  builder.call(item, value(SchemaReader::item(facts, first)), after);
  builder.done(after, close);
  next_item(after, false);
  builder.call(from, rule, to);
}

}  // namespace tandem::grammar
