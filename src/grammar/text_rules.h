// Strings as rules: inside the quotes of JSON, or as they are.
#pragma once

#include <cstdint>
#include <map>

#include "grammar/automaton.h"
#include "grammar/char_dfa.h"

namespace tandem::grammar {

enum class Spelling {
  kRaw,   // characters as UTF-8
  kJson,  // as inside a JSON string: ", \ and control characters escaped in one way each, all others as they are
};

// Adds edges that spell characters; nodes between the bytes of characters are shared. One a rule.
class CharacterWriter {
 public:
  CharacterWriter(AutomatonBuilder& builder, Spelling spelling) : builder_(builder), spelling_(spelling) {}

  // Any of the characters low … high, from one node to the other. Surrogates are passed over.
  void add(NodeId from, char32_t low, char32_t high, NodeId to);

 private:
  struct ByteRange {
    uint8_t low, high;
  };
  void utf8(NodeId from, char32_t low, char32_t high, NodeId to);
  void sequence(NodeId from, const ByteRange* ranges, int count, NodeId to);
  void escaped(NodeId from, char32_t c, NodeId to);

  AutomatonBuilder& builder_;
  Spelling spelling_;
  std::map<std::pair<NodeId, uint64_t>, NodeId> inner_;  // by the target and the bytes up to it
};

// A JSON string of any content, with every escape of JSON; the counter counts its characters.
RuleId any_string_rule(AutomatonBuilder& builder, Counter length = {0, kNoLimit});

// A string that the automaton accepts, kJson: with its quotes. A counter is for automata that are open_ended().
RuleId string_rule(AutomatonBuilder& builder, const CharDfa& strings, Spelling spelling,
                   Counter length = {0, kNoLimit});

// `text` within quotes, escaped as Spelling::kJson spells it.
std::string json_quoted(std::string_view text);

}  // namespace tandem::grammar
