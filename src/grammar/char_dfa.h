// Sets of strings as deterministic automata over characters: what patterns, formats, lengths and lists of strings come
// to before they are spelled in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::grammar {

// Code points, inclusive.
struct CharRange {
  char32_t low = 0, high = 0;
};
using CharSet = std::vector<CharRange>;  // sorted, disjoint, not adjacent

CharSet normalised(CharSet set);
CharSet inverted(const CharSet& set);  // all other characters; surrogates are none
CharSet all_characters();

// Every state can still reach an accepting one; without states nothing is accepted.
class CharDfa {
 public:
  struct Edge {
    char32_t low = 0, high = 0;
    uint32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;  // sorted, disjoint
    bool accepts = false;
  };

  explicit CharDfa(std::vector<State> states);  // the first is the start; dead ends are taken out

  static CharDfa everything();
  static CharDfa of_strings(const std::vector<std::string>& strings);  // UTF-8

  bool nothing() const { return states_.empty(); }
  const std::vector<State>& states() const { return states_; }
  bool matches(std::string_view utf8) const;

  CharDfa complement() const;
  // These throw base::Error{kBadInput} with `source` where the result is too large.
  CharDfa intersect(const CharDfa& other, const std::string& source) const;
  CharDfa of_length(uint32_t least, uint32_t most, const std::string& source) const;  // kNoLimit: any

  // Whether each character leads on, and every state accepts: any part of a string may then be counted off.
  bool open_ended() const;

 private:
  std::vector<State> states_;
};

// How an automaton that is not deterministic is written down before it becomes a CharDfa.
class CharNfa {
 public:
  // Throws base::Error{kBadInput} with `source` beyond the limits, here and in determinise.
  explicit CharNfa(std::string source) : source_(std::move(source)) {}

  enum class Assert : uint8_t { kNone, kBegin, kEnd };

  uint32_t add_node();
  void characters(uint32_t from, const CharSet& set, uint32_t to);
  void skip(uint32_t from, uint32_t to, Assert assert = Assert::kNone);

  CharDfa determinise(uint32_t start, uint32_t accept) const;

 private:
  struct Skip {
    uint32_t target;
    Assert assert;
  };
  struct Node {
    std::vector<CharDfa::Edge> edges;
    std::vector<Skip> skips;
  };
  std::vector<uint32_t> closure(std::vector<uint32_t> nodes, bool at_begin, bool at_end) const;

  std::string source_;
  std::vector<Node> nodes_;
  size_t edges_ = 0;
  mutable uint64_t work_ = 0;
  mutable std::vector<uint32_t> mark_;
  mutable uint32_t round_ = 0;
};

}  // namespace tandem::grammar
