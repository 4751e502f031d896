// Tiles of 8-bit keys and values on their way from the pages to shared memory, for attention_codes.cu.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/attention_work.cuh"

namespace tandem::ops::cuda {

inline constexpr int kStreams = 4;
inline constexpr int kStreamThreads = 32 * kStreams;
inline constexpr int kStep = 32;         // tokens
inline constexpr int kMine = kStep / 4;  // of them, those whose weights a lane holds: 8 n + 2 (lane % 4) + {0, 1}
inline constexpr uint32_t kAll = 0xFFFFFFFFu;

template <int kDim, int kRowTiles>
struct CodesShape {
  static constexpr int kTiles = kRowTiles;
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kDims = kDim;
  static constexpr int kChunks = kDim / 16;
  static constexpr int kGroups = kDim / kScaleGroup;
  static constexpr int kQuerySteps = kDim / 32;
  // Shared memory: each stream's tiles, codes and then scales; queries as left operands. Then, over the same, the
  // streams' sums and states.
  static constexpr int kCodesBytes = kStep * kDim;
  static constexpr int kSlotBytes = kCodesBytes + kStep * kGroups * 2;
  static constexpr int kQueries = kStreams * 2 * kSlotBytes;
  static constexpr int kUnits = kQueries + kTiles * kQuerySteps * 32 * 16;
  static constexpr int kOperands = kUnits + kRows * 4;
  static constexpr int kSumStride = kDim + 4;  // floats; four rows' pairs then lie in different banks
  static constexpr int kStates = kStreams * kRows * kSumStride * 4;
  static constexpr int kSums = kStates + kStreams * kRows * 16;
  static constexpr int kBytes = kOperands > kSums ? kOperands : kSums;
};

// An address of which the compiler cannot know that it is the same in every round of a loop: what is computed from it
// is not kept in registers, of which there are none to spare.
__device__ __forceinline__ uint32_t each_round(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

// Where the lane's chunk of 16 bytes lies in each of a tile's rows `times` apart is its place in the first, in which
// bits are exchanged as swizzled() does.
template <typename S>
__device__ __forceinline__ uint32_t copied_to(uint32_t first, int i) {
  constexpr int rows_at_once = 32 / S::kChunks;
  return (S::kChunks == 16 ? first ^ (2 * i % 8) << 4 : first) + i * rows_at_once * S::kDims;
}
// The place of chunk 4 g + c of a row, from that of its chunk 0 or, of a lane that has chunk q of each four, q.
__device__ __forceinline__ uint32_t chunk_of(uint32_t first, int g, int c) {
  return (first ^ (g % 2 * 4 + c) << 4) + g / 2 * 128;
}

// Fetches a stream's tiles one after the other: a step's keys, its values, the next step's keys. Each kind has a place
// of its own.
template <typename S, bool kChosen>
class Reader {
 public:
  __device__ Reader(const AttentionArgs& args, const Work& work, char* slots)
      : args_(args), work_(work), slots_(slots), lane_(threadIdx.x % 32) {}
  // The work's end is known.
  __device__ void start() {
    step_ = threadIdx.x / 32;
    length_ = work_.length();
    steps_ = (length_ + kStep - 1) / kStep;
    if constexpr (kChosen) {
      find_token(step_);
    } else {
      // A piece begins with a page and every step of a stream lies in the same half of its page.
      row_ = work_.kv_head * kPageTokens + step_ * kStep % kPageTokens;
      plain_ = args_.kv.row_bytes == S::kDims && args_.kv.groups() == S::kGroups;
      lane_codes_ = row_ * S::kDims + lane_ * 16;
      lane_scales_ = row_ * S::kGroups * 2 + lane_ * 16;
    }
    find_pages();
  }
  __device__ int steps() const { return steps_; }
  __device__ char* slot(bool values) const { return slots_ + (values ? S::kSlotBytes : 0); }

  // Asks for the next tile. Closes a group of copies in any case.
  __device__ __forceinline__ void ask(bool values) {
    if (step_ < steps_) {
      if (!values) place_step();
      copy_rows(values, 0, kStep);
      if (values) {
        step_ += kStreams;
        if (kChosen || step_ / kStreams % 32 == 0) find_pages();
      }
    }
    commit_copies();
  }

  // Asks for the first keys and values of a list all of which is known, before the kernels before this one have ended:
  // for all but the run's own tokens, which they may still write.
  __device__ void ask_early() {
    if (step_ < steps_) place_step();
    ask_first(0, old_rows());
    step_ += kStreams;
    if constexpr (kChosen) find_pages();
  }
  // Afterwards, for the run's own. Returns whether there were any.
  __device__ bool ask_late() {
    step_ -= kStreams;
    const int old = old_rows();
    const bool any = step_ < steps_ && old < kStep;
    if (any) ask_first(old, kStep);
    step_ += kStreams;
    return any;
  }

 private:
  __device__ int old_rows() const {
    return min(kStep, static_cast<int>(work_.run.position - work_.begin) - step_ * kStep);
  }
  __device__ void ask_first(int from, int to) {
#pragma unroll 1
    for (int values = 0; values < 2; ++values) {
      if (step_ < steps_) copy_rows(values != 0, from, to);
      commit_copies();
    }
  }
  // Where blocks are chosen, each lane has a token of the next step, found while the step before is worked on. Else a
  // step is half a page, and each lane looks up the page of another step.
  __device__ void find_token(int step) {
    const TokenList list(work_.position, args_.selection, work_.first_column, args_.kv.ratio);
    const int at = step * kStep + lane_;
    token_ = at < length_ ? static_cast<int>(list.token(work_.begin + at)) : 0;
  }
  __device__ void find_pages() {
    if constexpr (kChosen) {
      pages_ = work_.run.block_table[token_ / kPageTokens];
    } else {
      const int step = step_ + lane_ * kStreams;
      if (step < steps_) pages_ = work_.run.block_table[(static_cast<int>(work_.begin) + step * kStep) / kPageTokens];
    }
  }
  __device__ void place_step() {
    if constexpr (kChosen) {
      page_ = args_.kv.pages + pages_ * args_.kv.page_bytes;
      row_ = work_.kv_head * kPageTokens + token_ % kPageTokens;
      find_token(step_ + kStreams);
    } else {
      page_ = args_.kv.pages + __shfl_sync(kAll, pages_, step_ / kStreams % 32) * args_.kv.page_bytes;
    }
  }

  __device__ __forceinline__ void copy_rows(bool values, int from_row, int to_row) const {
    if (plain_ && (step_ + 1) * kStep <= length_ && from_row == 0 && to_row == kStep) {
      copy_plain(values);
    } else {
      copy(values, length_ - step_ * kStep, from_row, to_row);
    }
  }
  // A whole tile of a shape that fills it.
  __device__ __forceinline__ void copy_plain(bool values) const {
    constexpr int rows_at_once = 32 / S::kChunks;
    const std::byte* from = page_ + (values ? args_.kv.values : 0) + lane_codes_;
    const uint32_t to = shared_address(slot(values));
    const uint32_t base = each_round(to + swizzled<S::kChunks>(lane_ / S::kChunks, lane_ % S::kChunks) * 16);
#pragma unroll
    for (int i = 0; i < kStep / rows_at_once; ++i) {
      copy_16(copied_to<S>(base, i), from + i * rows_at_once * S::kDims);
    }
    if (lane_ * 16 >= kStep * S::kGroups * 2) return;
    copy_16(to + S::kCodesBytes + lane_ * 16,
            page_ + args_.kv.scales + (values ? args_.kv.value_scales() : 0) + lane_scales_);
  }

  // Rows from `from_row` to before `to_row` of a tile of which `tokens` are in the list; zeros behind them.
  __device__ __forceinline__ void copy(bool values, int tokens, int from_row, int to_row) const {
    char* const to = slot(values);
    constexpr int rows_at_once = 32 / S::kChunks;
    const int chunk = lane_ % S::kChunks;
    const int first = lane_ / S::kChunks;
    const bool inside = chunk * 16 < args_.kv.row_bytes;
    const uint32_t base = each_round(shared_address(to) + swizzled<S::kChunks>(first, chunk) * 16);
    const std::byte* own = page_ + (values ? args_.kv.values : 0) + row_ * args_.kv.row_bytes;
#pragma unroll 2
    for (int i = 0; i < kStep / rows_at_once; ++i) {
      const int r = first + i * rows_at_once;
      const std::byte* from = own + r * args_.kv.row_bytes;
      if constexpr (kChosen) from = reinterpret_cast<const std::byte*>(__shfl_sync(kAll, uint64_t(own), r));
      const bool valid = inside && r < tokens;
      if (r < from_row || r >= to_row) continue;
      copy_16(copied_to<S>(base, i), valid ? from + chunk * 16 : args_.kv.pages, valid);
    }
    if (lane_ < from_row || lane_ >= to_row) return;
    // The scales of a token a lane.
    const int groups = args_.kv.groups();
    const bool valid = lane_ < tokens;
    const std::byte* from =
        page_ + args_.kv.scales + (values ? args_.kv.value_scales() : 0) + (row_ + (kChosen ? 0 : lane_)) * groups * 2;
    auto* scales = reinterpret_cast<uint16_t*>(to + S::kCodesBytes) + lane_ * S::kGroups;
    if (S::kGroups == 4 && groups == 4) {
      copy_8(shared_address(scales), valid ? from : args_.kv.pages, valid);
      return;
    }
    for (int g = 0; g < S::kGroups; ++g) {
      scales[g] = valid && g < groups ? reinterpret_cast<const uint16_t*>(from)[g] : 0;
    }
  }

  const AttentionArgs& args_;
  const Work& work_;
  char* slots_;
  int lane_;
  int step_ = 0;  // the next to ask for
  int length_ = 0;
  int steps_ = 0;
  int32_t pages_ = 0;
  int token_ = 0;
  const std::byte* page_ = nullptr;  // of the step under way; where blocks are chosen, of the lane's token
  int row_ = 0;
  bool plain_ = false;
  int lane_codes_ = 0;  // from the page to what the lane copies of a plain tile first
  int lane_scales_ = 0;
};

// The scales of the lane's tokens in a tile, in words of two: of two groups of a token, or of two tokens with one
// group.
template <typename S>
struct Scales {
  static constexpr int kWords = S::kGroups == 1 ? kMine / 2 : kMine;
  static constexpr int kGroupsAtOnce = S::kGroups == 1 ? 1 : 2;
  uint32_t words[kWords];

  // Those of groups `group` and, where there are several, the next.
  __device__ __forceinline__ void load(const char* slot, int group) {
    const char* from = slot + S::kCodesBytes + static_cast<int>(threadIdx.x) % 4 * 4 * S::kGroups + group * 2;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int token = S::kGroups == 1 ? 8 * i : 8 * (i / 2) + i % 2;
      words[i] = *reinterpret_cast<const uint32_t*>(from + token * S::kGroups * 2);
    }
  }
  __device__ __forceinline__ float of(int j, int group) const {
    const int half = S::kGroups == 1 ? j % 2 : group % 2;
    const auto pair = *reinterpret_cast<const __half2*>(&words[S::kGroups == 1 ? j / 2 : j]);
    return half == 0 ? __low2float(pair) : __high2float(pair);
  }
  // The largest of the tokens for which `seen(j)`.
  template <typename Seen>
  __device__ __forceinline__ float largest(const Seen& seen) const {
    __half2 most{};
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t low = seen(S::kGroups == 1 ? 2 * i : i) ? 0xFFFFu : 0;
      const uint32_t high = seen(S::kGroups == 1 ? 2 * i + 1 : i) ? 0xFFFF0000u : 0;
      const uint32_t word = words[i] & (low | high);
      most = __hmax2(most, *reinterpret_cast<const __half2*>(&word));
    }
    return fmaxf(__low2float(most), __high2float(most));
  }
};

}  // namespace tandem::ops::cuda
