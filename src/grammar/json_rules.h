// The rules of JSON itself: white space, and values of any form.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/automaton.h"
#include "grammar/char_dfa.h"

namespace tandem::grammar {

// How deep arrays and objects nest that have something in them; one more level may be empty. base::parse_json takes 64.
inline constexpr uint32_t kMaxJsonDepth = 63;

// Makes each rule when it is first asked for. REQUIRES that the builder outlives it.
class JsonRules {
 public:
  // `strings`: what strings and keys may hold; nothing: any text.
  JsonRules(AutomatonBuilder& builder, bool pretty, std::optional<CharDfa> strings)
      : builder_(builder), pretty_(pretty), strings_(std::move(strings)) {}

  AutomatonBuilder& builder() { return builder_; }
  const std::optional<CharDfa>& strings() const { return strings_; }

  RuleId any_value();
  RuleId any_object();
  RuleId any_array();
  RuleId any_string();

  // The rule that `make` made when it was first asked for under this key.
  template <typename Make>
  RuleId shared(const std::string& key, Make&& make) {
    const auto known = shared_.find(key);
    return known != shared_.end() ? known->second : shared_.emplace(key, make()).first->second;
  }

  // White space that may stand here.
  void after_open(NodeId from, NodeId to) { space(from, to, pretty_, pretty_); }
  void before_close(NodeId from, NodeId to) { space(from, to, pretty_, pretty_); }
  void after_comma(NodeId from, NodeId to) { space(from, to, true, pretty_); }
  void after_colon(NodeId from, NodeId to) { space(from, to, true, false); }

  // One of the texts.
  void literals(NodeId from, const std::vector<std::string>& texts, NodeId to);
  // One JSON value as it is. Numbers in their shortest form.
  void value(NodeId from, const base::Json& value, NodeId to);

 private:
  void space(NodeId from, NodeId to, bool blank, bool line_break);

  AutomatonBuilder& builder_;
  bool pretty_;
  std::optional<CharDfa> strings_;
  std::optional<RuleId> any_value_, any_object_, any_array_, any_string_, blank_, line_break_;
  std::map<std::string, RuleId> shared_;
};

}  // namespace tandem::grammar
