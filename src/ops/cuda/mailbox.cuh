// Values that the blocks of a cluster send each other, and no more: a block goes on when what it expects is there,
// which takes about half as long as a barrier of the cluster behind ordinary stores.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

// In shared memory. One thread opens it before the cluster's first barrier; what it is to receive goes elsewhere in
// shared memory, at the same place in every block. The cluster has two blocks at least.
struct Mailbox {
  uint64_t barrier;

  __device__ void open(int bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&barrier)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&barrier)), "r"(bytes)
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // Into `to` of the cluster's block `rank`, which has opened this mailbox of its own.
  __device__ void send(float* to, int rank, float value) {
    asm volatile(
        "{.reg .b32 data, barrier; mapa.shared::cluster.u32 data, %0, %2; mapa.shared::cluster.u32 barrier, %1, %2; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [data], %3, [barrier];}" ::"r"(address(to)),
        "r"(address(&barrier)), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
  }
  // Until all bytes are there.
  __device__ void receive() {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0; "
        "@!done bra again;}" ::"r"(address(&barrier))
        : "memory");
  }

 private:
  __device__ static uint32_t address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
};

}  // namespace tandem::ops::cuda
