// Sorting the (token, k) pairs by expert, so that each record is read once for all its columns. Positions follow from
// counts alone, so the order does not depend on how threads run.
#include <algorithm>

#include "ops/cuda/experts_parts.cuh"

namespace tandem::ops::cuda::expert {

namespace {

// The experts that have columns, ascending; one block.
__global__ void __launch_bounds__(kMostFewPairs) group_few(const int32_t* ids, int pairs, int experts, Grouping to) {
  let_next_start();
  __shared__ int32_t id[kMostFewPairs];
  __shared__ int32_t is_first[kMostFewPairs];
  const int p = static_cast<int>(threadIdx.x);
  const int32_t own = p < pairs ? ids[p] : -1;
  const bool valid = own >= 0 && own < experts;
  id[p] = valid ? own : INT32_MAX;
  __syncthreads();
  int below = 0;
  int same = 0;
  int before = 0;
  for (int q = 0; q < pairs; ++q) {
    below += id[q] < id[p];
    same += id[q] == id[p];
    before += id[q] == id[p] && q < p;
  }
  is_first[p] = valid && before == 0;
  __syncthreads();
  int rank = 0;
  int groups = 0;
  for (int q = 0; q < pairs; ++q) {
    rank += is_first[q] != 0 && id[q] < id[p];
    groups += is_first[q];
  }
  if (is_first[p] != 0) to.groups[rank] = {own, below, same};
  if (p < pairs) {
    to.order[below + before] = valid ? p : -1;
    to.slot_of[p] = valid ? below + before : -1;
  }
  for (int g = groups + p; g < to.bound; g += kMostFewPairs) to.groups[g] = {0, 0, 0};
}

// All experts, one a warp; behind them the pairs of no expert. firsts[e] is the first slot of expert e.
__global__ void __launch_bounds__(256)
    sort_many(const int32_t* ids, int pairs, int experts, Grouping to, int32_t* firsts) {
  let_next_start();
  const int expert = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (expert > experts) return;
  const auto bucket = [&](int32_t id) { return id >= 0 && id < experts ? id : experts; };
  const auto bucket_at = [&](int p) { return p < pairs ? bucket(ids[p]) : INT32_MAX; };
  int below = 0;
  int same = 0;
  const auto count = [&](int own) {
    below += own < expert;
    same += own == expert;
  };
  const int fours = reinterpret_cast<uintptr_t>(ids) % 16 == 0 ? pairs / 4 : 0;
#pragma unroll 4
  for (int i = lane; i < fours; i += 32) {
    const int4 four = reinterpret_cast<const int4*>(ids)[i];
    count(bucket(four.x));
    count(bucket(four.y));
    count(bucket(four.z));
    count(bucket(four.w));
  }
  for (int p = 4 * fours + lane; p < pairs; p += 32) count(bucket(ids[p]));
  below = __reduce_add_sync(kWholeWarp, below);
  same = __reduce_add_sync(kWholeWarp, same);
  if (lane == 0) firsts[expert] = below;
  int next = below;
  constexpr int kTogether = 8;  // loads
  for (int p = lane; next < below + same; p += 32 * kTogether) {
    bool own[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) own[i] = bucket_at(p + 32 * i) == expert;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const unsigned all = __ballot_sync(kWholeWarp, own[i]);
      if (own[i]) {
        const int slot = next + __popc(all & ((1U << lane) - 1));
        to.order[slot] = expert < experts ? p + 32 * i : -1;
        to.slot_of[p + 32 * i] = expert < experts ? slot : -1;
      }
      next += __popc(all);
    }
  }
}

// Groups of up to kMostColumnsOfGroup slots of one expert; one block.
__global__ void __launch_bounds__(1024) list_groups(const int32_t* firsts, int experts, Grouping to) {
  follow();
  __shared__ int32_t sums[32];
  __shared__ int32_t all;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) all = 0;
  for (int begin = 0; begin < experts; begin += 1024) {
    __syncthreads();
    const int expert = begin + thread;
    const int first = expert < experts ? firsts[expert] : 0;
    const int count = expert < experts ? firsts[expert + 1] - first : 0;
    const int groups = (count + kMostColumnsOfGroup - 1) / kMostColumnsOfGroup;
    const int up_to = sum_up_to_lane(groups);  // of the warp's experts so far
    if (thread % 32 == 31) sums[thread / 32] = up_to;
    __syncthreads();
    int at = all + up_to - groups;
    for (int w = 0; w < thread / 32; ++w) at += sums[w];
    for (int g = 0; g < groups; ++g) {
      to.groups[at + g] = {expert, first + g * kMostColumnsOfGroup,
                           min(kMostColumnsOfGroup, count - g * kMostColumnsOfGroup)};
    }
    __syncthreads();
    if (thread == 1023) all = at + groups;
  }
  __syncthreads();
  for (int g = all + thread; g < to.bound; g += 1024) to.groups[g] = {0, 0, 0};
}

}  // namespace

int64_t most_groups(int64_t pairs, int64_t experts) {
  if (pairs <= kMostFewPairs) return std::min(pairs, experts);
  return std::min(experts, pairs) + pairs / kMostColumnsOfGroup;
}

void group_pairs(const Context& context, const int32_t* ids, int64_t pairs, int64_t experts, const Grouping& to) {
  if (pairs <= kMostFewPairs) {
    group_few<<<1, kMostFewPairs, 0, context.stream>>>(ids, static_cast<int>(pairs), static_cast<int>(experts), to);
    TANDEM_CUDA_LAUNCHED("group_few");
    return;
  }
  const auto count = static_cast<int>(experts);
  sort_many<<<static_cast<unsigned>(count / 8 + 1), 256, 0, context.stream>>>(ids, static_cast<int>(pairs), count, to,
                                                                              to.firsts);
  TANDEM_CUDA_LAUNCHED("sort_many");
  launch_following(context, list_groups, dim3(1), 1024, 0, to.firsts, count, to);
}

}  // namespace tandem::ops::cuda::expert
