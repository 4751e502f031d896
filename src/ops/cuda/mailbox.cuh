// Values that the blocks of a cluster send each other, and no more: a block goes on when what it expects is there,
// which takes about half as long as a barrier of the cluster behind ordinary stores.
#pragma once

#include "ops/cuda/byte_barrier.cuh"

namespace tandem::ops::cuda {

// In shared memory. One thread opens it before the cluster's first barrier; what it is to receive goes elsewhere in
// shared memory, at the same place in every block. The cluster has two blocks at least.
struct Mailbox {
  uint64_t barrier;

  __device__ void open(int bytes) {
    set_up_barrier(shared_address(&barrier), 1);
    expect_bytes(shared_address(&barrier), bytes);
    announce_barriers();
  }
  // Into `to` of the cluster's block `rank`, which has opened this mailbox of its own.
  __device__ void send(float* to, int rank, float value) {
    asm volatile(
        "{.reg .b32 data, barrier; mapa.shared::cluster.u32 data, %0, %2; mapa.shared::cluster.u32 barrier, %1, %2; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [data], %3, [barrier];}" ::"r"(shared_address(to)),
        "r"(shared_address(&barrier)), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
  }
  // Until all bytes are there.
  __device__ void receive() { await_bytes_of_cluster(shared_address(&barrier)); }
};

}  // namespace tandem::ops::cuda
