#include "text/bpe.h"

#include <algorithm>
#include <bit>

namespace tandem::text {

namespace {

int64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<int64_t>(left) << 32) | static_cast<uint32_t>(right);
}

size_t hash(int64_t key) {
  uint64_t x = static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15u;
  return x ^ (x >> 32);
}

// The heap gives the lowest rank first, and the leftmost of equal ranks.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.node > b.node;
}

}  // namespace

Bpe::Bpe(const std::vector<Merge>& merges, const std::vector<int32_t>& byte_tokens) : byte_tokens_(byte_tokens) {
  table_.resize(std::bit_ceil(std::max<size_t>(merges.size() * 2, 2)));
  mask_ = table_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const int64_t key = pair_key(merges[rank].left, merges[rank].right);
    size_t at = hash(key) & mask_;
    while (table_[at].pair != -1 && table_[at].pair != key) at = (at + 1) & mask_;
    table_[at] = {key, static_cast<int32_t>(rank), merges[rank].merged};
  }
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  const int64_t key = pair_key(left, right);
  for (size_t at = hash(key) & mask_;; at = (at + 1) & mask_) {
    if (table_[at].pair == key) return &table_[at];
    if (table_[at].pair == -1) return nullptr;
  }
}

void Bpe::push_candidate(Scratch& scratch, int32_t node) const {
  if (node < 0) return;
  const auto& left = scratch.nodes[static_cast<size_t>(node)];
  if (left.next < 0) return;
  const Slot* merge = find(left.token, scratch.nodes[static_cast<size_t>(left.next)].token);
  if (merge == nullptr) return;
  scratch.heap.push_back({merge->rank, node});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  constexpr int32_t kDead = -1;
  auto& nodes = scratch.nodes;
  nodes.clear();
  scratch.heap.clear();
  const auto count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<uint8_t>(word[static_cast<size_t>(i)]);
    nodes.push_back({byte_tokens_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < count; ++i) push_candidate(scratch, i);

  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    auto& left = nodes[static_cast<size_t>(best.node)];
    if (left.token == kDead || left.next < 0) continue;
    auto& right = nodes[static_cast<size_t>(left.next)];
    const Slot* merge = find(left.token, right.token);
    if (merge == nullptr || merge->rank != best.rank) continue;  // a neighbour was joined since this was pushed
    left.token = merge->merged;
    right.token = kDead;
    left.next = right.next;
    if (left.next >= 0) nodes[static_cast<size_t>(left.next)].previous = best.node;
    push_candidate(scratch, left.previous);
    push_candidate(scratch, best.node);
  }
  for (int32_t i = 0; i >= 0 && i < count; i = nodes[static_cast<size_t>(i)].next) {
    out.push_back(nodes[static_cast<size_t>(i)].token);
  }
}

}  // namespace tandem::text
