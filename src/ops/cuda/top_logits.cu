// The largest logits of a row. Groups of 32 tokens are told by the best logit of each: the k best of all tokens lie in
// the k best groups, for a token outside them has k better ones, the best of those groups. So a second kernel, a block
// a row, chooses groups by their best, then tokens from these groups, and puts them in order.
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/sampling.h"

namespace tandem::ops::cuda {

namespace {

constexpr int kKept = static_cast<int>(Ops::kTopLogits);
constexpr int kMostTokens = 1 << 20;

// Logits as unsigned numbers in the same order. What may not be chosen is kNoKey, below all; a logit that is not finite
// makes its group kFaultKey, above all.
constexpr uint32_t kNoKey = 0;
constexpr uint32_t kFaultKey = 0xffffffffU;

__device__ inline uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0F);  // there is one zero
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float logit_of(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffU : ~key);
}

struct Row {
  const float* logits;
  const uint32_t* allowed;  // a word a group; null: all
  int64_t tokens;

  __device__ bool allows(int64_t token) const {
    return token < tokens && (allowed == nullptr || (allowed[token / 32] >> (token % 32) & 1U) != 0);
  }
};

__device__ inline Row row_of(const Ops::TopLogits& args, int64_t row) {
  const int64_t words = (args.tokens + 31) / 32;
  return {args.logits + row * args.vocab, args.allowed == nullptr ? nullptr : args.allowed + row * words, args.tokens};
}

constexpr int kPartThreads = 256;
constexpr int kGroupsOfWarp = 8;
constexpr int kGroupsOfPart = kPartThreads / 32 * kGroupsOfWarp;

// Blocks (parts, rows); a warp takes group after group.
__global__ void __launch_bounds__(kPartThreads) best_of_groups_kernel(Ops::TopLogits args, int groups, uint32_t* keys) {
  follow();
  const Row row = row_of(args, blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * kGroupsOfPart + static_cast<int>(threadIdx.x) / 32 * kGroupsOfWarp;
  float logits[kGroupsOfWarp];
#pragma unroll
  for (int g = 0; g < kGroupsOfWarp; ++g) {
    const int64_t token = int64_t{first + g} * 32 + lane;
    logits[g] = token < row.tokens ? row.logits[token] : 0.0F;
  }
  uint32_t mine = kNoKey;  // of group first + lane
#pragma unroll
  for (int g = 0; g < kGroupsOfWarp; ++g) {
    uint32_t key = row.allows(int64_t{first + g} * 32 + lane) ? key_of(logits[g]) : kNoKey;
    if (!(fabsf(logits[g]) < INFINITY)) key = kFaultKey;
    const uint32_t best = __reduce_max_sync(kWholeWarp, key);
    if (lane == g) mine = best;
  }
  if (lane < kGroupsOfWarp && first + lane < groups) keys[int64_t{blockIdx.y} * groups + first + lane] = mine;
}

constexpr int kThreads = 1024;

// Sums, maxima and minima of a block that every thread learns. Each takes one barrier: `turn` tells two uses apart.
struct BlockSums {
  uint32_t (*shared)[32];  // [2][32]
  int turn = 0;

  template <typename Reduce>
  __device__ uint32_t all(uint32_t mine, const Reduce& reduce) {
    const uint32_t warp = reduce(mine);
    if (threadIdx.x % 32 == 0) shared[turn][threadIdx.x / 32] = warp;
    __syncthreads();
    const uint32_t total = reduce(shared[turn][threadIdx.x % 32]);
    turn ^= 1;
    return total;
  }
  __device__ int sum(int mine) {
    const auto reduce = [](uint32_t x) { return __reduce_add_sync(kWholeWarp, x); };
    return static_cast<int>(all(static_cast<uint32_t>(mine), reduce));
  }
  __device__ uint32_t largest(uint32_t mine) {
    return all(mine, [](uint32_t x) { return __reduce_max_sync(kWholeWarp, x); });
  }
  __device__ uint32_t smallest(uint32_t mine) {
    return all(mine, [](uint32_t x) { return __reduce_min_sync(kWholeWarp, x); });
  }
};

// Up to so many groups and tokens are chosen where kKept are wanted: a threshold is found the earlier.
constexpr int kMostGroups = 320;
constexpr int kMostFound = 512;

// What is chosen: keys above `least`, and of those that equal it what stands before `end`.
struct Cut {
  uint32_t least;
  int end;
  __device__ bool takes(uint32_t key, int place) const { return key > least || (key == least && place < end); }
};

// The largest of the block's keys, the lower place first among equals: kKept or some more, but at most kMost; all where
// they are fewer. Each thread has kEach of them, at places below kMostTokens that place(i) tells. REQUIRES: 0 < low, no
// key is above `high`, and if `low` is not 1, kKept keys at least are not below it.
template <int kMost, int kEach, typename Place>
__device__ Cut choose(BlockSums& sums, const uint32_t (&keys)[kEach], uint32_t low, uint32_t high, const Place& place) {
  const auto count = [&](const auto& counts) {
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine += counts(i) ? 1 : 0;
    return sums.sum(mine);
  };
  if (count([&](int i) { return keys[i] >= low; }) <= kMost) return {low, kMostTokens};
  int above = 0;  // how many are not below `beyond`: fewer than are wanted
  for (uint32_t beyond = high + 1; beyond - low > 1;) {
    const uint32_t middle = low + (beyond - low) / 2;
    const int here = count([&](int i) { return keys[i] >= middle; });
    if (here >= kKept && here <= kMost) return {middle, kMostTokens};
    if (here > kMost) {
      low = middle;
    } else {
      beyond = middle;
      above = here;
    }
  }
  int begin = 0;  // too few of the equals stand before it, and just enough before `end`
  int end = kMostTokens;
  while (end - begin > 1) {
    const int middle = begin + (end - begin) / 2;
    const int here = above + count([&](int i) { return keys[i] == low && place(i) < middle; });
    (here >= kKept ? end : begin) = middle;
  }
  return {low, end};
}

// Puts `count` different numbers, kMostFound at most, in descending order: the first kKept of it. Both lists are
// shared; `sorted` can be read after a barrier.
__device__ inline void sort_descending(const uint64_t* numbers, int count, uint64_t* sorted) {
  constexpr int kShare = kThreads / kMostFound;  // threads that compare one number with the others
  const int index = static_cast<int>(threadIdx.x) / kShare;
  const int share = static_cast<int>(threadIdx.x) % kShare;
  const uint64_t mine = index < count ? numbers[index] : 0;
  int larger = 0;
  if (index < count) {
#pragma unroll 8
    for (int i = share; i < count; i += kShare) larger += numbers[i] > mine ? 1 : 0;
  }
#pragma unroll
  for (int other = 1; other < kShare; other *= 2) larger += __shfl_xor_sync(kWholeWarp, larger, other);
  if (share == 0 && index < count && larger < kKept) sorted[larger] = mine;
}

// One block a row; kEach groups of it a thread.
template <int kEach>
__global__ void __launch_bounds__(kThreads) best_of_row_kernel(Ops::TopLogits args, int groups, const uint32_t* keys) {
  __shared__ uint32_t reduced[2][32];
  __shared__ int taken_groups, taken;
  __shared__ int chosen_groups[kMostGroups];
  __shared__ uint64_t found[kMostFound], sorted[kKept];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) taken_groups = taken = 0;
  follow();
  uint32_t group_keys[kEach];
  uint32_t largest = kNoKey;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = i * kThreads + thread;
    group_keys[i] = group < groups ? keys[int64_t{blockIdx.x} * groups + group] : kNoKey;
    largest = max(largest, group_keys[i]);
  }
  BlockSums sums{reduced};
  const uint32_t low = max(sums.smallest(largest), 1U);  // every thread has one as large
  const uint32_t high = sums.largest(largest);
  if (high == kFaultKey) {
    if (thread == 0) args.counts[blockIdx.x] = -1;
    return;
  }
  const Cut groups_cut = choose<kMostGroups>(sums, group_keys, low, high, [&](int i) { return i * kThreads + thread; });
  // In whatever order: no result depends on it.
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = i * kThreads + thread;
    if (groups_cut.takes(group_keys[i], group)) chosen_groups[atomicAdd(&taken_groups, 1)] = group;
  }
  __syncthreads();

  const Row row = row_of(args, blockIdx.x);
  constexpr int kEachToken = kMostGroups * 32 / kThreads;
  int tokens[kEachToken];
  uint32_t token_keys[kEachToken];
#pragma unroll
  for (int i = 0; i < kEachToken; ++i) {
    const int at = i * (kThreads / 32) + thread / 32;
    tokens[i] = at < taken_groups ? chosen_groups[at] * 32 + thread % 32 : kMostTokens;
    token_keys[i] = row.allows(tokens[i]) ? key_of(row.logits[tokens[i]]) : kNoKey;
  }
  const Cut cut = choose<kMostFound>(sums, token_keys, groups_cut.least, high, [&](int i) { return tokens[i]; });
#pragma unroll
  for (int i = 0; i < kEachToken; ++i) {
    if (!cut.takes(token_keys[i], tokens[i])) continue;
    found[atomicAdd(&taken, 1)] = uint64_t{token_keys[i]} << 32 | static_cast<uint32_t>(~tokens[i]);
  }
  __syncthreads();
  sort_descending(found, taken, sorted);
  __syncthreads();
  const int count = min(taken, kKept);
  if (thread < count) {
    const uint64_t entry = sorted[thread];
    args.best[int64_t{blockIdx.x} * kKept + thread] = {logit_of(static_cast<uint32_t>(entry >> 32)),
                                                       static_cast<int32_t>(~static_cast<uint32_t>(entry))};
  }
  if (thread == 0) args.counts[blockIdx.x] = count;
}

}  // namespace

void top_logits(const Context& context, const Ops::TopLogits& args) {
  if (args.tokens > kMostTokens) {
    base::bad_input("vocabulary", "{} tokens, a card takes {} at most", args.tokens, kMostTokens);
  }
  const Scratch::Scope scope(context.scratch);
  const auto groups = static_cast<int>((args.tokens + 31) / 32);
  auto* keys = context.scratch.take<uint32_t>(args.rows * groups);
  if (context.plans() || args.rows == 0) return;
  const dim3 parts((groups + kGroupsOfPart - 1) / kGroupsOfPart, static_cast<unsigned>(args.rows));
  launch_following(context, best_of_groups_kernel, parts, kPartThreads, 0, args, groups, keys);
  TANDEM_CUDA_LAUNCHED("top_logits, groups");
  const auto kernel = groups <= 8 * kThreads ? best_of_row_kernel<8> : best_of_row_kernel<32>;
  launch_following(context, kernel, dim3(static_cast<unsigned>(args.rows)), kThreads, 0, args, groups, keys);
  TANDEM_CUDA_LAUNCHED("top_logits, rows");
}

}  // namespace tandem::ops::cuda
