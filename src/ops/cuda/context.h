// What every CUDA operation gets: where to launch, scratch memory, and what the device can do.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <stdexcept>

#include "base/error.h"
#include "base/units.h"
#include "device/cuda/check.h"

namespace tandem::ops::cuda {

// Scratch memory of one operation, in one block that the plan made large enough. Operations run in order, so each may
// use it from the beginning.
class Scratch {
 public:
  Scratch() = default;
  Scratch(std::byte* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {}
  // Counts what operations take and gives out no memory.
  static Scratch planning() { return {}; }
  bool plans() const { return memory_ == nullptr; }
  int64_t most() const { return most_; }  // bytes that one operation took at most

  // `count` values at a multiple of 256 bytes, valid until the enclosing Scope ends.
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += static_cast<int64_t>(base::round_up(static_cast<uint64_t>(count) * sizeof(T), 256));
    if (used_ > most_) most_ = used_;
    if (memory_ == nullptr) return nullptr;
    if (used_ > bytes_)
      base::internal_error("cuda", "an operation wants {} bytes of scratch, {} were planned", used_, bytes_);
    return reinterpret_cast<T*>(memory_ + at);
  }

  class Scope {
   public:
    explicit Scope(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Scope() { scratch_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    int64_t used_;
  };

 private:
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
  int64_t most_ = 0;
};

struct Context {
  cudaStream_t stream = nullptr;
  Scratch& scratch;
  int multiprocessors = 132;
  int capability = 90;        // 10 * major + minor
  bool round_inputs = true;   // the inputs of matrix products are rounded to BF16, else nothing is cast
  bool bf16_experts = false;  // experts of many columns in BF16 products, else in the canonical arithmetic
  bool tensor_cores = true;   // off: the portable kernels alone (tests, selftest)

  // An operation takes its scratch, then asks this before it launches anything.
  bool plans() const { return scratch.plans(); }
};

// After each launch.
#define TANDEM_CUDA_LAUNCHED(kernel) ::tandem::device::cuda::check_call(cudaGetLastError(), kernel, __FILE__, __LINE__)

}  // namespace tandem::ops::cuda
