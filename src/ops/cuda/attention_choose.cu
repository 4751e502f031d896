// The best scores of a row: the budget's largest, the lower index among equals, in ascending order.
//
// A thread block, or of few long rows a cluster of them, has one row and shares it out by words of 32
// scores, of which each warp has neighbouring ones; lane = score. A bound below the last of the best comes first: of
// each warp's lanes, which know the largest score of their own, so many lie above it that all warps' together are the
// budget. What lies above is counted in bins between the bound and the largest score; the bin of the last of the best
// mostly has a few scores, which are compared one with another, and is cut into bins again where it has many.
//
// Loops stay rolled, but for those that wait for memory or other lanes: a step runs the kernel once a layer, and its
// instructions come from memory each time.
#include <algorithm>
#include <cooperative_groups.h>

#include "ops/cuda/attention_select.cuh"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kBins = 1024;
constexpr int kBinBits = 10;
constexpr int kClusterBlocks = 8;
constexpr int kMostWordsOfBlock = 128;     // of a row that is not worth a cluster
constexpr int kMostHeldBytes = 80 * 1024;  // of scores in one block
constexpr uint32_t kAll = 0xFFFFFFFFu;
static_assert(kBins == 1 << kBinBits);

// What the blocks of a cluster tell each other is written into the memory of all of them, so that a meeting is all that
// anyone waits for.
template <int kWarps, int kBlocks>
struct Shared {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kAllWarps = kBlocks * kWarps;
  static constexpr int kMostListed = kBlocks > 1 ? 64 : 256;  // at most the threads of a block
  uint32_t bins[kBins];
  // Of all blocks: each thread's bins in 16 bits, and lists.
  alignas(8) uint32_t all_bins[kBlocks][kBlocks > 1 ? kBins / 2 : 1];
  uint32_t lists[kBlocks][kMostListed];
  uint32_t counts[kBlocks];
  uint32_t low[kAllWarps];  // bounds
  uint32_t high[kAllWarps];
  uint32_t more[kAllWarps];
  uint32_t same[kAllWarps];
  uint32_t gathered[kBlocks > 1 ? kMostListed : 1];
  uint32_t listed;  // of the own list
  uint32_t warp_counts[kWarps];
  uint32_t bin;  // of the last of the best
  uint32_t bin_count;
  uint32_t above;  // in bins above it
  uint32_t last;
  uint32_t ties;
};

// The last of the best is from low to high, and the `wanted`-th largest of those. Scores are not negative, so their
// bits have their order.
struct Range {
  uint32_t low;
  uint32_t high;
  uint32_t wanted;

  __device__ int shift() const { return max(0, 32 - __clz(static_cast<int>(high - low)) - kBinBits); }
};

// `kHold`: scores are kept in shared memory, which `held` is; else they are read again and again.
template <int kWarps, int kBlocks, bool kHold>
class Chooser {
 public:
  using Memory = Shared<kWarps, kBlocks>;
  static constexpr int kThreads = Memory::kThreads;

  __device__ Chooser(const float* scores, int64_t count, uint32_t budget, uint32_t* held, Memory& shared)
      : cluster_(cg::this_cluster()),
        shared_(shared),
        budget_(budget),
        rank_(kBlocks > 1 ? static_cast<int>(cluster_.block_rank()) : 0) {
    const auto words = static_cast<int>((count + 31) / 32);
    const int block_words = (words + kBlocks - 1) / kBlocks;
    const int warp_words = (block_words + kWarps - 1) / kWarps;
    const int first_of_block = rank_ * block_words;
    const int end_of_block = min(words, first_of_block + block_words);
    const int first = first_of_block + warp_ * warp_words;
    words_ = max(0, min(end_of_block, first + warp_words) - first);
    first_ = static_cast<int64_t>(first) * 32;
#pragma unroll 1
    for (int b = 0; b < kBlocks; ++b) {
      const int own = max(0, min(words - b * block_words, block_words));
      warps_with_scores_ += (own + warp_words - 1) / warp_words;
    }
    left_ = static_cast<int>(min(count - first_, static_cast<int64_t>(words_) * 32));
    if constexpr (kHold) {
      held += warp_ * warp_words * 32 + lane_;
      held_ = held;
#pragma unroll 4
      for (int w = 0; w < words_; ++w) {
        held[w * 32] = holds(w) ? __float_as_uint(scores[first_ + w * 32 + lane_]) : 0;
      }
    } else {
      held_ = reinterpret_cast<const uint32_t*>(scores) + first_ + lane_;
    }
  }

  // Before anything is told: the cluster then waits until all have come here.
  __device__ static void prepare(Memory& shared) {
    clear_bins(shared);
    if (threadIdx.x == 0) shared.listed = 0;
  }
  __device__ void choose(int32_t* blocks) {
    find_last(bounds());
    write(blocks);
  }

 private:
  __device__ static void clear_bins(Memory& shared) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
  }
  __device__ uint32_t key_of(int word) const {
    if constexpr (kHold) return held_[word * 32];
    return holds(word) ? held_[word * 32] : 0;
  }
  __device__ bool holds(int word) const { return word * 32 + lane_ < left_; }
  template <typename T>
  __device__ T* of_block(T* own, int rank) const {
    return kBlocks > 1 ? cluster_.map_shared_rank(own, rank) : own;
  }
  __device__ void meet() const {
    if constexpr (kBlocks > 1) {
      cluster_.sync();
    } else {
      __syncthreads();
    }
  }
  // A warp's number for all blocks, each by a lane.
  __device__ void tell(uint32_t* own, uint32_t value) const {
    if (lane_ < kBlocks) *of_block(own, lane_) = value;
  }

  // From a bound that the best are not below to the largest.
  __device__ Range bounds() {
    uint32_t most = 0;
#pragma unroll 1
    for (int w = 0; w < words_; ++w) most = max(most, key_of(w));
    const uint32_t high = __reduce_max_sync(kAll, most);
    const auto place = (budget_ + warps_with_scores_ - 1) / warps_with_scores_;  // of the bound, from the largest
    uint32_t low = 0;
    if (place <= 32) {
      uint32_t larger = 0;
#pragma unroll 4
      for (int i = 0; i < 32; ++i) {
        const uint32_t other = __shfl_sync(kAll, most, i);
        larger += other > most || (other == most && i < lane_) ? 1 : 0;
      }
      low = __reduce_max_sync(kAll, larger == place - 1 ? most : 0);
    }
    tell(&shared_.low[rank_ * kWarps + warp_], words_ > 0 ? low : kAll);
    tell(&shared_.high[rank_ * kWarps + warp_], high);
    meet();
    Range range{.low = kAll, .high = 0, .wanted = budget_};
#pragma unroll 1
    for (int i = lane_; i < kBlocks * kWarps; i += 32) {
      range.low = min(range.low, shared_.low[i]);
      range.high = max(range.high, shared_.high[i]);
    }
    range.low = __reduce_min_sync(kAll, range.low);
    range.high = __reduce_max_sync(kAll, range.high);
    return range;
  }

  // The last of the best, and how many that equal it are among them; or, with no ties, what all of the best are above.
  __device__ void find_last(Range range) {
#pragma unroll 1
    while (range.low != range.high) {
      const int shift = range.shift();
#pragma unroll 1
      for (int w = 0; w < words_; ++w) {
        const uint32_t key = key_of(w);
        if (holds(w) && key >= range.low && key <= range.high) {
          atomicAdd(&shared_.bins[(key - range.low) >> shift], 1u);
        }
      }
      __syncthreads();
      choose_bin(range.wanted);
      range.wanted -= shared_.above;
      range.low += shared_.bin << shift;
      range.high = min(range.high, range.low + ((1u << shift) - 1));
      const uint32_t count = shared_.bin_count;
      if (count == range.wanted && range.low > 0) {
        last_ = range.low - 1;
        ties_ = 0;
        return;
      }
      if (count <= Memory::kMostListed) {
        compare(range, count);
        return;
      }
      clear_bins(shared_);
      meet();
    }
    last_ = range.low;
    ties_ = range.wanted;
  }

  // Finds the bin in which the wanted number, counted from the largest, is reached.
  __device__ void choose_bin(uint32_t wanted) {
    constexpr int each = kBins / kThreads;
    const int highest = kBins - 1 - static_cast<int>(threadIdx.x) * each;
    uint32_t counts[each];
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      counts[i] = shared_.bins[highest - i];
    }
    if constexpr (kBlocks > 1) {
      static_assert((each == 2 || each == 4) && kMostHeldBytes / 4 <= 0xFFFF);
      uint32_t* own = shared_.all_bins[rank_] + threadIdx.x * (each / 2);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        uint32_t* to = of_block(own, b);
        if constexpr (each == 4) {
          *reinterpret_cast<uint2*>(to) = make_uint2(counts[0] | counts[1] << 16, counts[2] | counts[3] << 16);
        } else {
          *to = counts[0] | counts[1] << 16;
        }
      }
      cluster_.sync();
#pragma unroll
      for (int i = 0; i < each; ++i) counts[i] = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < each / 2; ++i) {
          const uint32_t others = shared_.all_bins[b][threadIdx.x * (each / 2) + i];
          counts[2 * i] += others & 0xFFFF;
          counts[2 * i + 1] += others >> 16;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < each; ++i) mine += counts[i];
    uint32_t before = sum_up_to_lane(mine);
    if (lane_ == 31) shared_.warp_counts[warp_] = before;
    __syncthreads();
    before += __reduce_add_sync(kAll, lane_ < warp_ ? shared_.warp_counts[lane_] : 0);
    before -= mine;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (before < wanted && before + counts[i] >= wanted) {
        shared_.bin = highest - i;
        shared_.bin_count = counts[i];
        shared_.above = before;
      }
      before += counts[i];
    }
    __syncthreads();
  }

  // The wanted-th of the `count` scores of a range, each of which a thread compares with all others.
  __device__ void compare(const Range& range, uint32_t count) {
#pragma unroll 1
    for (int w = 0; w < words_; ++w) {
      const uint32_t key = key_of(w);
      if (!holds(w) || key < range.low || key > range.high) continue;
      const uint32_t at = atomicAdd(&shared_.listed, 1u);
#pragma unroll 1
      for (int b = 0; b < kBlocks; ++b) *of_block(&shared_.lists[rank_][at], b) = key;
    }
    __syncthreads();
    if (kBlocks > 1 && warp_ == 0) tell(&shared_.counts[rank_], shared_.listed);
    meet();
    // A warp gathers a block's list, behind those of the blocks before.
#pragma unroll 1
    for (int b = warp_; kBlocks > 1 && b < kBlocks; b += kWarps) {
      const uint32_t others = lane_ <= b ? shared_.counts[lane_] : 0;
      const uint32_t begin = __reduce_add_sync(kAll, lane_ < b ? others : 0);
      const uint32_t own = __shfl_sync(kAll, others, b);
#pragma unroll 1
      for (uint32_t i = lane_; i < own; i += 32) shared_.gathered[begin + i] = shared_.lists[b][i];
    }
    __syncthreads();
    const uint32_t* all = kBlocks > 1 ? shared_.gathered : shared_.lists[0];
    if (threadIdx.x < count) {
      const uint32_t key = all[threadIdx.x];
      uint32_t larger = 0;
      uint32_t equal = 0;
#pragma unroll 2
      for (uint32_t i = 0; i < count; ++i) {
        larger += all[i] > key ? 1 : 0;
        equal += all[i] == key ? 1 : 0;
      }
      if (larger < range.wanted && larger + equal >= range.wanted) {
        shared_.last = key;
        shared_.ties = range.wanted - larger;
      }
    }
    __syncthreads();
    last_ = shared_.last;
    ties_ = shared_.ties;
  }

  // Those above the last, and the first of its ties.
  __device__ void write(int32_t* blocks) {
    uint32_t more = 0;
    uint32_t same = 0;
#pragma unroll 1
    for (int w = 0; w < words_; ++w) {
      const uint32_t key = key_of(w);
      more += __popc(__ballot_sync(kAll, holds(w) && key > last_));
      same += __popc(__ballot_sync(kAll, holds(w) && key == last_));
    }
    tell(&shared_.more[rank_ * kWarps + warp_], more);
    tell(&shared_.same[rank_ * kWarps + warp_], same);
    meet();  // the last: nobody writes into this block's memory any more
    more = 0;
    same = 0;
#pragma unroll 1
    for (int i = lane_; i < rank_ * kWarps + warp_; i += 32) {
      more += shared_.more[i];
      same += shared_.same[i];
    }
    more = __reduce_add_sync(kAll, more);
    same = __reduce_add_sync(kAll, same);
    const uint32_t lower = (1u << lane_) - 1;
#pragma unroll 1
    for (int w = 0; w < words_; ++w) {
      const uint32_t key = key_of(w);
      const uint32_t above = __ballot_sync(kAll, holds(w) && key > last_);
      const uint32_t equal = __ballot_sync(kAll, holds(w) && key == last_);
      const uint32_t rank = same + __popc(equal & lower);
      const bool mine = (above >> lane_ & 1) != 0 || ((equal >> lane_ & 1) != 0 && rank < ties_);
      if (mine) {
        blocks[more + __popc(above & lower) + min(rank, ties_)] = static_cast<int32_t>(first_ + w * 32 + lane_);
      }
      more += __popc(above);
      same += __popc(equal);
    }
  }

  cg::cluster_group cluster_;
  Memory& shared_;
  const uint32_t* held_;  // the lane's scores
  uint32_t budget_;
  int rank_;
  int lane_ = threadIdx.x % 32;
  int warp_ = threadIdx.x / 32;
  int words_ = 0;      // of the warp
  int64_t first_ = 0;  // its first score
  int left_ = 0;       // its scores
  uint32_t warps_with_scores_ = 0;
  uint32_t last_ = 0;
  uint32_t ties_ = 0;
};

template <int kWarps, int kBlocks, bool kHold>
__global__ void __launch_bounds__(32 * kWarps) choose_kernel(const __grid_constant__ SelectArgs args) {
  let_next_start();
  extern __shared__ __align__(16) uint32_t held[];
  __shared__ Shared<kWarps, kBlocks> shared;
  const unsigned row = blockIdx.x / kBlocks;
  const unsigned row_tile = row / static_cast<unsigned>(args.tile_columns);
  const Tile tile(args, row_tile);
  const auto c = static_cast<int>(row - row_tile * args.tile_columns);
  // All blocks of a cluster have the same row, and leave together.
  const int visible = c < tile.columns ? tile.visible(c, args.kv.ratio) : 0;
  const int64_t budget = args.selection.budget;
  Chooser<kWarps, kBlocks, kHold>::prepare(shared);
  if constexpr (kBlocks > 1) {
    cg::this_cluster().sync();
  } else {
    __syncthreads();
  }
  await_previous();
  if (tile.offset + c >= args.each) return;
  const int64_t column = tile.first_column + c;
  if (threadIdx.x == 0) {
    args.selection.counts[column] = visible <= budget ? BlockSelection::kEverything : static_cast<int32_t>(budget);
  }
  if (visible <= budget) return;
  const float* scores = args.scores + (tile.first_row + c) * args.stride;
  Chooser<kWarps, kBlocks, kHold> chooser(scores, visible, static_cast<uint32_t>(budget), held, shared);
  chooser.choose(args.selection.blocks + column * budget);
}

// Bytes of a row's scores that a block holds.
int64_t held_bytes(const SelectArgs& args, int warps, int64_t blocks) {
  const int64_t block_words = (args.stride / 32 + blocks - 1) / blocks;
  return (block_words + warps - 1) / warps * warps * 128;
}

template <int kWarps, int kBlocks, bool kHold = true>
void launch(const Context& context, const SelectArgs& args, int64_t rows) {
  const int64_t bytes = kHold ? held_bytes(args, kWarps, kBlocks) : 0;
  if (bytes > kMostHeldBytes) base::internal_error("cuda", "{} blocks are too many to choose from", args.stride);
  const auto kernel = choose_kernel<kWarps, kBlocks, kHold>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostHeldBytes));
  launch_following_clusters(context, dim3(kBlocks), kernel, static_cast<unsigned>(rows * kBlocks), 32 * kWarps,
                            static_cast<size_t>(bytes), args);
  TANDEM_CUDA_LAUNCHED("choose_blocks");
}

}  // namespace

void choose_blocks(const Context& context, const SelectArgs& args, int64_t tiles, bool few) {
  const int64_t rows = tiles * args.tile_columns;
  const bool large = args.stride > 32 * kMostWordsOfBlock;
  const bool clusters = context.capability / 10 == 9 || context.capability / 10 == 10;
  const bool fits = held_bytes(args, 8, 1) <= kMostHeldBytes;
  if (few && !large) {
    launch<32, 1>(context, args, rows);
  } else if (clusters && few) {
    launch<16, kClusterBlocks>(context, args, rows);
  } else if (fits) {
    launch<8, 1>(context, args, rows);
  } else if (clusters) {
    launch<8, kClusterBlocks>(context, args, rows);
  } else {
    launch<32, 1, false>(context, args, rows);
  }
}

}  // namespace tandem::ops::cuda
