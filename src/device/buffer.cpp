#include "device/buffer.h"

namespace tandem::device {

Buffer::Buffer(Device& device, int64_t bytes, bool zeroed)
    : data_(device.allocate(bytes), Release{&device, false}), bytes_(bytes) {
  if (zeroed) device.zero(data_.get(), bytes);
}

Buffer Buffer::shared(Device& device, int64_t bytes) {
  Buffer buffer;
  buffer.data_ = {device.allocate_shared(bytes), Release{&device, true}};
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace tandem::device
