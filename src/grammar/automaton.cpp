#include "grammar/automaton.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace tandem::grammar {

namespace {

constexpr size_t kMaxNodes = 1'000'000;
constexpr size_t kMaxEdges = 4'000'000;
constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();  // height of what can't be completed
// A repetition of something that may be empty has a state for each number of repetitions.
constexpr uint32_t kMaxEmptyRepetitions = 64;

}  // namespace

RuleId AutomatonBuilder::add_rule(std::string name, uint8_t weight, Counter counter) {
  const auto id = static_cast<RuleId>(rules_.size());
  rules_.push_back({std::move(name), 0, weight, counter});
  rules_.back().start = add_node(id);
  return id;
}

NodeId AutomatonBuilder::add_node(RuleId rule) {
  if (nodes_.size() >= kMaxNodes) {
    base::bad_input(source_, "needs more than {} states", kMaxNodes);
  }
  nodes_.emplace_back().rule = rule;
  return static_cast<NodeId>(nodes_.size() - 1);
}

void AutomatonBuilder::add_edge(NodeId from, Edge edge) {
  if (++edge_count_ > kMaxEdges) base::bad_input(source_, "needs more than {} transitions", kMaxEdges);
  nodes_[from].edges.push_back(edge);
}

void AutomatonBuilder::bytes(NodeId from, uint8_t low, uint8_t high, NodeId to) {
  add_edge(from, {Edge::Kind::kBytes, low, high, false, to, 0});
}

void AutomatonBuilder::skip(NodeId from, NodeId to) {
  add_edge(from, {Edge::Kind::kSkip, 0, 0, false, to, 0});
}

void AutomatonBuilder::count(NodeId from, NodeId to) {
  add_edge(from, {Edge::Kind::kCount, 0, 0, false, to, 0});
}

void AutomatonBuilder::done(NodeId from, NodeId to) {
  add_edge(from, {Edge::Kind::kDone, 0, 0, false, to, 0});
}

void AutomatonBuilder::call(NodeId from, RuleId rule, NodeId to) {
  add_edge(from, {Edge::Kind::kCall, 0, 0, false, to, rule});
}

void AutomatonBuilder::literal(NodeId from, std::string_view text, NodeId to) {
  if (text.empty()) return skip(from, to);
  for (size_t at = 0; at < text.size(); ++at) {
    const NodeId next = at + 1 == text.size() ? to : add_node(owner(from));
    const auto byte = static_cast<uint8_t>(text[at]);
    bytes(from, byte, byte, next);
    from = next;
  }
}

NodeId AutomatonBuilder::literal(NodeId from, std::string_view text) {
  if (text.empty()) return from;
  const NodeId to = add_node(owner(from));
  literal(from, text, to);
  return to;
}

// Knuth's generalisation of Dijkstra's algorithm: nodes are settled in the order of their heights, and a call once
// both the rule's and the target's height are known.
std::vector<uint32_t> AutomatonBuilder::heights() const {
  struct Use {
    NodeId from;
    uint32_t edge;
  };
  const auto add_uses = [this](auto&& add) {
    for (NodeId from = 0; from < nodes_.size(); ++from) {
      for (uint32_t i = 0; i < nodes_[from].edges.size(); ++i) {
        const Edge& edge = nodes_[from].edges[i];
        add(edge.target, Use{from, i});
        if (edge.kind == Edge::Kind::kCall) add(rules_[edge.rule].start, Use{from, i});
      }
    }
  };
  std::vector<uint32_t> offsets(nodes_.size() + 1, 0);
  add_uses([&](NodeId node, Use) { ++offsets[node + 1]; });
  for (size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
  std::vector<Use> uses(offsets.back());
  std::vector<uint32_t> filled(offsets.begin(), offsets.end() - 1);
  add_uses([&](NodeId node, Use use) { uses[filled[node]++] = use; });

  std::vector<uint32_t> height(nodes_.size(), kNever);
  std::vector<std::vector<NodeId>> waiting(1);  // by height
  for (NodeId node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].ends) waiting[0].push_back(node);
  }
  for (size_t level = 0; level < waiting.size(); ++level) {
    while (!waiting[level].empty()) {
      const NodeId node = waiting[level].back();
      waiting[level].pop_back();
      if (height[node] != kNever) continue;
      height[node] = static_cast<uint32_t>(level);
      for (uint32_t i = offsets[node]; i < offsets[node + 1]; ++i) {
        const Use use = uses[i];
        if (height[use.from] != kNever) continue;
        const Edge& edge = nodes_[use.from].edges[use.edge];
        size_t candidate = height[edge.target];
        if (candidate == kNever) continue;
        if (edge.kind == Edge::Kind::kCall) {
          const uint32_t called = height[rules_[edge.rule].start];
          if (called == kNever) continue;
          candidate = std::max<size_t>(candidate, size_t{called} + rules_[nodes_[use.from].rule].weight);
        }
        if (candidate >= waiting.size()) waiting.resize(candidate + 1);
        waiting[candidate].push_back(use.from);
      }
    }
  }
  return height;
}

std::vector<bool> AutomatonBuilder::satisfiable(std::span<const RuleId> rules) const {
  const std::vector<uint32_t> height = heights();
  std::vector<bool> result;
  for (const RuleId rule : rules) result.push_back(height[rules_[rule].start] != kNever);
  return result;
}

void AutomatonBuilder::prune(const std::vector<uint32_t>& heights) {
  for (DraftNode& node : nodes_) {
    std::erase_if(node.edges, [&](const Edge& edge) {
      return heights[edge.target] == kNever ||
             (edge.kind == Edge::Kind::kCall && heights[rules_[edge.rule].start] == kNever);
    });
  }
}

// The nodes from which a rule can end without a byte.
std::vector<bool> AutomatonBuilder::nullable() const {
  std::vector<std::vector<NodeId>> users(nodes_.size());  // by the nodes that decide
  for (NodeId from = 0; from < nodes_.size(); ++from) {
    for (const Edge& edge : nodes_[from].edges) {
      if (edge.kind == Edge::Kind::kBytes) continue;
      users[edge.target].push_back(from);
      if (edge.kind == Edge::Kind::kCall) users[rules_[edge.rule].start].push_back(from);
    }
  }
  std::vector<bool> nullable(nodes_.size(), false);
  std::vector<NodeId> found;
  const auto mark = [&](NodeId node) {
    if (!nullable[node]) found.push_back(node);
    nullable[node] = true;
  };
  for (NodeId node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].ends) mark(node);
  }
  while (!found.empty()) {
    const NodeId node = found.back();
    found.pop_back();
    for (const NodeId user : users[node]) {
      for (const Edge& edge : nodes_[user].edges) {
        if (edge.kind == Edge::Kind::kBytes || !nullable[edge.target]) continue;
        if (edge.kind == Edge::Kind::kCall && !nullable[rules_[edge.rule].start]) continue;
        mark(user);
        break;
      }
    }
  }
  return nullable;
}

// Where a repetition may be empty, its count can go on without a byte.
void AutomatonBuilder::check_repetitions(const std::vector<bool>& nullable) const {
  for (const DraftNode& node : nodes_) {
    for (const Edge& edge : node.edges) {
      if (edge.kind != Edge::Kind::kCount) continue;
      const DraftRule& rule = rules_[node.rule];
      const uint32_t states = rule.counter.left == kNoLimit ? rule.counter.need : rule.counter.left;
      if (states > kMaxEmptyRepetitions && nullable[edge.target]) {
        base::bad_input(source_, "{} repeats up to {} times what may be empty; at most {} are supported", rule.name,
                        states, kMaxEmptyRepetitions);
      }
    }
  }
}

// A rule that calls itself before it consumes a byte lies on a cycle of edges that take none, one of them its call.
// Tarjan's algorithm, with a stack of its own.
void AutomatonBuilder::check_left_recursion(const std::vector<bool>& nullable) const {
  const auto successors = [&](NodeId node, std::vector<NodeId>& out) {
    out.clear();
    for (const Edge& edge : nodes_[node].edges) {
      if (edge.kind == Edge::Kind::kBytes) continue;
      if (edge.kind == Edge::Kind::kCall) {
        out.push_back(rules_[edge.rule].start);
        if (nullable[rules_[edge.rule].start]) out.push_back(edge.target);
      } else {
        out.push_back(edge.target);
      }
    }
  };
  struct Visit {
    NodeId node;
    size_t next;
    std::vector<NodeId> successors;
  };
  std::vector<uint32_t> order(nodes_.size(), 0), low(nodes_.size(), 0), component(nodes_.size(), 0);
  std::vector<NodeId> path;
  std::vector<Visit> visits;
  uint32_t counter = 0, components = 0;
  const auto open = [&](NodeId node) {
    order[node] = low[node] = ++counter;
    path.push_back(node);
    visits.push_back({node, 0, {}});
    successors(node, visits.back().successors);
  };
  for (NodeId root = 0; root < nodes_.size(); ++root) {
    if (order[root] != 0) continue;
    open(root);
    while (!visits.empty()) {
      Visit& visit = visits.back();
      const NodeId node = visit.node;
      if (visit.next < visit.successors.size()) {
        const NodeId next = visit.successors[visit.next++];
        if (order[next] == 0) {
          open(next);
        } else if (component[next] == 0) {
          low[node] = std::min(low[node], order[next]);
        }
        continue;
      }
      visits.pop_back();
      if (!visits.empty()) low[visits.back().node] = std::min(low[visits.back().node], low[node]);
      if (low[node] != order[node]) continue;
      ++components;
      while (component[node] == 0) {
        component[path.back()] = components;
        path.pop_back();
      }
    }
  }
  for (NodeId from = 0; from < nodes_.size(); ++from) {
    for (const Edge& edge : nodes_[from].edges) {
      if (edge.kind == Edge::Kind::kCall && component[from] == component[rules_[edge.rule].start]) {
        base::bad_input(source_, "{} leads back to itself before it takes any text", rules_[edge.rule].name);
      }
    }
  }
}

Automaton AutomatonBuilder::finish(RuleId root, uint32_t max_depth) && {
  const std::vector<uint32_t> height = heights();
  const uint32_t least = height[rules_[root].start];
  if (least == kNever) base::bad_input(source_, "nothing satisfies it");
  if (least > max_depth) {
    base::bad_input(source_, "needs {} levels of nesting; at most {} are supported", least, max_depth);
  }
  prune(height);
  const std::vector<bool> empty = nullable();
  check_repetitions(empty);
  check_left_recursion(empty);

  Automaton automaton;
  automaton.root_ = root;
  automaton.max_depth_ = max_depth;
  for (const DraftRule& rule : rules_) automaton.rules_.push_back({rule.start, rule.counter});
  automaton.nodes_.reserve(nodes_.size());
  automaton.edges_.reserve(edge_count_);
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const DraftNode& draft = nodes_[id];
    Node& node = automaton.nodes_.emplace_back();
    node.first_edge = static_cast<uint32_t>(automaton.edges_.size());
    for (Edge edge : draft.edges) {
      node.consumes |= edge.kind == Edge::Kind::kBytes;
      edge.last = edge.kind == Edge::Kind::kCall && nodes_[edge.target].ends && nodes_[edge.target].edges.empty();
      automaton.edges_.push_back(edge);
    }
    node.end_edge = static_cast<uint32_t>(automaton.edges_.size());
    node.height = static_cast<uint16_t>(std::min<uint32_t>(height[id], std::numeric_limits<uint16_t>::max()));
    node.weight = rules_[draft.rule].weight;
    node.ends = draft.ends;
    node.text = draft.text;
  }
  return automaton;
}

}  // namespace tandem::grammar
