// The hashed n-gram memory: which rows of the table a position reads, and what they add to the residual streams.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "experts/ngram_table.h"
#include "model/config.h"
#include "model/step.h"
#include "model/weights.h"

namespace tandem::model {

// The hash of one position's window (docs/architecture.md, "Models"): bigram heads first, then trigram heads.
class NgramHash {
 public:
  NgramHash(std::vector<int64_t> multipliers, std::vector<int64_t> sizes, std::vector<int64_t> offsets,
            int64_t end_token);

  int64_t heads() const { return static_cast<int64_t>(sizes_.size()); }
  // One more than the largest row that a window can name.
  int64_t reach() const { return reach_; }
  // Rows of the table for a token with its predecessor and the one before; -1 stands for "before the start". An end
  // token among the predecessors hides itself and all before it; the token's own value does not.
  void rows(int64_t token, int64_t previous, int64_t before, std::span<int64_t> out) const;

 private:
  std::vector<int64_t> multipliers_;  // [3]
  std::vector<int64_t> sizes_;        // [heads]
  std::vector<int64_t> offsets_;      // [heads]
  int64_t end_token_;
  int64_t reach_ = 0;
};

class NgramMemory {
 public:
  // `name` is the module's, "model.language_model.layers.1.ple".
  NgramMemory(const Config& config, const std::string& name, const experts::NgramOptions& options, WeightLoader& loader,
              LayoutBuilder& layout);

  // Starts to read the rows of `tokens`, which follow the sequence's `view.length` tokens.
  void prefetch(const SequenceView& view, std::span<const int32_t> tokens) const;
  // Waits for those rows: values [tokens, floats_per_column()], on the host.
  void read(const SequenceView& view, std::span<const int32_t> tokens, float* values) const;
  int64_t floats_per_column() const { return config_.ngram_embed_dim; }

  // state [tokens, streams, hidden] += the memory's answer to what read() gave; moves the convolution on.
  void forward(const Step& step, const float* values, float* state) const;

  experts::NgramCounters counters() const { return table_->counters(); }

 private:
  // The rows of every token's window, [tokens, heads].
  std::vector<int64_t> rows(const SequenceView& view, std::span<const int32_t> tokens) const;

  const Config& config_;
  NgramHash hash_;
  std::unique_ptr<experts::NgramTable> table_;
  ops::NgramWeights weights_;
  int64_t history_offset_;
};

}  // namespace tandem::model
