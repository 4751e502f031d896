#include "device/planning_device.h"

#include <algorithm>

#include "base/units.h"

namespace tandem::device {

namespace {
constexpr uint64_t kGranularity = 512;  // of a card's allocations
}

std::byte* PlanningDevice::allocate(int64_t bytes) {
  const auto size =
      static_cast<int64_t>(base::round_up(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)), kGranularity));
  // Addresses of a plan are compared and counted up, never followed.
  auto* address = reinterpret_cast<std::byte*>(next_);  // NOLINT(performance-no-int-to-ptr)
  next_ += static_cast<uintptr_t>(size);
  bytes_ += size;
  blocks_.push_back({address, size});
  return address;
}

void PlanningDevice::release(std::byte* memory) noexcept {
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.address == memory; });
  if (found == blocks_.end()) return;
  bytes_ -= found->bytes;
  blocks_.erase(found);
}

}  // namespace tandem::device
