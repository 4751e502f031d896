// Barriers in shared memory that tell when bytes have come which were sent or copied asynchronously (mbarrier).
#pragma once

#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

// By one thread; others may use it behind announce_barriers() and a barrier of those who are to see it.
__device__ inline void set_up_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Once, behind the last of a thread's barriers.
__device__ inline void announce_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// An arrival, and how many bytes come in all.
__device__ inline void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until all of the barrier's first turn are there, from any block of the cluster.
__device__ inline void await_bytes_of_cluster(uint32_t barrier) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0; "
      "@!done bra again;}" ::"r"(barrier)
      : "memory");
}
// The same of what this block asked for.
__device__ inline void await_bytes(uint32_t barrier) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], 0; "
      "@!done bra again;}" ::"r"(barrier)
      : "memory");
}

}  // namespace tandem::ops::cuda
