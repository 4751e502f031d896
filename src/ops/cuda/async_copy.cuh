// Asynchronous copies to shared memory (cp.async), and groups of them: what a thread asked for since the last group,
// and waiting.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Four bytes, by way of the first-level cache.
__device__ __forceinline__ void copy_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// Copies the first `bytes` of 16, and writes zeros behind them.
__device__ __forceinline__ void copy_16_of(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending groups of this thread's copies are under way.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem::ops::cuda
