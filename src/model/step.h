// What the blocks of one forward call share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "device/buffer.h"
#include "model/model.h"
#include "ops/ops.h"

namespace tandem::model {

// Working memory of a forward on one device: taken in a stack, given back by scope. Grows to what the largest forward
// needed.
class Arena {
 public:
  explicit Arena(device::Device& device) : device_(device) {}

  // `count` values, uninitialised, at a multiple of 256 bytes; valid until the enclosing Scope ends.
  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = static_cast<int64_t>(base::round_up(static_cast<uint64_t>(count) * sizeof(T), 256));
    if (blocks_.empty() || used_ + bytes > blocks_.back().bytes()) add_block(bytes);
    std::byte* memory = blocks_.back().data() + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(memory);
  }

  // Outside of scopes: what later forwards need is there already, at addresses that stay.
  void reserve(int64_t bytes) {
    if (bytes_ >= bytes) return;
    blocks_.clear();
    bytes_ = used_ = 0;
    add_block(bytes);
    used_ = 0;
  }
  int64_t bytes() const { return bytes_; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), blocks_(arena.blocks_.size()), used_(arena.used_) {}
    ~Scope() { arena_.give_back(blocks_, used_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t blocks_;
    int64_t used_;
  };

 private:
  void add_block(int64_t bytes) {
    blocks_.emplace_back(device_, std::max(bytes, int64_t{1} << 20));
    bytes_ += blocks_.back().bytes();
    used_ = 0;
  }
  // A block that was added inside an inner scope stays until the outermost one ends; then all become one that holds
  // as much, so that a steady state has a single block.
  void give_back(size_t blocks, int64_t used) {
    if (blocks == blocks_.size()) used_ = used;
    if (blocks > 1 || used > 0) return;
    used_ = 0;
    if (blocks_.size() < 2) return;
    const int64_t total = bytes_;
    device_.finish();
    blocks_.clear();
    bytes_ = 0;
    add_block(total);
  }

  device::Device& device_;
  std::vector<device::Buffer> blocks_;
  int64_t bytes_ = 0;
  int64_t used_ = 0;  // of the last block
};

struct Step {
  device::Device& device;
  ops::Ops& ops;
  Arena& arena;
  const ops::Columns& columns;
  int64_t tokens;    // columns.count()
  std::byte* pages;  // of all sequences
  int64_t page_bytes;
  float eps;
  const int32_t* ids;  // [tokens], as what follows in the device's memory
  const float* ngram;  // the rows that the n-gram memories read, one memory behind the other
  int32_t* faults;     // [tokens]: the layer in which a column's numbers left their range, -1 for none
};

// Hands out places in the slot and in the page while the blocks are built.
class LayoutBuilder {
 public:
  int64_t slot_floats(int64_t count) { return advance(layout_.slot_bytes, count * 4); }
  int64_t page_bytes(int64_t bytes) { return advance(layout_.page_bytes, bytes); }
  const StateLayout& layout() const { return layout_; }

 private:
  static int64_t advance(int64_t& total, int64_t bytes) {
    const int64_t at = total;
    total += static_cast<int64_t>(base::round_up(static_cast<uint64_t>(bytes), 256));
    return at;
  }
  StateLayout layout_;
};

}  // namespace tandem::model
