// Copies of whole runs of bytes to shared memory (cp.async.bulk): one thread asks for them, and they pass by the
// registers and by the queue of ordinary loads, which go on beside them.
#pragma once

#include "ops/cuda/byte_barrier.cuh"

namespace tandem::ops::cuda {

// A multiple of 16 bytes between places at multiples of 16, of which a barrier learns.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// In shared memory: tells when all bytes that were asked for have come. Used once.
struct Arrival {
  uint64_t barrier;

  // By the thread that asks; behind its last one come announce_barriers() and a barrier of the warp or of the block.
  __device__ void open() { set_up_barrier(shared_address(&barrier), 1); }
  // How many bytes come in all, before they are asked for.
  __device__ void expect(int bytes) { expect_bytes(shared_address(&barrier), bytes); }
  // Before memory is asked for that ordinary instructions wrote or read, which a barrier has ended.
  __device__ static void take_over() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  __device__ void ask(void* to, const void* from, int bytes) {
    copy_bulk(shared_address(to), from, bytes, shared_address(&barrier));
  }
  __device__ void await() { await_bytes(shared_address(&barrier)); }
};

}  // namespace tandem::ops::cuda
