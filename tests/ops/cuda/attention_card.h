// Sequences with pages on a card and, with the same contents, on the host: for the tests and the bench of attention.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/units.h"
#include "ops/ops.h"
#include "tests/ops/cuda/state_card.h"

namespace tandem::ops::cuda {

struct AttentionShape {
  int64_t heads = 24, kv_heads = 4, head_dim = 256;
  int64_t index_heads = 4, index_dim = 128, ratio = 4;
  KvType type = KvType::kBF16;

  int64_t width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t index_width() const { return (index_heads + 1) * index_dim; }
  int64_t element_bytes() const { return type == KvType::kBF16 ? 2 : type == KvType::kF32 ? 4 : 1; }
  int64_t index_element_bytes() const { return type == KvType::kF32 ? 4 : 2; }
  // Parts of a page: keys, values, scales, index keys.
  int64_t keys_bytes() const { return kv_width() * 64 * element_bytes(); }
  int64_t scales_bytes() const { return type == KvType::kInt8 ? 2 * kv_heads * 64 * ((head_dim + 63) / 64) * 2 : 0; }
  int64_t index_bytes() const { return 64 / ratio * index_dim * index_element_bytes(); }
  int64_t layer_bytes() const { return 2 * keys_bytes() + scales_bytes() + index_bytes(); }
};

// Pages hold another layer's bytes before those of this layer.
inline constexpr int64_t kLayerOffset = 192;

struct SequenceShape {
  int64_t position = 0;
  int64_t tokens = 1;
};

// Each sequence has the pages up to its last token, in a shuffled order; all others of its table are no pages.
class PagedSequences {
 public:
  PagedSequences(StateCard& card, RandomData& random, const AttentionShape& shape,
                 const std::vector<SequenceShape>& sequences, int64_t each)
      : shape_(shape), each_(each) {
    int32_t pages = 0;
    for (const SequenceShape& sequence : sequences) {
      const int64_t end = sequence.position + sequence.tokens;
      std::vector<int32_t> table(static_cast<size_t>((end + 63) / 64));
      for (int32_t& page : table) page = pages++;
      tables_.push_back(table);
      reach_ = std::max(reach_, end);
    }
    std::vector<int32_t> order(static_cast<size_t>(pages));
    for (int32_t i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), random.engine());
    for (std::vector<int32_t>& table : tables_) {
      for (int32_t& page : table) page = order[static_cast<size_t>(page)];
      table.push_back(-1000000);
    }
    page_bytes_ = kLayerOffset + static_cast<int64_t>(base::round_up(static_cast<uint64_t>(shape.layer_bytes()), 64));
    host_pages.assign(static_cast<size_t>(pages * page_bytes_), std::byte{0xFF});
    pages_ = std::make_unique<Array<std::byte>>(card, host_pages);
    for (size_t i = 0; i < sequences.size(); ++i) {
      slots.push_back(random.normal(Ops::kRecentKeys * shape.index_dim + 16));
      device_slots.push_back(std::make_unique<Array<float>>(card, slots.back()));
      device_tables_.push_back(std::make_unique<Array<int32_t>>(card, tables_[i]));
      const Run run{.position = sequences[i].position, .tokens = sequences[i].tokens};
      host_runs_.push_back(run);
      runs_.push_back(run);
      runs_.back().slot = reinterpret_cast<std::byte*>(device_slots[i]->data());
      runs_.back().block_table = device_tables_[i]->data();
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      host_runs_[i].slot = reinterpret_cast<std::byte*>(slots[i].data());
      host_runs_[i].block_table = tables_[i].data();
    }
    run_table_ = std::make_unique<Array<Run>>(card, runs_);
  }

  Columns device() const { return {runs_, run_table_->data(), each_, reach_, true}; }
  Columns host() const { return {host_runs_, host_runs_.data(), each_, reach_, true}; }
  int64_t count() const { return static_cast<int64_t>(runs_.size()) * each_; }
  int64_t each() const { return each_; }
  int64_t reach() const { return reach_; }
  bool holds(int64_t c) const { return c % each_ < run_of(c).tokens; }
  int64_t position(int64_t c) const { return run_of(c).position + c % each_; }
  const Run& host_run(int64_t c) const { return host_runs_[static_cast<size_t>(c / each_)]; }
  const Run& run_of(int64_t c) const { return runs_[static_cast<size_t>(c / each_)]; }
  const std::vector<Run>& runs() const { return runs_; }

  KvLayer device_layer() { return layer(pages_->data()); }
  KvLayer host_layer() { return layer(host_pages.data()); }
  void upload_pages() { pages_->set(host_pages); }
  std::vector<std::byte> device_pages() { return pages_->get(); }

  std::vector<std::byte> host_pages;
  std::vector<std::vector<float>> slots;
  std::vector<std::unique_ptr<Array<float>>> device_slots;

 private:
  KvLayer layer(std::byte* pages) const {
    return {.pages = pages,
            .page_bytes = page_bytes_,
            .layer_offset = kLayerOffset,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .index_dim = shape_.index_dim,
            .ratio = shape_.ratio,
            .type = shape_.type};
  }

  AttentionShape shape_;
  int64_t each_;
  int64_t reach_ = 0;
  int64_t page_bytes_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::unique_ptr<Array<int32_t>>> device_tables_;
  std::vector<Run> runs_, host_runs_;
  std::unique_ptr<Array<Run>> run_table_;
  std::unique_ptr<Array<std::byte>> pages_;
};

}  // namespace tandem::ops::cuda
