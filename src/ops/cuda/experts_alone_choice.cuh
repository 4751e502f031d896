// The choice of a single column's experts by all workers, one of whom has each expert (experts_alone.cu).
#pragma once

#include "ops/cuda/experts_alone.cuh"

namespace tandem::ops::cuda::expert {

// In shared memory, until the experts are known.
struct Ranking {
  alignas(16) uint32_t keys[kMostFewExperts];
  alignas(16) uint32_t largest[kWorkers];  // of a warp's
};

// What stands where there are less numbers than experts are wanted: number 0. By the first warp.
__device__ inline void choose_none(AloneShared& block, const ExpertScalars& own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  block.ranked[lane] = {0, 0};
#pragma unroll
  for (int i = 0; i < kScalars; ++i) {
    const float first = __shfl_sync(kWholeWarp, own.values[i], 0);
    if (lane < kMostAloneTopK) block.scalars[lane][i] = first;
  }
}

// The chosen experts and their scalars into the block's, from the keys of all (order_key(); 0: none), each by the
// thread of its number. They stand behind the next barrier. For nothing by a single warp: a rehearsal.
__noinline__ __device__ void rank_experts(int top_k, AloneShared& block, Ranking& all, uint32_t key, ExpertScalars own,
                                          bool rehearsal) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t most = __reduce_max_sync(kWholeWarp, key);
  if (!rehearsal) {
    all.keys[threadIdx.x] = key;
    if (lane == 0) all.largest[warp] = most;
    meet_workers();
  }
  // At least top_k keys are not below the top_k-th largest of the warps' largest ones: a few more than are wanted.
  const uint32_t of_warp = all.largest[lane % kWorkers];
  int before = lane < kWorkers ? 0 : kWorkers;
#pragma unroll
  for (int other = 0; other < kWorkers; ++other) {
    const uint32_t others = all.largest[other];
    before += others > of_warp || (others == of_warp && other < lane) ? 1 : 0;
  }
  const unsigned last = __ballot_sync(kWholeWarp, before == top_k - 1);
  const uint32_t least = max(__shfl_sync(kWholeWarp, of_warp, __ffs(static_cast<int>(last)) - 1), 1U);
  uint4 fours[kMostFewExperts / 128];
#pragma unroll
  for (int i = 0; i < kMostFewExperts / 128; ++i) {
    fours[i] = *reinterpret_cast<const uint4*>(all.keys + i * 128 + 4 * lane);
  }
  // A warp finds the ranks of its own.
  unsigned takers = rehearsal ? 1 : __ballot_sync(kWholeWarp, key >= least);
#pragma unroll 1
  for (; takers != 0; takers &= takers - 1) {
    const int from = __ffs(static_cast<int>(takers)) - 1;
    const uint32_t mine = __shfl_sync(kWholeWarp, key, from);
    const int id = warp * 32 + from;
    int larger = 0;
#pragma unroll
    for (int i = 0; i < kMostFewExperts / 128; ++i) {
      const uint32_t four[] = {fours[i].x, fours[i].y, fours[i].z, fours[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        larger += four[j] > mine || (four[j] == mine && i * 128 + 4 * lane + j < id) ? 1 : 0;
      }
    }
    const int rank = __reduce_add_sync(kWholeWarp, larger);
    if (rehearsal || rank >= top_k || lane != from) continue;
    block.ranked[rank] = {mine, id};
#pragma unroll
    for (int i = 0; i < kScalars; ++i) block.scalars[rank][i] = own.values[i];
  }
}

}  // namespace tandem::ops::cuda::expert
