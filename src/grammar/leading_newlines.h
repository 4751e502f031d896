// The line breaks that models write between their reasoning and the answer.
#pragma once

#include <algorithm>

#include "grammar/automaton.h"

namespace tandem::grammar {

inline constexpr int kMaxLeadingNewlines = 4;

// `rule` after up to `newlines` line breaks.
inline RuleId after_newlines(AutomatonBuilder& builder, RuleId rule, int newlines) {
  if (newlines <= 0) return rule;
  const RuleId root = builder.add_rule("the answer", 0);
  const NodeId end = builder.add_node(root);
  builder.ends(end);
  NodeId at = builder.start(root);
  for (int i = 0; i < std::min(newlines, kMaxLeadingNewlines); ++i) {
    builder.call(at, rule, end);
    at = builder.literal(at, "\n");
  }
  builder.call(at, rule, end);
  return root;
}

}  // namespace tandem::grammar
