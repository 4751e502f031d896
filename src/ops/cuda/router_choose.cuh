// The choice of a token's experts from their logits, by one warp.
#pragma once

#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

// Orders as the numbers do; 0 is a NaN.
__device__ inline uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0F);  // one zero
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float of_order_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

// How many of a warp's keys come before the lane's own: larger ones, and equal ones of lower lanes.
__device__ inline int rank_in_warp(uint32_t key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int rank = 0;
#pragma unroll 8
  for (int distance = 1; distance < 32; ++distance) {
    const int other = (lane + distance) % 32;
    const uint32_t others = __shfl_sync(kWholeWarp, key, other);
    rank += others > key || (others == key && other < lane) ? 1 : 0;
  }
  return rank;
}

// Of the `top_k` largest keys that a warp holds, lane l those of experts l, l + 32, …: that of rank `lane`, and its id.
// The lower id goes before an equal.
struct Choice {
  uint32_t key;
  int32_t id;
};
// A warp's, in shared memory.
struct ChoiceMemory {
  Choice candidates[32];
  Choice ranked[32];
  float exponents[32];
};
// One after the other.
template <int kEach>
__device__ inline Choice choose_in_rounds(uint32_t (&keys)[kEach], int top_k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Choice mine = {0, 0};
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = keys[0];
    int place = 0;
#pragma unroll
    for (int i = 1; i < kEach; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        place = i;
      }
    }
    const uint32_t most = __reduce_max_sync(kWholeWarp, best);
    const unsigned id = best == most ? static_cast<unsigned>(place * 32 + lane) : 0xffffffffU;
    const unsigned chosen = __reduce_min_sync(kWholeWarp, id);
    if (lane == k) mine = {most, static_cast<int32_t>(chosen)};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (id == chosen && i == place) keys[i] = 0;
    }
  }
  return mine;
}
// All at once. At least top_k keys are not below the top_k-th largest of the lanes' largest ones, and hardly more:
// where they are no more than lanes, each lane takes one and finds its rank.
template <int kEach>
__device__ inline Choice choose(uint32_t (&keys)[kEach], int top_k, ChoiceMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t largest = keys[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) largest = max(largest, keys[i]);
  const unsigned last = __ballot_sync(kWholeWarp, rank_in_warp(largest) == top_k - 1);
  const uint32_t least = __shfl_sync(kWholeWarp, largest, __ffs(static_cast<int>(last)) - 1);
  int count = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const unsigned takers = __ballot_sync(kWholeWarp, keys[i] >= least);
    const int place = count + __popc(takers & ((1U << lane) - 1));
    if (keys[i] >= least && place < 32) memory.candidates[place] = {keys[i], i * 32 + lane};  // by ascending id
    count += __popc(takers);
  }
  if (least == 0 || count > 32) return choose_in_rounds(keys, top_k);
  __syncwarp();
  const Choice mine = lane < count ? memory.candidates[lane] : Choice{0, 0};
  memory.ranked[rank_in_warp(mine.key)] = mine;
  __syncwarp();
  return memory.ranked[lane];
}

// The expert of rank `lane` of a token, and its weight: whatever in lanes from top_k on. The softmax's sum over all
// experts falls out of the weights, so that only the chosen logits become exponents. At most 32 * kEach experts.
struct Chosen {
  int32_t id;
  float weight;
};
__device__ inline Chosen weigh(const Choice& mine, int top_k, float* exponents) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float logit = of_order_key(mine.key);
  exponents[lane] = exp_exact(logit - __shfl_sync(kWholeWarp, logit, 0));
  __syncwarp();
  float kept = 0;
  for (int k = 0; k < top_k; ++k) kept += exponents[k];
  return {mine.id, exponents[lane] / kept};
}
template <int kEach>
__device__ inline Chosen choose_for_token(const float* logits, int experts, int top_k, ChoiceMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t keys[kEach];  // 0: no expert
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = i * 32 + lane < experts ? order_key(logits[i * 32 + lane]) : 0;
  const Choice mine = choose(keys, top_k, memory);
  return weigh(mine, top_k, memory.exponents);
}

// The same by all `warps` warps of a block, which takes half as long. At most 512 experts. False, and nothing was
// chosen, where the experts are too few or too alike; else all find the choice in of_warp.ranked behind the next
// barrier.
inline constexpr int kChoiceGroups = 16;  // of 32 experts
struct BlockChoiceMemory {
  alignas(16) uint32_t largest[kChoiceGroups];
  int count;
  ChoiceMemory of_warp;
};
template <int kLeastWarps>
__device__ inline bool choose_by_block(const float* logits, int experts, int top_k, BlockChoiceMemory& memory,
                                       int warps) {
  constexpr int kEach = kChoiceGroups / kLeastWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own_warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = own_warp + i * warps;
    if (group >= kChoiceGroups) break;
    keys[i] = group * 32 + lane < experts ? order_key(logits[group * 32 + lane]) : 0;
    const uint32_t largest = __reduce_max_sync(kWholeWarp, keys[i]);
    if (lane == 0) memory.largest[group] = largest;
  }
  if (threadIdx.x == 0) memory.count = 0;
  __syncthreads();
  // At least top_k keys are not below the top_k-th largest of the groups' largest ones.
  const uint32_t own = memory.largest[lane % kChoiceGroups];
  int rank = lane < kChoiceGroups ? 0 : kChoiceGroups;
#pragma unroll
  for (int other = 0; other < kChoiceGroups; ++other) {
    const uint32_t key = memory.largest[other];
    rank += key > own || (key == own && other < lane) ? 1 : 0;
  }
  const unsigned last = __ballot_sync(kWholeWarp, rank == top_k - 1);
  const uint32_t least = last == 0 ? 0 : __shfl_sync(kWholeWarp, own, __ffs(static_cast<int>(last)) - 1);
  if (least == 0) return false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = own_warp + i * warps;
    if (group >= kChoiceGroups) break;
    const unsigned takers = __ballot_sync(kWholeWarp, keys[i] >= least);
    if (takers == 0) continue;
    int place = lane == 0 ? atomicAdd(&memory.count, __popc(takers)) : 0;
    place = __shfl_sync(kWholeWarp, place, 0) + __popc(takers & ((1U << lane) - 1));
    if (keys[i] >= least && place < 32) memory.of_warp.candidates[place] = {keys[i], group * 32 + lane};
  }
  __syncthreads();
  const int count = memory.count;
  if (count > 32) return false;
  // A warp ranks a candidate, its lanes each by comparison with another one.
  const Choice other = lane < count ? memory.of_warp.candidates[lane] : Choice{0, 0};
#pragma unroll 1
  for (int i = own_warp; i < count; i += warps) {
    const Choice mine = memory.of_warp.candidates[i];
    const int before =
        __popc(__ballot_sync(kWholeWarp, other.key > mine.key || (other.key == mine.key && other.id < mine.id)));
    if (lane == 0) memory.of_warp.ranked[before] = mine;
  }
  return true;
}

}  // namespace tandem::ops::cuda
