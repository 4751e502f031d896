// Groups of asynchronous copies to shared memory (cp.async): what a thread asked for since the last group, and waiting.
#pragma once

namespace tandem::ops::cuda {

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending groups of this thread's copies are under way.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem::ops::cuda
