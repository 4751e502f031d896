// Memory of a device, owned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"

namespace tandem::device {

// Move-only; the bytes are not initialised unless asked for. The device must outlive it. Throws as the device's
// allocation does. The processor may touch what it holds only if the device is the host, or the buffer is shared.
class Buffer {
 public:
  Buffer() = default;
  // Of the host, at a multiple of 4096 bytes, as direct reads want it.
  explicit Buffer(int64_t bytes, bool zeroed = false) : Buffer(host(), bytes, zeroed) {}
  Buffer(Device& device, int64_t bytes, bool zeroed = false);
  // Memory that both the processor and the device reach (Device::allocate_shared).
  static Buffer shared(Device& device, int64_t bytes);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> span() { return {data_.get(), static_cast<size_t>(bytes_)}; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Release {
    Device* device;
    bool shared;
    void operator()(std::byte* memory) const {
      if (shared) {
        device->release_shared(memory);
      } else {
        device->release(memory);
      }
    }
  };
  std::unique_ptr<std::byte, Release> data_;
  int64_t bytes_ = 0;
};

}  // namespace tandem::device
