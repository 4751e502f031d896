#include "device/buffer.h"

#include <cstring>

#include "base/units.h"

namespace tandem::device {

namespace {
constexpr uint64_t kAlignment = 4096;
}

Buffer::Buffer(int64_t bytes, bool zeroed) : bytes_(bytes) {
  const uint64_t rounded = base::round_up(static_cast<uint64_t>(bytes > 0 ? bytes : 1), kAlignment);
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (!data_) throw std::bad_alloc();
  if (zeroed) std::memset(data_.get(), 0, rounded);
}

}  // namespace tandem::device
