#include "device/cuda/watched_device.h"

#include <numeric>

#include "device/cuda/check.h"

namespace tandem::device::cuda {

// Points in time on the card, in order.
class WatchedDevice::Events {
 public:
  explicit Events(cudaStream_t stream) : stream_(stream) {}
  ~Events() {
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  void note() {
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      TANDEM_CUDA_CHECK(cudaEventCreate(&event));
      events_.push_back(event);
    }
    TANDEM_CUDA_CHECK(cudaEventRecord(events_[used_++], stream_));
  }
  void forget() { used_ = 0; }
  // From the event before to each `step`th, beginning with the second.
  std::vector<double> between(size_t step) const {
    std::vector<double> us;
    for (size_t i = 1; i < used_; i += step) {
      float ms = 0;
      TANDEM_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]));
      us.push_back(1e3 * static_cast<double>(ms));
    }
    return us;
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  size_t used_ = 0;
};

class WatchedDevice::Watched final : public Recording {
 public:
  Watched(WatchedDevice& device, std::unique_ptr<Recording> recording)
      : device_(device), recording_(std::move(recording)) {}

  void run() override {
    recording_->run();
    if (device_.watch_ == Watch::kNothing) return;
    device_.events_->note();
    if (device_.watch_ == Watch::kEnds) return;
    recording_->run();
    device_.events_->note();
  }

 private:
  WatchedDevice& device_;
  std::unique_ptr<Recording> recording_;
};

std::unique_ptr<Recording> WatchedDevice::record(const std::function<void()>& work) {
  return std::make_unique<Watched>(*this, CudaDevice::record(work));
}

void WatchedDevice::watch(Watch watch) {
  if (!events_) events_ = std::make_shared<Events>(stream());
  finish();
  events_->forget();
  watch_ = watch;
}

std::vector<double> WatchedDevice::noted_us(int64_t recordings) {
  finish();
  std::vector<double> steps;
  if (!events_) return steps;
  const bool durations = watch_ == Watch::kDurations;
  const std::vector<double> each = events_->between(durations ? 2 : 1);
  // The first end is that of the first recording of a step, not of the step.
  const auto count = static_cast<size_t>(recordings);
  for (size_t at = durations ? 0 : count - 1; at + count <= each.size(); at += count) {
    steps.push_back(std::accumulate(each.begin() + static_cast<ptrdiff_t>(at),
                                    each.begin() + static_cast<ptrdiff_t>(at + count), 0.0));
  }
  return steps;
}

}  // namespace tandem::device::cuda
