// What rows of logits become, chosen where the logits were computed: the likeliest token, or the best of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "model/model.h"
#include "ops/ops.h"

namespace tandem::model {

// For one thread at a time. Logits are [rows, vocab] on the device, of at most ops::kMostFewColumns rows.
class Choices {
 public:
  // A set of tokens for each row, as bits of the first `tokens` ids, 64 in a word; an empty one, or none at all, allows
  // all.
  using Allowed = std::span<const std::span<const uint64_t>>;

  Choices(device::Device& device, ops::Ops& ops, int64_t vocab) : device_(device), ops_(ops), vocab_(vocab) {}

  // Takes the memory that choices need, once.
  void make_room();
  // Has the operations count their scratch memory (ops::Ops::prepare).
  void plan(const float* logits, int64_t rows);

  // Both are asked for, and there when the device has finished.
  void ask_greedy(const float* logits, int64_t rows, int64_t tokens, Allowed allowed);
  void ask_top_logits(const float* logits, int64_t rows, int64_t tokens, Allowed allowed);
  std::vector<int32_t> greedy(int64_t rows) const;
  // Until the next is asked for.
  std::vector<Model::TopLogits> top_logits(int64_t rows) const;

 private:
  // Writes the sets where operations read them; null where all tokens are allowed.
  const uint32_t* upload(int64_t tokens, Allowed allowed);

  device::Device& device_;
  ops::Ops& ops_;
  int64_t vocab_;
  device::Buffer ids_;      // shared: [kMostFewColumns]
  device::Buffer counts_;   // shared: [kMostFewColumns]
  device::Buffer best_;     // shared: [kMostFewColumns, kTopLogits]
  device::Buffer staging_;  // shared: [kMostFewColumns, words of the vocabulary]
  device::Buffer allowed_;  // the same on the device
};

}  // namespace tandem::model
