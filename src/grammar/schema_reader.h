// What a JSON schema says, keyword by keyword, before it becomes rules.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/automaton.h"
#include "grammar/char_dfa.h"
#include "grammar/number_rules.h"
#include "grammar/pattern.h"
#include "text/argument_types.h"

namespace tandem::grammar {

// A schema within the document, and its path for errors.
struct SchemaPlace {
  const base::Json* schema = nullptr;
  std::string path;

  SchemaPlace at(const std::string& key) const;
  SchemaPlace at(const std::string& key, const std::string& inner) const;  // schema[key][inner]
  SchemaPlace at(const std::string& key, size_t index) const;              // schema[key][index]
};

// Schemas that all must hold.
using Conjunction = std::vector<SchemaPlace>;

// What the keywords of one or more schemas say together, combinations apart.
struct SchemaFacts {
  std::string path;  // of the first one
  text::JsonTypes types = text::JsonTypes::all();
  std::optional<std::vector<base::Json>> values;  // enum, const: before the other facts are asked

  NumberRange numbers;

  Counter length = {0, kNoLimit};                             // of strings, in characters
  std::vector<std::pair<std::string, std::string>> patterns;  // also those of formats; with their paths
  std::string string_key() const;                             // equal where length and patterns are
  bool any_string() const { return length == Counter{0, kNoLimit} && patterns.empty(); }

  struct Properties {  // one schema's
    SchemaPlace place;
    bool named = false, others = false;  // has properties, additionalProperties
  };
  std::vector<Properties> properties;
  std::vector<std::string> required;
  Conjunction names;  // propertyNames
  Counter property_count = {0, kNoLimit};
  bool any_object() const {
    return properties.empty() && required.empty() && names.empty() && property_count == Counter{0, kNoLimit};
  }

  struct Items {  // one schema's
    SchemaPlace place;
    const char* first = nullptr;  // the keyword with schemas of the first items
    const char* rest = nullptr;   // and that of the others
  };
  std::vector<Items> items;
  Counter item_count = {0, kNoLimit};
  bool any_array() const { return items.empty() && item_count == Counter{0, kNoLimit}; }
};

// REQUIRES that document and patterns outlive it. Members throw base::Error{kBadInput} with the path of the fault.
class SchemaReader {
 public:
  // `loose`: what is not supported or malformed is passed over.
  SchemaReader(const base::Json& document, std::string source, bool loose, PatternCache& patterns);

  SchemaPlace root() const { return {&document_, source_}; }
  bool loose() const { return loose_; }

  // The ways in which all schemas can hold: combinations and references dissolved. Empty where they never do.
  std::vector<Conjunction> alternatives(const Conjunction& conjunction);
  SchemaFacts facts(const Conjunction& alternative);

  // The schemas of one property, of those that are not named, and of an item.
  static Conjunction property(const SchemaFacts& facts, const std::string& name);
  static Conjunction other_properties(const SchemaFacts& facts);
  static std::vector<std::string> property_names(const SchemaFacts& facts);
  static Conjunction item(const SchemaFacts& facts, size_t index);
  static size_t first_items(const SchemaFacts& facts);  // that have schemas of their own

  // The strings in which the pattern is found.
  const CharDfa& pattern(const std::string& pattern, const std::string& path);

  bool admits(const Conjunction& conjunction, const base::Json& value, int depth = 0);
  bool admits(const SchemaFacts& facts, const base::Json& value, int depth = 0);

 private:
  SchemaPlace referenced(const SchemaPlace& place) const;
  void check_exclusive(const SchemaPlace& place);
  bool disjoint(const Conjunction& a, const Conjunction& b, int depth);
  bool disjoint(const SchemaFacts& a, const SchemaFacts& b, int depth);
  void read_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key);
  bool read_number_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key);
  bool read_object_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key);
  bool read_array_keyword(SchemaFacts& facts, const SchemaPlace& place, const std::string& key);
  void spend(const std::string& path, uint64_t work);

  const base::Json& document_;
  std::string source_;
  bool loose_;
  PatternCache& patterns_;
  uint64_t work_ = 0;
  std::set<const base::Json*> exclusive_;  // schemas whose oneOf was checked
};

}  // namespace tandem::grammar
