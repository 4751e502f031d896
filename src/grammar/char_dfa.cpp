#include "grammar/char_dfa.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "grammar/automaton.h"
#include "text/utf8.h"

namespace tandem::grammar {

namespace {

constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr size_t kMaxDfaStates = 20'000;
constexpr size_t kMaxNfaNodes = 50'000;
constexpr size_t kMaxNfaEdges = 500'000;
constexpr uint64_t kMaxNfaWork = 30'000'000;

}  // namespace

CharSet normalised(CharSet set) {
  std::sort(set.begin(), set.end(), [](CharRange a, CharRange b) { return a.low < b.low; });
  CharSet result;
  const auto add = [&result](char32_t low, char32_t high) {
    if (low > high) return;
    if (!result.empty() && low <= result.back().high + 1) {
      result.back().high = std::max(result.back().high, high);
    } else {
      result.push_back({low, high});
    }
  };
  for (const CharRange range : set) {
    add(range.low, std::min<char32_t>(range.high, kFirstSurrogate - 1));
    add(std::max<char32_t>(range.low, kLastSurrogate + 1), std::min(range.high, kLastCharacter));
  }
  return result;
}

CharSet inverted(const CharSet& set) {
  CharSet gaps;
  char32_t next = 0;
  for (const CharRange range : normalised(set)) {
    if (range.low > next) gaps.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCharacter) gaps.push_back({next, kLastCharacter});
  return normalised(gaps);
}

CharSet all_characters() {
  return normalised({{0, kLastCharacter}});
}

CharDfa::CharDfa(std::vector<State> states) {
  // What can reach an accepting state stays.
  std::vector<std::vector<uint32_t>> sources(states.size());
  for (uint32_t i = 0; i < states.size(); ++i) {
    for (const Edge& edge : states[i].edges) sources[edge.target].push_back(i);
  }
  std::vector<bool> live(states.size(), false);
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < states.size(); ++i) {
    if (states[i].accepts) {
      live[i] = true;
      found.push_back(i);
    }
  }
  while (!found.empty()) {
    const uint32_t state = found.back();
    found.pop_back();
    for (const uint32_t source : sources[state]) {
      if (!live[source]) found.push_back(source);
      live[source] = true;
    }
  }
  if (states.empty() || !live[0]) return;
  std::vector<uint32_t> renamed(states.size(), 0);
  uint32_t count = 0;
  for (uint32_t i = 0; i < states.size(); ++i) renamed[i] = live[i] ? count++ : 0;
  states_.reserve(count);
  for (uint32_t i = 0; i < states.size(); ++i) {
    if (!live[i]) continue;
    State& state = states_.emplace_back();
    state.accepts = states[i].accepts;
    for (const Edge& edge : states[i].edges) {
      if (!live[edge.target]) continue;
      const uint32_t target = renamed[edge.target];
      if (!state.edges.empty() && state.edges.back().target == target && state.edges.back().high + 1 == edge.low) {
        state.edges.back().high = edge.high;
      } else {
        state.edges.push_back({edge.low, edge.high, target});
      }
    }
  }
}

CharDfa CharDfa::everything() {
  State state;
  state.accepts = true;
  for (const CharRange range : all_characters()) state.edges.push_back({range.low, range.high, 0});
  return CharDfa({state});
}

CharDfa CharDfa::of_strings(const std::vector<std::string>& strings) {
  std::vector<std::map<char32_t, uint32_t>> nodes(1);
  std::vector<bool> accepts(1, false);
  for (const std::string& string : strings) {
    uint32_t node = 0;
    for (size_t at = 0; at < string.size();) {
      const text::Utf8Char next = text::utf8_at(string, at);
      const auto [child, added] = nodes[node].emplace(next.code_point, static_cast<uint32_t>(nodes.size()));
      node = child->second;
      if (added) {
        nodes.emplace_back();
        accepts.push_back(false);
      }
      at += static_cast<size_t>(next.bytes);
    }
    accepts[node] = true;
  }
  std::vector<State> states(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    states[i].accepts = accepts[i];
    for (const auto& [c, target] : nodes[i]) states[i].edges.push_back({c, c, target});
  }
  return CharDfa(std::move(states));
}

bool CharDfa::matches(std::string_view utf8) const {
  if (nothing()) return false;
  uint32_t state = 0;
  for (size_t at = 0; at < utf8.size();) {
    const text::Utf8Char next = text::utf8_at(utf8, at);
    if (next.kind != text::Utf8Kind::kValid) return false;
    const auto& edges = states_[state].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(), [c = next.code_point](const Edge& candidate) {
      return candidate.low <= c && c <= candidate.high;
    });
    if (edge == edges.end()) return false;
    state = edge->target;
    at += static_cast<size_t>(next.bytes);
  }
  return states_[state].accepts;
}

CharDfa CharDfa::complement() const {
  if (nothing()) return everything();
  std::vector<State> result = states_;
  const auto rest = static_cast<uint32_t>(result.size());
  for (State& state : result) {
    CharSet covered;
    for (const Edge& edge : state.edges) covered.push_back({edge.low, edge.high});
    for (const CharRange gap : inverted(covered)) state.edges.push_back({gap.low, gap.high, rest});
    std::sort(state.edges.begin(), state.edges.end(), [](const Edge& a, const Edge& b) { return a.low < b.low; });
    state.accepts = !state.accepts;
  }
  State any = everything().states_[0];
  for (Edge& edge : any.edges) edge.target = rest;
  result.push_back(any);
  return CharDfa(std::move(result));
}

CharDfa CharDfa::intersect(const CharDfa& other, const std::string& source) const {
  if (nothing() || other.nothing()) return CharDfa({});
  std::vector<State> result;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  std::unordered_map<uint64_t, uint32_t> ids;
  const auto id_of = [&](uint32_t a, uint32_t b) {
    const auto [at, added] = ids.emplace((uint64_t{a} << 32) | b, static_cast<uint32_t>(pairs.size()));
    if (added) {
      if (pairs.size() >= kMaxDfaStates) {
        base::bad_input(source, "needs more than {} states together with what else holds here", kMaxDfaStates);
      }
      pairs.emplace_back(a, b);
    }
    return at->second;
  };
  id_of(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const State& a = states_[pairs[i].first];
    const State& b = other.states_[pairs[i].second];
    State state;
    state.accepts = a.accepts && b.accepts;
    for (size_t left = 0, right = 0; left < a.edges.size() && right < b.edges.size();) {
      const Edge& first = a.edges[left];
      const Edge& second = b.edges[right];
      const char32_t low = std::max(first.low, second.low), high = std::min(first.high, second.high);
      if (low <= high) state.edges.push_back({low, high, id_of(first.target, second.target)});
      (first.high < second.high ? left : right) += 1;
    }
    result.push_back(std::move(state));
  }
  return CharDfa(std::move(result));
}

CharDfa CharDfa::of_length(uint32_t least, uint32_t most, const std::string& source) const {
  if (nothing() || (least == 0 && most == kNoLimit)) return *this;
  // A chain of places; the last one stands for all that follow where there is no upper limit.
  const uint32_t places = (most == kNoLimit ? least : most) + 1;
  if (places > kMaxDfaStates || (most != kNoLimit && least > most)) {
    if (most != kNoLimit && least > most) return CharDfa({});
    base::bad_input(source, "needs {} states for its length; at most {} are supported", places, kMaxDfaStates);
  }
  std::vector<State> chain(places);
  for (uint32_t i = 0; i < places; ++i) {
    chain[i].accepts = i >= least;
    if (i + 1 == places && most != kNoLimit) continue;
    for (const CharRange range : all_characters()) {
      chain[i].edges.push_back({range.low, range.high, std::min(i + 1, places - 1)});
    }
  }
  return intersect(CharDfa(std::move(chain)), source);
}

bool CharDfa::open_ended() const {
  return !nothing() && std::all_of(states_.begin(), states_.end(),
                                   [](const State& state) { return state.accepts && !state.edges.empty(); });
}

uint32_t CharNfa::add_node() {
  if (nodes_.size() >= kMaxNfaNodes) base::bad_input(source_, "needs more than {} states", kMaxNfaNodes);
  nodes_.emplace_back();
  return static_cast<uint32_t>(nodes_.size() - 1);
}

void CharNfa::characters(uint32_t from, const CharSet& set, uint32_t to) {
  edges_ += set.size();
  if (edges_ > kMaxNfaEdges) base::bad_input(source_, "needs more than {} transitions", kMaxNfaEdges);
  for (const CharRange range : set) nodes_[from].edges.push_back({range.low, range.high, to});
}

void CharNfa::skip(uint32_t from, uint32_t to, Assert assert) {
  nodes_[from].skips.push_back({to, assert});
}

std::vector<uint32_t> CharNfa::closure(std::vector<uint32_t> nodes, bool at_begin, bool at_end) const {
  mark_.resize(nodes_.size(), 0);
  ++round_;
  for (const uint32_t node : nodes) mark_[node] = round_;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Skip& skip : nodes_[nodes[i]].skips) {
      ++work_;
      if ((skip.assert == Assert::kBegin && !at_begin) || (skip.assert == Assert::kEnd && !at_end)) continue;
      if (mark_[skip.target] == round_) continue;
      mark_[skip.target] = round_;
      nodes.push_back(skip.target);
    }
  }
  std::sort(nodes.begin(), nodes.end());
  work_ += nodes.size();
  if (work_ > kMaxNfaWork) base::bad_input(source_, "is too complex: it takes more than {} steps", kMaxNfaWork);
  return nodes;
}

CharDfa CharNfa::determinise(uint32_t start, uint32_t accept) const {
  std::map<std::vector<uint32_t>, uint32_t> ids;
  std::vector<const std::vector<uint32_t>*> sets;
  std::vector<CharDfa::State> states;
  const auto id_of = [&](std::vector<uint32_t> nodes, bool at_begin) {
    nodes = closure(std::move(nodes), at_begin, false);
    // What has reached the end of the pattern stays there.
    if (std::binary_search(nodes.begin(), nodes.end(), accept)) nodes = {accept};
    const auto [at, added] = ids.emplace(std::move(nodes), static_cast<uint32_t>(states.size()));
    if (added) {
      if (states.size() >= kMaxDfaStates) base::bad_input(source_, "needs more than {} states", kMaxDfaStates);
      sets.push_back(&at->first);
      const std::vector<uint32_t> end = closure(at->first, at_begin, true);
      states.emplace_back().accepts = std::binary_search(end.begin(), end.end(), accept);
    }
    return at->second;
  };
  id_of({start}, true);
  for (size_t i = 0; i < sets.size(); ++i) {
    // The characters fall into pieces within which the same edges apply.
    std::vector<CharDfa::Edge> edges;
    for (const uint32_t node : *sets[i]) {
      edges.insert(edges.end(), nodes_[node].edges.begin(), nodes_[node].edges.end());
    }
    std::vector<char32_t> cuts;
    for (const CharDfa::Edge& edge : edges) {
      cuts.push_back(edge.low);
      cuts.push_back(edge.high + 1);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::sort(edges.begin(), edges.end(), [](const CharDfa::Edge& a, const CharDfa::Edge& b) { return a.low < b.low; });
    std::vector<CharDfa::Edge> active;
    size_t next = 0;
    for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
      std::erase_if(active, [&](const CharDfa::Edge& edge) { return edge.high < cuts[cut]; });
      while (next < edges.size() && edges[next].low <= cuts[cut]) active.push_back(edges[next++]);
      work_ += active.size();
      if (active.empty()) continue;
      std::vector<uint32_t> targets;
      for (const CharDfa::Edge& edge : active) targets.push_back(edge.target);
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      const uint32_t target = id_of(std::move(targets), false);
      states[i].edges.push_back({cuts[cut], cuts[cut + 1] - 1, target});
    }
  }
  return CharDfa(std::move(states));
}

}  // namespace tandem::grammar
