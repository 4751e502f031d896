// JSON schemas as rules.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "grammar/json_rules.h"
#include "grammar/schema_reader.h"

namespace tandem::grammar {

// Equal conjunctions share a rule, so recursion ends and what many schemas refer to is made once. REQUIRES that rules
// and reader outlive it.
class SchemaRules {
 public:
  SchemaRules(JsonRules& json, SchemaReader& reader) : json_(json), reader_(reader) {}

  // The JSON text of the values that all schemas admit. Complete after finish().
  RuleId value(const Conjunction& conjunction);
  void finish();

  // The text of the values of one type; from one node to another.
  void value_of_type(NodeId from, const SchemaFacts& facts, text::JsonTypes::Type type, NodeId to);
  // The values of facts.values that the other facts admit as well.
  std::vector<base::Json> listed_values(const SchemaFacts& facts);
  // Strings as patterns and, where it has none of them, not the length say; nothing: any. Throws base::Error{kBadInput}
  // where they are too many to tell apart.
  std::optional<CharDfa> strings(const SchemaFacts& facts, const std::optional<CharDfa>& within);
  // The names of properties that may come besides `names`; nothing: any.
  std::optional<CharDfa> other_names(const SchemaFacts& facts, const std::vector<std::string>& names);

 private:
  void write(RuleId rule, const Conjunction& conjunction);
  void alternative(NodeId from, const SchemaFacts& facts, NodeId to);
  void string(NodeId from, const SchemaFacts& facts, NodeId to);
  void object(NodeId from, const SchemaFacts& facts, NodeId to);
  void property(NodeId from, const SchemaFacts& facts, const std::string& name, NodeId to);
  void other_property(NodeId from, const SchemaFacts& facts, const std::vector<std::string>& names, NodeId to);
  void array(NodeId from, const SchemaFacts& facts, NodeId to);

  JsonRules& json_;
  SchemaReader& reader_;
  std::map<std::vector<const base::Json*>, RuleId> rules_;
  std::deque<std::pair<RuleId, Conjunction>> unwritten_;
};

}  // namespace tandem::grammar
