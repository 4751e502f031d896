// The state of sequences in memory: KV in 64-token pages behind a block table, everything recurrent in slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace tandem::context {

class Sequence;

// Owns the pages and slots of one model. Not thread-safe: the engine's step thread alone uses it.
class SequencePool {
 public:
  // Room for `tokens` of KV, rounded up to whole pages and shared by all sequences, and for `slots` sequences.
  SequencePool(model::Model& model, int64_t tokens, int slots);
  ~SequencePool();

  // A new empty sequence; throws base::Error{kUnavailable} where no slot is free.
  Sequence create();
  int64_t free_tokens() const;  // tokens that fit into the free pages
  int64_t capacity_tokens() const;
  int free_slots() const;
  int64_t bytes() const;  // pages and slots together
  // The pages as they lie in the device's memory, for measurements that fill them.
  std::span<std::byte> page_memory();

 private:
  friend class Sequence;
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

// One sequence: its tokens' state. Move-only; frees its pages and slot when destroyed.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  int64_t length() const { return length_; }
  // A copy of the state in a slot and pages of its own.
  Sequence copy() const;

  // Runs the model over `tokens` and extends the state by them. Throws base::Error{kUnavailable} where the pages do
  // not suffice; the state is then unchanged.
  void forward(std::span<const int32_t> tokens, const model::ForwardRequest& request, model::ForwardOutput& output);
  // Of the last forward of the pool's sequences, which kept this one's logits alone (model::Model::greedy).
  int32_t greedy(int64_t tokens, std::span<const uint64_t> allowed);
  model::Model::TopLogits top_logits(int64_t tokens, std::span<const uint64_t> allowed);
  std::span<const float> read_logits();
  void settle();
  // Says that these tokens come next, as early as that is known (model::Model::prefetch).
  void prefetch(std::span<const int32_t> tokens);
  // Takes pages for `tokens` and goes on behind them, with whatever lies there for their state: for measurements of
  // long contexts. Throws as forward() does.
  void pretend(int64_t tokens);
  // The draft head over entries that follow those drafted so far.
  void draft(const model::Model::DraftRequest& request, model::Model::DraftOutput& output);

  // The same for several sequences of one pool together, each with as many tokens (model::Model::forward).
  static void forward(std::span<Sequence* const> sequences, std::span<const std::span<const int32_t>> tokens,
                      const model::ForwardRequest& request, model::ForwardOutput& output);

 private:
  friend class SequencePool;
  explicit Sequence(std::shared_ptr<SequencePool::Memory> memory);
  void reserve(int64_t tokens);
  model::SequenceView view() const;

  std::shared_ptr<SequencePool::Memory> memory_;
  std::vector<int32_t> block_table_;  // the device's copy lies in the pool, a row for each slot
  int32_t slot_ = -1;
  int64_t length_ = 0;
  std::array<int32_t, 2> window_{-1, -1};  // as model::SequenceView
};

}  // namespace tandem::context
