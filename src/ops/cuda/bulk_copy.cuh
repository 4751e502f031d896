// Copies of whole runs of bytes to shared memory (cp.async.bulk): one thread asks for them, and they pass by the
// registers and by the queue of ordinary loads, which go on beside them.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

// In shared memory: tells when all bytes that were asked for have come. Used once.
struct Arrival {
  uint64_t barrier;

  // By the thread that asks; what follows until others await it is a barrier of the warp or of the block.
  __device__ void open() { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&barrier)) : "memory"); }
  // Once, behind the last of a thread's open().
  __device__ static void opened() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  // How many bytes come in all, before they are asked for.
  __device__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&barrier)), "r"(bytes)
                 : "memory");
  }
  // Before memory is asked for that ordinary instructions wrote or read, which a barrier has ended.
  __device__ static void take_over() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  // A multiple of 16 bytes between places at multiples of 16.
  __device__ void ask(void* to, const void* from, int bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(&barrier))
        : "memory");
  }
  __device__ void await() {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], 0; "
        "@!done bra again;}" ::"r"(address(&barrier))
        : "memory");
  }

 private:
  __device__ static uint32_t address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace tandem::ops::cuda
