// Objects whose chunks are tensors' byte ranges put one after the other.
#pragma once

#include <vector>

#include "convert/object_plan.h"

namespace tandem::convert {

// Bytes [offset, offset + bytes) of a tensor, at byte `at` of a chunk.
struct Segment {
  const checkpoint::Tensor* tensor = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t at = 0;
  Check check = Check::kNone;
};

class GatherPlan : public ObjectPlan {
 public:
  using ObjectPlan::ObjectPlan;

  void make(const checkpoint::Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const final;
  bool invert(uint64_t chunk, std::span<const std::byte> bytes, const PieceSink& sink) const final;

 protected:
  // The segments of a chunk, by `at`; what lies between and behind them is padding.
  virtual std::vector<Segment> segments(uint64_t chunk) const = 0;
};

}  // namespace tandem::convert
