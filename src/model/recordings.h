// Steps that a device keeps: recorded once for each shape, then replayed.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/device.h"

namespace tandem::model {

// What a step is made for. Steps of equal shape and reach are one recording.
struct StepShape {
  int64_t runs = 1;
  int64_t each = 1;
  int64_t rows = 1;  // of logits, of each run
  int64_t reach = 0;
  bool advance = true;
  bool keep_logits = false;
  std::byte* pages = nullptr;  // of the pool whose sequences run
  auto operator<=>(const StepShape&) const = default;
  int64_t columns() const { return runs * each; }
};

// A step in two pieces, with something between that the second needs: rows of n-gram tables, which may still be on
// their way from the disk while the device computes the first.
struct StepPieces {
  std::function<void()> first;
  std::function<void()> second;
  std::function<void()> between;  // on the host, never recorded; empty: nothing is

  void run() const;
};

// For one thread.
class Recordings {
 public:
  explicit Recordings(device::Device& device) : device_(device) {}

  // What was recorded is of no use any more: addresses changed. The device is through with it.
  void clear() { recorded_.clear(); }

  // Runs a step: the first of its shape directly, for it may still set something up; from the second on by a recording,
  // as far as there is memory for it. `logits` is what the pieces set, or set when they were recorded.
  void run(const StepShape& shape, const StepPieces& pieces, const float*& logits);

 private:
  struct Recorded {
    std::vector<std::unique_ptr<device::Recording>> pieces;
    const float* logits = nullptr;
    bool refused = false;  // there was no memory for it
  };
  // Empty where the device does not record, or has no memory for it.
  std::vector<std::unique_ptr<device::Recording>> record(const StepPieces& pieces);

  device::Device& device_;
  std::map<StepShape, Recorded> recorded_;
};

}  // namespace tandem::model
