// A card with matrices on it, for the tests and the bench of dense products.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "device/cards.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/context.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_paths.h"

namespace tandem::ops::cuda {

class DenseCard {
 public:
  explicit DenseCard(int64_t scratch_bytes)
      : device_(device::open_card(0)),
        memory_(*device_, scratch_bytes),
        scratch_(memory_.data(), scratch_bytes),
        context_{.stream = cuda_device().stream(),
                 .scratch = scratch_,
                 .multiprocessors = cuda_device().card().multiprocessors,
                 .capability = 10 * cuda_device().card().capability_major + cuda_device().card().capability_minor} {}

  device::Device& device() { return *device_; }
  Context& context() { return context_; }

  template <typename T>
  device::Buffer upload(std::span<const T> values) {
    device::Buffer buffer(*device_, static_cast<int64_t>(values.size_bytes()));
    device_->upload(buffer.data(), values.data(), buffer.bytes());
    device_->finish();
    return buffer;
  }
  template <typename T>
  std::vector<T> download(const device::Buffer& buffer) {
    std::vector<T> values(static_cast<size_t>(buffer.bytes()) / sizeof(T));
    device_->download(values.data(), buffer.data(), buffer.bytes());
    return values;
  }

 private:
  device::cuda::CudaDevice& cuda_device() { return dynamic_cast<device::cuda::CudaDevice&>(*device_); }

  std::unique_ptr<device::Device> device_;
  device::Buffer memory_;
  Scratch scratch_;
  Context context_;
};

// A weight whose data and scales lie on the card, `arranged` as models have it or as it is stored.
class CardWeight {
 public:
  CardWeight(DenseCard& card, const Weight& weight, std::span<const std::byte> data,
             std::span<const std::byte> scales = {}, bool arranged = true)
      : data_(card.upload(data)), scales_(upload_whole_words(card, scales)), weight_(weight) {
    weight_.data = data_.data();
    weight_.scales = scales.empty() ? nullptr : scales_.data();
    if (!arranged || !can_arrange(weight_)) return;
    arrange(card.context(), weight_);
    weight_.lane_order = true;
  }
  const Weight& weight() const { return weight_; }

 private:
  // Kernels read words of scales, as Weight says.
  static device::Buffer upload_whole_words(DenseCard& card, std::span<const std::byte> scales) {
    std::vector<std::byte> words(scales.begin(), scales.end());
    words.resize((words.size() + 3) / 4 * 4);
    return card.upload(std::span<const std::byte>(words));
  }

  device::Buffer data_, scales_;
  Weight weight_;
};

}  // namespace tandem::ops::cuda
