#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>

#include "base/units.h"
#include "device/device.h"

namespace tandem::device {

namespace {

constexpr uint64_t kAlignment = 4096;
// Large buffers ask for huge pages: weights are streamed, and with small pages the walks of the page table cost time.
constexpr uint64_t kHugePage = uint64_t{2} << 20;

class HostDevice final : public Device {
 public:
  std::string describe() const override { return "the processor"; }
  bool is_host() const override { return true; }

  std::byte* allocate(int64_t bytes) override {
    const uint64_t alignment = bytes >= static_cast<int64_t>(2 * kHugePage) ? kHugePage : kAlignment;
    const uint64_t rounded = base::round_up(static_cast<uint64_t>(bytes > 0 ? bytes : 1), alignment);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
    if (memory == nullptr) throw std::bad_alloc();
    // A refusal changes nothing but the speed.
    if (alignment == kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
  }
  void release(std::byte* memory) noexcept override { std::free(memory); }
  std::byte* allocate_shared(int64_t bytes) override { return allocate(bytes); }
  void release_shared(std::byte* memory) noexcept override { release(memory); }

  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void fetch(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void zero(void* to, int64_t bytes) override {
    if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
  }
  void finish() override {}
};

}  // namespace

Device& host() {
  static HostDevice device;
  return device;
}

std::unique_ptr<Mark> Device::make_mark() {
  class Everything final : public Mark {
   public:
    explicit Everything(Device& device) : device_(device) {}
    void set() override {}
    void wait() override { device_.finish(); }

   private:
    Device& device_;
  };
  return std::make_unique<Everything>(*this);
}

}  // namespace tandem::device
