// A card for the tests and benches of state, norms and gates: arrays with canaries behind them, and columns whose slots
// lie on the card and, with the same contents, on the host.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "device/cards.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/context.h"
#include "ops/ops.h"
#include "tests/ops/random_data.h"

namespace tandem::ops::cuda {

inline constexpr int64_t kScratchBytes = int64_t{1} << 30;

struct StateCard {
  std::unique_ptr<device::Device> device = device::open_card(0);
  device::Buffer memory{*device, kScratchBytes};
  Scratch scratch{memory.data(), kScratchBytes};
  Context context;

  explicit StateCard(bool round_inputs = true)
      : context{.stream = card().stream(),
                .scratch = scratch,
                .multiprocessors = card().card().multiprocessors,
                .capability = 10 * card().card().capability_major + card().card().capability_minor,
                .round_inputs = round_inputs} {
    device->bind_thread();
  }
  device::cuda::CudaDevice& card() { return static_cast<device::cuda::CudaDevice&>(*device); }
};

// Values on the card, and behind them some that nothing may touch.
template <typename T>
class Array {
 public:
  Array(StateCard& card, const std::vector<T>& values)
      : card_(card), count_(static_cast<int64_t>(values.size())), buffer_(*card.device, bytes() + kCanaryBytes) {
    std::vector<std::byte> all(static_cast<size_t>(bytes() + kCanaryBytes), std::byte{0xa5});
    std::memcpy(all.data(), values.data(), static_cast<size_t>(bytes()));
    card.device->upload(buffer_.data(), all.data(), bytes() + kCanaryBytes);
  }
  T* data() { return buffer_.as<T>(); }
  void set(const std::vector<T>& values) { card_.device->upload(buffer_.data(), values.data(), bytes()); }
  // Waits; a canary that changed fails the test.
  std::vector<T> get() {
    std::vector<std::byte> all(static_cast<size_t>(bytes() + kCanaryBytes));
    card_.device->download(all.data(), buffer_.data(), bytes() + kCanaryBytes);
    for (int64_t i = 0; i < kCanaryBytes; ++i) {
      if (all[static_cast<size_t>(bytes() + i)] != std::byte{0xa5}) {
        ADD_FAILURE() << "byte " << i << " behind an array of " << bytes() << " was written";
        break;
      }
    }
    std::vector<T> values(static_cast<size_t>(count_));
    std::memcpy(values.data(), all.data(), static_cast<size_t>(bytes()));
    return values;
  }

 private:
  static constexpr int64_t kCanaryBytes = 256;
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(T)); }

  StateCard& card_;
  int64_t count_;
  device::Buffer buffer_;
};

// A matrix on the host, and the same on the card.
struct BothWeights {
  BothWeights(StateCard& card, std::vector<uint16_t> values, int64_t rows, int64_t inputs)
      : bits(std::move(values)), array(card, bits) {
    host = {.data = bits.data(), .format = WeightFormat::kBF16, .rows = rows, .inputs = inputs};
    device = host;
    device.data = array.data();
  }
  std::vector<uint16_t> bits;
  Array<uint16_t> array;
  Weight host, device;
};

struct RunShape {
  int64_t position = 0;
  int64_t tokens = 1;
};

// Columns with slots of `slot_floats` floats each.
class BothColumns {
 public:
  BothColumns(StateCard& card, RandomData& random, const std::vector<RunShape>& shapes, int64_t each,
              int64_t slot_floats, bool advance = true)
      : each_(each), advance_(advance) {
    for (const RunShape& shape : shapes) {
      host_slots.push_back(random.normal(slot_floats));
      slots.push_back(std::make_unique<Array<float>>(card, host_slots.back()));
      reach_ = std::max(reach_, shape.position + shape.tokens);
      runs_.push_back({.position = shape.position, .tokens = shape.tokens});
    }
    host_runs_ = runs_;
    for (size_t r = 0; r < runs_.size(); ++r) {
      runs_[r].slot = reinterpret_cast<std::byte*>(slots[r]->data());
      host_runs_[r].slot = reinterpret_cast<std::byte*>(host_slots[r].data());
    }
    table_ = std::make_unique<Array<Run>>(card, runs_);
  }
  Columns device() const { return {runs_, table_->data(), each_, reach_, advance_}; }
  Columns host() const { return {host_runs_, host_runs_.data(), each_, reach_, advance_}; }
  const std::vector<Run>& runs() const { return runs_; }
  int64_t count() const { return static_cast<int64_t>(runs_.size()) * each_; }
  // Whether column c is a token of its run.
  bool holds(int64_t c) const { return c % each_ < runs_[static_cast<size_t>(c / each_)].tokens; }

  std::vector<std::vector<float>> host_slots;
  std::vector<std::unique_ptr<Array<float>>> slots;

 private:
  int64_t each_;
  int64_t reach_ = 0;
  bool advance_;
  std::vector<Run> runs_, host_runs_;
  std::unique_ptr<Array<Run>> table_;
};

}  // namespace tandem::ops::cuda
