// What the blocks of one forward call share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
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
    live_ += bytes;
    most_ = std::max(most_, live_);
    if (plans_) return reinterpret_cast<T*>(kNowhere + static_cast<uintptr_t>(live_ - bytes));
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) blocks_.emplace_back(device_, std::max(bytes, kLeastBytes));
    std::byte* memory = blocks_[block_].data() + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(memory);
  }

  // Between forwards, once nobody reads any more what the last one left: where it needed more than was planned, there
  // is one block for all of it from now on.
  void gather() {
    if (live_ == 0 && blocks_.size() > 1) make_room();
  }

  // How often addresses changed: what was recorded before is of no use.
  int64_t moves() const { return moves_; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), used_(arena.used_), live_(arena.live_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
      arena_.live_ = live_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_;
    int64_t used_;
    int64_t live_;
  };

  // While it lives, outside of all scopes, what is taken is counted and must not be touched. Afterwards there is room
  // for as much in one block, at addresses that stay until more is taken.
  class Plan {
   public:
    explicit Plan(Arena& arena) : arena_(arena) { arena_.plans_ = true; }
    ~Plan() noexcept(false) {
      arena_.plans_ = false;
      if (std::uncaught_exceptions() == 0) arena_.make_room();
    }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

   private:
    Arena& arena_;
  };

 private:
  static constexpr int64_t kLeastBytes = int64_t{1} << 20;
  static constexpr uintptr_t kNowhere = uintptr_t{1} << 46;

  // One block for the most that was ever taken together.
  void make_room() {
    const int64_t bytes = std::max(most_, kLeastBytes);
    if (blocks_.size() == 1 && blocks_[0].bytes() >= bytes) return;
    device_.finish();
    blocks_.clear();
    blocks_.emplace_back(device_, bytes);
    block_ = 0;
    used_ = 0;
    ++moves_;
  }

  device::Device& device_;
  std::vector<device::Buffer> blocks_;
  bool plans_ = false;
  size_t block_ = 0;  // the one that is taken from
  int64_t used_ = 0;  // of it
  int64_t live_ = 0;  // taken and not given back, of all
  int64_t most_ = 0;  // that live_ ever was
  int64_t moves_ = 0;
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
