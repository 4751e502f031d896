// What the source files of ParityOps share: bounds of differences, and a step's columns with the host's own state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "selftest/parity_ops.h"

namespace tandem::selftest {

using ops::Columns;
using ops::Weight;

// FP32 sums in another order; values that are combined without sums.
inline constexpr double kSums = 2e-5;
inline constexpr double kElementwise = 1e-5;
// A value that lands on the other side of a rounding to BF16, inside an operation.
inline constexpr double kBf16 = 5e-3;

inline constexpr int64_t kPageTokens = 64;

inline std::vector<float> to_floats(const std::vector<int32_t>& values) {
  return {values.begin(), values.end()};
}

// The runs of a step with their state on the host: the parts of slots that an operation names, and the pages.
class ParityOps::HostColumns {
 public:
  HostColumns(ParityOps& ops, const Columns& columns)
      : ops_(ops), columns_(columns), runs_(columns.runs.begin(), columns.runs.end()) {
    for (ops::Run& run : runs_) run.slot = nullptr;
  }

  // Takes the floats at a byte offset of each slot along.
  HostColumns& with_slot(int64_t offset, int64_t floats) {
    offset_ = offset;
    floats_ = floats;
    slots_.resize(runs_.size());
    for (size_t r = 0; r < runs_.size(); ++r) {
      slots_[r] = ops_.fetch(device_floats(r), floats);
      // The operation adds the offset itself.
      runs_[r].slot = reinterpret_cast<std::byte*>(slots_[r].data()) - offset;
    }
    return *this;
  }

  // Takes the pages along that the runs see.
  HostColumns& with_pages(const ops::KvLayer& kv) {
    int32_t most = 0;
    tables_.resize(runs_.size());
    for (size_t r = 0; r < runs_.size(); ++r) {
      const int64_t pages = base::ceil_div(runs_[r].position + runs_[r].tokens, kPageTokens);
      tables_[r] = ops_.fetch(columns_.runs[r].block_table, pages);
      runs_[r].block_table = tables_[r].data();
      for (const int32_t page : tables_[r]) most = std::max(most, page);
    }
    page_bytes_ = kv.page_bytes;
    device_pages_ = kv.pages;
    pages_ = ops_.fetch(kv.pages, (most + 1) * kv.page_bytes);
    return *this;
  }

  Columns columns() const {
    Columns host = columns_;
    host.runs = runs_;
    host.table = runs_.data();
    return host;
  }
  ops::KvLayer kv(ops::KvLayer layer) {
    layer.pages = pages_.data();
    return layer;
  }

  // What the host's operation left in the slots and in one layer's part of the pages, and the card's counterpart.
  std::vector<float> slot_values() const {
    std::vector<float> all;
    for (const auto& slot : slots_) all.insert(all.end(), slot.begin(), slot.end());
    return all;
  }
  std::vector<float> card_slot_values() {
    std::vector<float> all;
    for (size_t r = 0; r < runs_.size(); ++r) {
      const auto slot = ops_.fetch(device_floats(r), floats_);
      all.insert(all.end(), slot.begin(), slot.end());
    }
    return all;
  }
  const std::vector<std::byte>& pages() const { return pages_; }
  std::vector<std::byte> card_pages() { return ops_.fetch(device_pages_, static_cast<int64_t>(pages_.size())); }
  const int32_t* table(size_t run) const { return tables_[run].data(); }

 private:
  const float* device_floats(size_t run) const {
    return reinterpret_cast<const float*>(columns_.runs[run].slot + offset_);
  }

  ParityOps& ops_;
  const Columns& columns_;
  std::vector<ops::Run> runs_;
  int64_t offset_ = 0;
  int64_t floats_ = 0;
  int64_t page_bytes_ = 0;
  const std::byte* device_pages_ = nullptr;
  std::vector<std::vector<float>> slots_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::byte> pages_;
};

}  // namespace tandem::selftest
