#include "grammar/schema_reader.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/formats.h"
#include "grammar/pattern.h"
#include "text/utf8.h"

namespace tandem::grammar {

namespace {

using base::Json;
using text::JsonTypes;

constexpr size_t kMaxAlternatives = 512;         // of one schema
constexpr size_t kMaxPathBytes = 4096;           // bounds how deep a schema nests
constexpr uint64_t kMaxSchemaWork = 20'000'000;  // of one document
constexpr uint32_t kMaxLeast = 1'000'000;        // minLength and the like: an answer would have to be that long
constexpr int kMaxValueDepth = 48;

constexpr std::string_view kAnnotations[] = {
    "title", "description", "default",  "examples",         "example",         "$schema",       "$id",
    "id",    "$comment",    "$anchor",  "deprecated",       "readOnly",        "writeOnly",     "strict",
    "$defs", "definitions", "nullable", "contentMediaType", "contentEncoding", "contentSchema", "discriminator"};
// Taken apart by SchemaReader::alternatives.
constexpr std::string_view kCombinations[] = {"$ref", "allOf", "anyOf", "oneOf"};

template <typename List>
bool contains(const List& list, std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

bool contains_pointer(const std::vector<const Json*>& list, const Json* schema) {
  return std::find(list.begin(), list.end(), schema) != list.end();
}

bool contains_value(const std::vector<Json>& list, const Json& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

JsonTypes type_named(const Json& name, const std::string& path) {
  constexpr std::pair<std::string_view, JsonTypes::Type> kNames[] = {
      {"null", JsonTypes::kNull},     {"boolean", JsonTypes::kBoolean}, {"integer", JsonTypes::kInteger},
      {"number", JsonTypes::kNumber}, {"string", JsonTypes::kString},   {"array", JsonTypes::kArray},
      {"object", JsonTypes::kObject}};
  if (name.is_string()) {
    for (const auto& [known, type] : kNames) {
      if (name.get_ref<const std::string&>() == known) {
        return type == JsonTypes::kNumber ? JsonTypes(type) | JsonTypes::kInteger : JsonTypes(type);
      }
    }
  }
  base::bad_input(path, "must name types of JSON (null, boolean, integer, number, string, array, object)");
}

JsonTypes type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return JsonTypes::kNull;
    case Json::value_t::boolean:
      return JsonTypes::kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return JsonTypes::kInteger;
    case Json::value_t::number_float:
      return decimal_of(value).fraction.empty() ? JsonTypes::kInteger : JsonTypes::kNumber;
    case Json::value_t::string:
      return JsonTypes::kString;
    case Json::value_t::array:
      return JsonTypes::kArray;
    default:
      return JsonTypes::kObject;
  }
}

bool deeper_than(const Json& value, int depth) {
  if (!value.is_structured()) return false;
  return depth == 0 ||
         std::any_of(value.begin(), value.end(), [depth](const Json& item) { return deeper_than(item, depth - 1); });
}

const Json& list_at(const SchemaPlace& place, const std::string& key) {
  const Json& list = (*place.schema)[key];
  if (!list.is_array() || list.empty()) base::bad_input(place.path + "." + key, "must be a list with something in it");
  return list;
}

Decimal number_at(const Json& value, const std::string& path) {
  if (!value.is_number()) base::bad_input(path, "must be a number");
  return decimal_of(value);
}

// A number of characters, items or properties.
uint32_t count_at(const Json& value, const std::string& path) {
  const Decimal number = number_at(value, path);
  if (number.negative || !number.fraction.empty()) base::bad_input(path, "must be a whole number from 0 on");
  // What no answer reaches is no limit.
  if (number.whole.size() > 9) return kNoLimit;
  return number.whole.empty() ? 0 : static_cast<uint32_t>(std::stoul(number.whole));
}

void at_least(Counter& counter, const Json& value, const std::string& path) {
  const uint32_t least = count_at(value, path);
  if (least > kMaxLeast) base::bad_input(path, "is above {}", kMaxLeast);
  counter.need = std::max(counter.need, least);
}

void at_most(Counter& counter, const Json& value, const std::string& path) {
  counter.left = std::min(counter.left, count_at(value, path));
}

size_t characters_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool within(const Counter& counter, size_t count) {
  return count >= counter.need && (counter.left == kNoLimit || count <= counter.left);
}

bool bool_at(const Json& value, const std::string& path) {
  if (!value.is_boolean()) base::bad_input(path, "must be true or false");
  return value.get<bool>();
}

}  // namespace

SchemaPlace SchemaPlace::at(const std::string& key) const {
  return {&(*schema)[key], path + "." + key};
}

SchemaPlace SchemaPlace::at(const std::string& key, const std::string& inner) const {
  return {&(*schema)[key][inner], path + "." + key + "." + inner};
}

SchemaPlace SchemaPlace::at(const std::string& key, size_t index) const {
  return {&(*schema)[key][index], fmt::format("{}.{}[{}]", path, key, index)};
}

std::string SchemaFacts::string_key() const {
  std::string key = fmt::format("{} {}", length.need, length.left);
  for (const auto& pattern : patterns) key += fmt::format(" {} {}", pattern.first.size(), pattern.first);
  return key;
}

SchemaReader::SchemaReader(const Json& document, std::string source, bool loose, PatternCache& patterns)
    : document_(document), source_(std::move(source)), loose_(loose), patterns_(patterns) {}

void SchemaReader::spend(const std::string& path, uint64_t work) {
  work_ += work;
  if (work_ > kMaxSchemaWork)
    base::bad_input(path.substr(0, 256), "the schema takes more than {} steps to read", kMaxSchemaWork);
}

// A reference is a JSON pointer within the document, percent-encoded as a part of a URI.
SchemaPlace SchemaReader::referenced(const SchemaPlace& place) const {
  const std::string path = place.path + ".$ref";
  const Json& reference = (*place.schema)["$ref"];
  if (!reference.is_string()) base::bad_input(path, "must be a string");
  const auto& text = reference.get_ref<const std::string&>();
  if (text != "#" && !text.starts_with("#/")) {
    base::bad_input(path, "\"{}\" leads out of the schema; only #/... is supported", text.substr(0, 200));
  }
  std::string pointer;
  for (size_t i = 1; i < text.size(); ++i) {
    const auto hex = [&](size_t at) {
      const char c = at < text.size() ? text[at] : 'x';
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                    : -1;
    };
    if (text[i] == '%' && hex(i + 1) >= 0 && hex(i + 2) >= 0) {
      pointer += static_cast<char>(hex(i + 1) * 16 + hex(i + 2));
      i += 2;
    } else {
      pointer += text[i];
    }
  }
  try {
    const Json::json_pointer parsed(pointer);
    if (document_.contains(parsed)) {
      std::string target = source_;
      for (const char c : pointer) target += c == '/' ? '.' : c;
      return {&document_.at(parsed), target};
    }
  } catch (const Json::exception&) {
    // not a pointer
  }
  base::bad_input(path, "\"{}\" leads nowhere", text.substr(0, 200));
}

std::vector<Conjunction> SchemaReader::alternatives(const Conjunction& conjunction) {
  struct Todo {
    SchemaPlace place;
    std::vector<const Json*> ancestors;  // that led here without a value between
  };
  struct Way {
    Conjunction members;
    std::vector<const Json*> seen;
    std::vector<Todo> todo;
    std::vector<std::vector<Todo>> choices;  // of each, one must be taken
  };
  std::vector<Conjunction> result;
  std::vector<Way> ways(1);
  for (const SchemaPlace& place : conjunction) ways[0].todo.push_back({place, {}});
  size_t forks = 0;
  while (!ways.empty()) {
    Way way = std::move(ways.back());
    ways.pop_back();
    bool holds = true;
    while (holds && !way.todo.empty()) {
      Todo todo = std::move(way.todo.back());
      way.todo.pop_back();
      const SchemaPlace& place = todo.place;
      spend(place.path, 20 + todo.ancestors.size());
      if (place.path.size() > kMaxPathBytes) {
        base::bad_input(place.path.substr(0, 256), "the schema nests too deep: a path of more than {} bytes",
                        kMaxPathBytes);
      }
      if (contains_pointer(todo.ancestors, place.schema)) {
        base::bad_input(place.path, "the schema leads back to itself before it describes a value");
      }
      if (contains_pointer(way.seen, place.schema)) continue;
      way.seen.push_back(place.schema);
      if (place.schema->is_boolean()) {
        holds = place.schema->get<bool>();
        continue;
      }
      if (!place.schema->is_object()) {
        if (loose_) continue;
        base::bad_input(place.path, "must be an object, true or false");
      }
      way.members.push_back(place);
      todo.ancestors.push_back(place.schema);
      const auto reach = [&](SchemaPlace next) { return Todo{std::move(next), todo.ancestors}; };
      try {
        if (place.schema->contains("$ref")) way.todo.push_back(reach(referenced(place)));
        if (place.schema->contains("allOf")) {
          for (size_t i = list_at(place, "allOf").size(); i-- > 0;) way.todo.push_back(reach(place.at("allOf", i)));
        }
        for (const char* key : {"anyOf", "oneOf"}) {
          if (!place.schema->contains(key)) continue;
          std::vector<Todo> choice;
          for (size_t i = 0; i < list_at(place, key).size(); ++i) choice.push_back(reach(place.at(key, i)));
          way.choices.push_back(std::move(choice));
        }
      } catch (const base::Error&) {
        if (!loose_) throw;
      }
      if (place.schema->contains("oneOf") && !loose_) check_exclusive(place);
    }
    if (!holds) continue;
    if (way.choices.empty()) {
      result.push_back(std::move(way.members));
      continue;
    }
    const std::vector<Todo> choice = std::move(way.choices.back());
    way.choices.pop_back();
    forks += choice.size();
    if (forks > kMaxAlternatives) {
      base::bad_input(choice[0].place.path, "combines to more than {} alternatives", kMaxAlternatives);
    }
    for (size_t i = choice.size(); i-- > 0;) {
      spend(choice[i].place.path, 10 + way.seen.size());
      ways.push_back(way);
      ways.back().todo.push_back(choice[i]);
    }
  }
  return result;
}

SchemaFacts SchemaReader::facts(const Conjunction& alternative) {
  SchemaFacts facts;
  facts.path = alternative.empty() ? source_ : alternative.front().path;
  for (const SchemaPlace& place : alternative) {
    spend(place.path, 20 + place.schema->size() * 5);
    for (auto item = place.schema->begin(); item != place.schema->end(); ++item) {
      try {
        read_keyword(facts, place, item.key());
      } catch (const base::Error&) {
        if (!loose_) throw;
      }
    }
    // Of a form that is not supported, they are passed over here as well.
    const auto is_schema = [&place](const char* key) {
      const Json& value = base::json_member(*place.schema, key);
      return value.is_object() || value.is_boolean();
    };
    const bool named = base::json_member(*place.schema, "properties").is_object();
    const bool others = is_schema("additionalProperties");
    if (named || others) facts.properties.push_back({place, named, others});
    const bool list = base::json_member(*place.schema, "items").is_array();
    const bool prefix = base::json_member(*place.schema, "prefixItems").is_array();
    const char* first = prefix ? "prefixItems" : list ? "items" : nullptr;
    const char* rest = list ? "additionalItems" : "items";
    if (!is_schema(rest)) rest = nullptr;
    if (first != nullptr || rest != nullptr) facts.items.push_back({place, first, rest});
  }
  return facts;
}

void SchemaReader::read_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key) {
  if (contains(kAnnotations, key) || contains(kCombinations, key) || key.starts_with("x-")) return;
  const Json& value = (*place.schema)[key];
  const std::string path = place.path + "." + key;
  if (key == "type") {
    JsonTypes types;
    if (value.is_array()) {
      for (const Json& name : value) types = types | type_named(name, path);
    } else {
      types = type_named(value, path);
    }
    if (base::json_member(*place.schema, "nullable") == true) types = types | JsonTypes::kNull;
    facts.types = facts.types & types;
  } else if (key == "const" || key == "enum") {
    std::vector<Json> values;
    if (key == "const") values.push_back(value);
    if (key == "enum") {
      const Json& list = list_at(place, key);
      values.assign(list.begin(), list.end());
    }
    for (const Json& one : values) {
      if (deeper_than(one, kMaxValueDepth)) base::bad_input(path, "nests deeper than {}", kMaxValueDepth);
    }
    if (facts.values) {
      spend(path, facts.values->size() * values.size());
      std::erase_if(*facts.values, [&](const Json& one) { return !contains_value(values, one); });
    } else {
      facts.values = std::move(values);
    }
  } else if (key == "minLength") {
    at_least(facts.length, value, path);
  } else if (key == "maxLength") {
    at_most(facts.length, value, path);
  } else if (key == "pattern" || key == "format") {
    if (!value.is_string()) base::bad_input(path, "must be a string");
    const auto& text = value.get_ref<const std::string&>();
    const auto format = key == "format" ? format_pattern(text) : std::string_view(text);
    if (!format) base::bad_input(path, "\"{}\" is not supported", text.substr(0, 100));
    pattern(std::string(*format), path);
    facts.patterns.emplace_back(*format, path);
  } else if (!read_number_keyword(facts, place, key) && !read_object_keyword(facts, place, key) &&
             !read_array_keyword(facts, place, key)) {
    base::bad_input(path, "is not supported");
  }
}

bool SchemaReader::read_number_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key) {
  const Json& value = (*place.schema)[key];
  const std::string path = place.path + "." + key;
  // In older drafts the exclusive ones are flags of the others.
  const auto flag = [&](const char* name) { return base::json_member(*place.schema, name) == true; };
  if (key == "minimum") {
    facts.numbers.at_least({number_at(value, path), flag("exclusiveMinimum")});
  } else if (key == "maximum") {
    facts.numbers.at_most({number_at(value, path), flag("exclusiveMaximum")});
  } else if (key == "exclusiveMinimum") {
    if (!value.is_boolean()) facts.numbers.at_least({number_at(value, path), true});
  } else if (key == "exclusiveMaximum") {
    if (!value.is_boolean()) facts.numbers.at_most({number_at(value, path), true});
  } else if (key == "multipleOf") {
    facts.numbers.multiple_of(number_at(value, path), path);
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::read_object_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key) {
  const Json& value = (*place.schema)[key];
  const std::string path = place.path + "." + key;
  if (key == "properties") {
    if (!value.is_object()) base::bad_input(path, "must be an object");
  } else if (key == "additionalProperties") {
    if (!value.is_object() && !value.is_boolean()) base::bad_input(path, "must be an object, true or false");
  } else if (key == "required") {
    if (!value.is_array()) base::bad_input(path, "must be a list");
    std::set<std::string> known(facts.required.begin(), facts.required.end());
    for (const Json& name : value) {
      if (!name.is_string()) base::bad_input(path, "must be a list of strings");
      if (known.insert(name.get<std::string>()).second) facts.required.push_back(name.get<std::string>());
    }
  } else if (key == "propertyNames") {
    facts.names.push_back(place.at(key));
  } else if (key == "minProperties") {
    at_least(facts.property_count, value, path);
  } else if (key == "maxProperties") {
    at_most(facts.property_count, value, path);
  } else {
    return false;
  }
  return true;
}

bool SchemaReader::read_array_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key) {
  const Json& value = (*place.schema)[key];
  const std::string path = place.path + "." + key;
  if (key == "prefixItems") {
    if (!value.is_array()) base::bad_input(path, "must be a list");
  } else if (key == "items" || key == "additionalItems") {
    if (key == "items" && value.is_array() && place.schema->contains("prefixItems")) {
      base::bad_input(path, "must not be a list next to prefixItems");
    }
    if (!value.is_object() && !value.is_boolean() && (key != "items" || !value.is_array())) {
      base::bad_input(path, "must be an object, true or false");
    }
  } else if (key == "minItems") {
    at_least(facts.item_count, value, path);
  } else if (key == "maxItems") {
    at_most(facts.item_count, value, path);
  } else if (key == "uniqueItems") {
    if (bool_at(value, path)) base::bad_input(path, "true is not supported");
  } else {
    return false;
  }
  return true;
}

const CharDfa& SchemaReader::pattern(const std::string& pattern, const std::string& path) {
  spend(path, 100 + pattern.size());
  return patterns_.get(pattern, path);
}

Conjunction SchemaReader::property(const SchemaFacts& facts, const std::string& name) {
  Conjunction result;
  for (const SchemaFacts::Properties& properties : facts.properties) {
    if (properties.named && (*properties.place.schema)["properties"].contains(name)) {
      result.push_back(properties.place.at("properties", name));
    } else if (properties.others) {
      result.push_back(properties.place.at("additionalProperties"));
    }
  }
  return result;
}

Conjunction SchemaReader::other_properties(const SchemaFacts& facts) {
  Conjunction result;
  for (const SchemaFacts::Properties& properties : facts.properties) {
    if (properties.others) result.push_back(properties.place.at("additionalProperties"));
  }
  return result;
}

std::vector<std::string> SchemaReader::property_names(const SchemaFacts& facts) {
  std::vector<std::string> names;
  std::set<std::string> known;
  const auto add = [&](const std::string& name) {
    if (known.insert(name).second) names.push_back(name);
  };
  for (const SchemaFacts::Properties& properties : facts.properties) {
    if (!properties.named) continue;
    const Json& named = (*properties.place.schema)["properties"];
    for (auto item = named.begin(); item != named.end(); ++item) add(item.key());
  }
  for (const std::string& name : facts.required) add(name);
  return names;
}

Conjunction SchemaReader::item(const SchemaFacts& facts, size_t index) {
  Conjunction result;
  for (const SchemaFacts::Items& items : facts.items) {
    if (items.first != nullptr && index < (*items.place.schema)[items.first].size()) {
      result.push_back(items.place.at(items.first, index));
    } else if (items.rest != nullptr) {
      result.push_back(items.place.at(items.rest));
    }
  }
  return result;
}

size_t SchemaReader::first_items(const SchemaFacts& facts) {
  size_t count = 0;
  for (const SchemaFacts::Items& items : facts.items) {
    if (items.first != nullptr) count = std::max(count, (*items.place.schema)[items.first].size());
  }
  return count;
}

bool SchemaReader::admits(const Conjunction& conjunction, const Json& value, int depth) {
  if (depth > kMaxValueDepth) base::bad_input(source_, "a value nests deeper than {}", kMaxValueDepth);
  for (const Conjunction& alternative : alternatives(conjunction)) {
    if (admits(facts(alternative), value, depth)) return true;
  }
  return false;
}

bool SchemaReader::admits(const SchemaFacts& facts, const Json& value, int depth) {
  spend(facts.path, 10);
  if ((type_of(value) & facts.types) == JsonTypes()) return false;
  if (facts.values && !contains_value(*facts.values, value)) return false;
  if (value.is_number()) return facts.numbers.holds(decimal_of(value));
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return within(facts.length, characters_of(text)) &&
           std::all_of(facts.patterns.begin(), facts.patterns.end(),
                       [&](const auto& one) { return pattern(one.first, one.second).matches(text); });
  }
  if (value.is_array()) {
    if (!within(facts.item_count, value.size())) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      if (!admits(item(facts, i), value[i], depth + 1)) return false;
    }
  }
  if (value.is_object()) {
    if (!within(facts.property_count, value.size())) return false;
    for (const std::string& name : facts.required) {
      if (!value.contains(name)) return false;
    }
    for (auto member = value.begin(); member != value.end(); ++member) {
      if (!admits(property(facts, member.key()), *member, depth + 1)) return false;
      if (!facts.names.empty() && !admits(facts.names, Json(member.key()), depth + 1)) return false;
    }
  }
  return true;
}

}  // namespace tandem::grammar
