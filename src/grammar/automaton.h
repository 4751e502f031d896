// What every grammar compiles to: rules over bytes that call each other, with counted repetition.
//
// A rule is a graph of nodes. Taking a byte edge consumes a byte; the other edges consume nothing. A call goes through
// another rule and comes back to the edge's target. Each call of a rule has one counter of its own: count edges take
// one repetition, done edges need the least number of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::grammar {

using NodeId = uint32_t;
using RuleId = uint32_t;

inline constexpr uint32_t kNoLimit = UINT32_MAX;

struct Counter {
  uint32_t need = 0;  // repetitions that must still come
  uint32_t left = 0;  // that may still come; kNoLimit: any number

  bool operator==(const Counter&) const = default;
};

struct Edge {
  enum class Kind : uint8_t { kBytes, kSkip, kCount, kDone, kCall };
  Kind kind = Kind::kSkip;
  uint8_t low = 0, high = 0;  // kBytes: inclusive
  bool last = false;          // kCall: nothing but the end follows, so there is no need to come back
  NodeId target = 0;
  RuleId rule = 0;  // kCall
};

// Where any printable text (Vocabulary::printable) may stand.
enum class TextLoop : uint8_t {
  kNone,
  kFree,
  kCounted,  // while the counter has no limit
};

struct Node {
  uint32_t first_edge = 0, end_edge = 0;
  uint16_t height = 0;  // the least nesting that the rest of the rule needs
  uint8_t weight = 0;   // nesting that a call from here adds
  bool ends = false;    // the rule may end here
  bool consumes = false;
  TextLoop text = TextLoop::kNone;
};

struct Rule {
  NodeId start = 0;
  Counter counter;  // at its beginning
};

class Automaton {
 public:
  const Node& node(NodeId id) const { return nodes_[id]; }
  std::span<const Edge> edges(NodeId id) const {
    return {edges_.data() + nodes_[id].first_edge, edges_.data() + nodes_[id].end_edge};
  }
  const Rule& rule(RuleId id) const { return rules_[id]; }
  RuleId root() const { return root_; }
  size_t nodes() const { return nodes_.size(); }
  uint32_t max_depth() const { return max_depth_; }  // of nesting

 private:
  friend class AutomatonBuilder;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<Rule> rules_;
  RuleId root_ = 0;
  uint32_t max_depth_ = 0;
};

// Throws base::Error{kBadInput} with `source` where the grammar outgrows the limits.
class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(std::string source) : source_(std::move(source)) {}

  // `weight` is what one level of the rule counts against the limit of nesting.
  RuleId add_rule(std::string name, uint8_t weight, Counter counter = {});
  NodeId start(RuleId rule) const { return rules_[rule].start; }
  NodeId add_node(RuleId rule);

  void bytes(NodeId from, uint8_t low, uint8_t high, NodeId to);
  void skip(NodeId from, NodeId to);
  void count(NodeId from, NodeId to);
  void done(NodeId from, NodeId to);
  void call(NodeId from, RuleId rule, NodeId to);
  void ends(NodeId node) { nodes_[node].ends = true; }
  void text_loop(NodeId node, TextLoop kind) { nodes_[node].text = kind; }

  // Chains of edges with new nodes; the literal's owner is `from`'s rule.
  void literal(NodeId from, std::string_view text, NodeId to);
  NodeId literal(NodeId from, std::string_view text);
  RuleId owner(NodeId node) const { return nodes_[node].rule; }
  size_t nodes() const { return nodes_.size(); }
  const std::string& source() const { return source_; }

  // Which of the rules something satisfies, as they are so far.
  std::vector<bool> satisfiable(std::span<const RuleId> rules) const;

  // Takes out what can't be completed, and refuses: a root that nothing satisfies, rules that call themselves before
  // they consume a byte, and repetitions of what may be empty beyond a small number.
  Automaton finish(RuleId root, uint32_t max_depth) &&;

 private:
  struct DraftNode {
    std::vector<Edge> edges;
    RuleId rule = 0;
    bool ends = false;
    TextLoop text = TextLoop::kNone;
  };
  struct DraftRule {
    std::string name;
    NodeId start = 0;
    uint8_t weight = 0;
    Counter counter;
  };

  void add_edge(NodeId from, Edge edge);
  std::vector<uint32_t> heights() const;
  void prune(const std::vector<uint32_t>& heights);
  std::vector<bool> nullable() const;
  void check_repetitions(const std::vector<bool>& nullable) const;
  void check_left_recursion(const std::vector<bool>& nullable) const;

  std::string source_;
  std::vector<DraftNode> nodes_;
  std::vector<DraftRule> rules_;
  size_t edge_count_ = 0;
};

}  // namespace tandem::grammar
