#include "experts/row_cache.h"

#include <algorithm>
#include <bit>

namespace tandem::experts {

namespace {

int64_t slots_within(int64_t rows, int64_t row_bytes, uint64_t budget_bytes) {
  const auto fit = static_cast<int64_t>(budget_bytes / static_cast<uint64_t>(row_bytes + RowCache::kSlotBytes));
  const int64_t most = std::min<int64_t>(rows, int64_t{1} << 31);
  return std::clamp(fit, std::min(RowCache::kLeastRows, most), most);
}

}  // namespace

RowCache::RowCache(int64_t rows, int64_t row_bytes, uint64_t budget_bytes)
    : row_bytes_(row_bytes), slots_(static_cast<size_t>(slots_within(rows, row_bytes, budget_bytes))) {
  // At most 2/3 full, so that probes stay short; at most 4 entries a slot.
  const size_t entries = std::bit_ceil(std::max<size_t>(slots_.size() + slots_.size() / 2, 2));
  index_.assign(entries, kNone);
  shift_ = 64 - std::countr_zero(entries);
  memory_ = device::Buffer(static_cast<int64_t>(slots_.size()) * row_bytes);
}

uint64_t RowCache::bytes() const {
  return slots_.size() * (sizeof(Slot) + static_cast<uint64_t>(row_bytes_)) + index_.size() * sizeof(uint32_t);
}

// Fibonacci hashing: the rows of one head are neighbours, their homes are not.
size_t RowCache::home(int64_t row) const {
  return static_cast<size_t>((static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U) >> shift_);
}

uint32_t RowCache::find(int64_t row) {
  for (size_t at = home(row);; at = (at + 1) & (index_.size() - 1)) {
    const uint32_t slot = index_[at];
    if (slot == kNone) return kNone;
    if (slots_[slot].row != row) continue;
    slots_[slot].used = true;
    return slot;
  }
}

uint32_t RowCache::claim(int64_t row) {
  uint32_t slot = kNone;
  if (fresh_ < capacity()) {
    slot = fresh_++;
  } else {
    // The first round takes the marks away, the second finds a slot unless all are held.
    for (uint64_t step = 0; step < 2 * uint64_t{capacity()} && slot == kNone; ++step) {
      Slot& candidate = slots_[hand_];
      const uint32_t at = hand_;
      hand_ = hand_ + 1 == capacity() ? 0 : hand_ + 1;
      if (candidate.pins > 0 || candidate.state == State::kReading) continue;
      if (candidate.used) {
        candidate.used = false;
      } else {
        slot = at;
      }
    }
    if (slot == kNone) return kNone;
    if (slots_[slot].state != State::kFree) erase(slot);
  }
  slots_[slot] = {.row = row, .pins = 0, .state = State::kReading, .used = true, .wanted = false};
  insert(slot);
  return slot;
}

void RowCache::ready(uint32_t slot) {
  slots_[slot].state = State::kReady;
}

void RowCache::failed(uint32_t slot) {
  slots_[slot].state = State::kFailed;
  if (slots_[slot].pins == 0) erase(slot);
}

void RowCache::unpin(uint32_t slot) {
  if (--slots_[slot].pins == 0 && slots_[slot].state == State::kFailed) erase(slot);
}

void RowCache::insert(uint32_t slot) {
  size_t at = home(slots_[slot].row);
  while (index_[at] != kNone) at = (at + 1) & (index_.size() - 1);
  index_[at] = slot;
}

void RowCache::erase(uint32_t slot) {
  const size_t mask = index_.size() - 1;
  size_t hole = home(slots_[slot].row);
  while (index_[hole] != slot) hole = (hole + 1) & mask;
  // Entries behind the hole move up where their probe would otherwise end at it.
  for (size_t at = (hole + 1) & mask; index_[at] != kNone; at = (at + 1) & mask) {
    const size_t distance = (at - home(slots_[index_[at]].row)) & mask;
    if (distance < ((at - hole) & mask)) continue;
    index_[hole] = index_[at];
    hole = at;
  }
  index_[hole] = kNone;
  slots_[slot].row = -1;
  slots_[slot].state = State::kFree;
  slots_[slot].used = false;
}

}  // namespace tandem::experts
