// Byte pair encoding of one word: the pair of neighbours with the lowest rank is joined until no pair has a rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem::text {

struct Merge {
  int32_t left = 0, right = 0;  // the tokens that are joined
  int32_t merged = 0;           // the token they become
};

// Immutable once built; encode may be called from several threads with a Scratch each.
class Bpe {
 public:
  // The rank of a merge is its place in `merges`; where a pair occurs twice the later place counts.
  // `byte_tokens[b]` is the token of the single byte b.
  Bpe(const std::vector<Merge>& merges, const std::vector<int32_t>& byte_tokens);

  // Memory that encode reuses from word to word.
  struct Scratch {
    struct Node {
      int32_t token, previous, next;
    };
    struct Candidate {
      int32_t rank, node;  // `node` and its next one can be joined by the merge of this rank
    };
    std::vector<Node> nodes;
    std::vector<Candidate> heap;
  };

  // Appends the tokens of `word`, in time n log n. REQUIRES word.size() < 2^31.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    int64_t pair = -1;  // left << 32 | right; -1: empty
    int32_t rank = 0;
    int32_t merged = 0;
  };

  const Slot* find(int32_t left, int32_t right) const;
  void push_candidate(Scratch& scratch, int32_t node) const;

  std::vector<Slot> table_;  // open addressing; a power of two, at most half full
  size_t mask_ = 0;
  std::vector<int32_t> byte_tokens_;
};

}  // namespace tandem::text
