// A card that notes when its recordings end, to measure what the host adds between steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace tandem::device::cuda {

class WatchedDevice final : public CudaDevice {
 public:
  enum class Watch {
    kNothing,
    kEnds,       // the end of each run of a recording
    kDurations,  // each recording runs twice; the second waits on the card for nothing but the first
  };

  explicit WatchedDevice(const Card& card) : CudaDevice(card) {}

  std::unique_ptr<Recording> record(const std::function<void()>& work) override;

  // What runs of recordings are noted for from here on; forgets what was noted.
  void watch(Watch watch);
  // Microseconds from the end of each step to that of the next, or of each step's second runs together. A step has run
  // so many recordings. Waits for the device.
  std::vector<double> noted_us(int64_t recordings = 1);

 private:
  class Watched;
  class Events;
  std::shared_ptr<Events> events_;
  Watch watch_ = Watch::kNothing;
};

}  // namespace tandem::device::cuda
