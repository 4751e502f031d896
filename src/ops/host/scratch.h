// Memory of host operations that is kept from call to call.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::ops::host {

// Grows to the largest size asked for. What get() returned before is invalid after a larger request.
template <typename T>
class Scratch {
 public:
  T* get(int64_t count) {
    if (static_cast<int64_t>(data_.size()) < count) data_.resize(static_cast<size_t>(count));
    return data_.data();
  }
  T* data() { return data_.data(); }

 private:
  std::vector<T> data_;
};

}  // namespace tandem::ops::host
