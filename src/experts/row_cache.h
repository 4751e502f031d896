// Rows of a table kept in memory within a budget of bytes; what was not used for a while makes room (clock).
//
// The rows of the n-gram table are hashes, so that two rows that are needed together do not lie together: whole disk
// blocks would mostly hold rows that nobody asked for. Not thread-safe: RowStore locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/buffer.h"

namespace tandem::experts {

class RowCache {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  enum class State : uint8_t { kFree, kReading, kReady, kFailed };

  // Room for as many rows of `row_bytes` as `budget_bytes` holds with all that is kept about them, but at least
  // kLeastRows and at most `rows`.
  RowCache(int64_t rows, int64_t row_bytes, uint64_t budget_bytes);
  static constexpr int64_t kLeastRows = 64;
  // Of one row beside its bytes: the slot and two entries of the index.
  static constexpr int64_t kSlotBytes = 32;

  uint32_t capacity() const { return static_cast<uint32_t>(slots_.size()); }
  uint64_t bytes() const;  // what a full cache takes, at most the budget (or kLeastRows rows)

  // The slot of a row, kNone where it has none. A row that is found counts as used.
  uint32_t find(int64_t row);
  // A slot for a row that has none: free, or of a ready row that is neither pinned nor was used since the clock's hand
  // last came by. Its state is kReading. kNone where every slot is pinned or being read.
  uint32_t claim(int64_t row);
  // The end of a read.
  void ready(uint32_t slot);
  // The row has a slot in state kFailed until it is unpinned, then none.
  void failed(uint32_t slot);

  // A pinned slot keeps its row.
  void pin(uint32_t slot) { ++slots_[slot].pins; }
  void unpin(uint32_t slot);

  State state(uint32_t slot) const { return slots_[slot].state; }
  int64_t row(uint32_t slot) const { return slots_[slot].row; }
  std::byte* data(uint32_t slot) { return memory_.data() + static_cast<int64_t>(slot) * row_bytes_; }
  // Set by one who waits for a row that is being read; cleared by claim().
  bool& wanted(uint32_t slot) { return slots_[slot].wanted; }

 private:
  struct Slot {
    int64_t row = -1;
    uint32_t pins = 0;
    State state = State::kFree;
    bool used = false;
    bool wanted = false;
  };
  size_t home(int64_t row) const;
  void insert(uint32_t slot);
  void erase(uint32_t slot);

  int64_t row_bytes_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> index_;  // open addressing with linear probes; slot or kNone
  int shift_ = 0;                // 64 - log2 of the index's size
  uint32_t hand_ = 0;
  uint32_t fresh_ = 0;  // slots from here on have never been used
  device::Buffer memory_;
};

}  // namespace tandem::experts
