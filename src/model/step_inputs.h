// What a step reads that differs from step to step: runs, token ids, rows of n-gram tables. The host writes it into
// shared memory; one copy brings it to the device, another one the rows, which come later than the rest.
#pragma once

#include <cstdint>
#include <span>

#include "device/buffer.h"
#include "ops/ops.h"

namespace tandem::model {

class StepInputs {
 public:
  // `ngram_floats`: what the n-gram memories read for each column.
  StepInputs(device::Device& device, int64_t ngram_floats) : device_(device), ngram_floats_(ngram_floats) {}

  // Room for so many columns; addresses change where there was less.
  void reserve(int64_t columns);

  // On the host, to be written before upload().
  std::span<ops::Run> runs(int64_t count) { return {at<ops::Run>(host(), 0), static_cast<size_t>(count)}; }
  int32_t* ids() { return at<int32_t>(host(), ids_); }
  int32_t* faults() { return at<int32_t>(host(), faults_); }
  float* ngram() { return at<float>(host(), ngram_); }

  // Brings the runs, ids and faults (all -1) of `columns` columns to the device.
  void upload(int64_t columns);
  // Brings their n-gram rows.
  void upload_ngram(int64_t columns);

  // In the device's memory.
  const ops::Run* device_runs() { return at<ops::Run>(memory_.data(), 0); }
  const int32_t* device_ids() { return at<int32_t>(memory_.data(), ids_); }
  int32_t* device_faults() { return at<int32_t>(memory_.data(), faults_); }
  const float* device_ngram() { return at<float>(memory_.data(), ngram_); }

 private:
  template <typename T>
  static T* at(std::byte* memory, int64_t offset) {
    return reinterpret_cast<T*>(memory + offset);
  }
  std::byte* host() { return device_.is_host() ? memory_.data() : staging_.data(); }

  device::Device& device_;
  int64_t ngram_floats_;
  int64_t columns_ = 0;
  int64_t ids_ = 0, faults_ = 0, ngram_ = 0;  // byte offsets
  device::Buffer staging_;                    // unused on the host, whose kernels read what it wrote
  device::Buffer memory_;
};

}  // namespace tandem::model
