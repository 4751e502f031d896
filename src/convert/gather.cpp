#include "convert/gather.h"

#include <algorithm>

namespace tandem::convert {

void GatherPlan::make(const checkpoint::Checkpoint& checkpoint, uint64_t chunk, std::span<std::byte> out) const {
  std::ranges::fill(out, std::byte{0});
  for (const Segment& segment : segments(chunk)) {
    const std::span<std::byte> target = out.subspan(segment.at, segment.bytes);
    checkpoint.read(*segment.tensor, segment.offset, target);
    check_values(segment.check, *segment.tensor, segment.offset, target);
  }
}

bool GatherPlan::invert(uint64_t chunk, std::span<const std::byte> bytes, const PieceSink& sink) const {
  bool padded = true;
  uint64_t end = 0;
  for (const Segment& segment : segments(chunk)) {
    padded = padded && all_zero(bytes.subspan(end, segment.at - end));
    sink(*segment.tensor, segment.offset, bytes.subspan(segment.at, segment.bytes));
    end = segment.at + segment.bytes;
  }
  return padded && all_zero(bytes.subspan(end));
}

}  // namespace tandem::convert
