#include "device/buffer.h"

#include <cstring>
#include <sys/mman.h>

#include "base/units.h"

namespace tandem::device {

namespace {
constexpr uint64_t kAlignment = 4096;
// Large buffers ask for huge pages: weights are streamed, and with small pages the walks of the page table cost time.
constexpr uint64_t kHugePage = uint64_t{2} << 20;
}  // namespace

Buffer::Buffer(int64_t bytes, bool zeroed) : bytes_(bytes) {
  const uint64_t alignment = bytes >= static_cast<int64_t>(2 * kHugePage) ? kHugePage : kAlignment;
  const uint64_t rounded = base::round_up(static_cast<uint64_t>(bytes > 0 ? bytes : 1), alignment);
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (!data_) throw std::bad_alloc();
  // A refusal changes nothing but the speed.
  if (alignment == kHugePage) (void)madvise(data_.get(), rounded, MADV_HUGEPAGE);
  if (zeroed) std::memset(data_.get(), 0, rounded);
}

}  // namespace tandem::device
