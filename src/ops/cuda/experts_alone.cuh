// What the parts of the kernel of a single column's NVFP4 experts share (experts_alone.cu).
#pragma once

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/experts_few_gate.cuh"
#include "ops/cuda/experts_few_shared.cuh"

namespace tandem::ops::cuda::expert {

inline constexpr int kWorkers = 16;       // warps; the last one has parts of tiles that blocks share
inline constexpr int kAsking = kWorkers;  // the warp that asks for weights
inline constexpr int kRehearsing = 2;     // warps
inline constexpr int kWorkThreads = kWorkers * 32;
inline constexpr int kAloneThreads = (kWorkers + 1 + kRehearsing) * 32;
inline constexpr int kMostChunk = 4;  // parts of gate and up that a warp multiplies
inline constexpr int kMostAloneTopK = numeric::kMostExpertsPerToken;
inline constexpr int kMostAloneHidden = 4096;
inline constexpr int kScalars = 6;                       // of an expert
inline constexpr int kPairBytes = 2 * kPartColumnBytes;  // of a column, of the 256 inputs that are quantised at once
inline constexpr int kBlocksOfPart = 4 * kPartUnits;     // of 16 inputs
inline constexpr uint32_t kChangedSigns = 0x80808080U;   // no byte A is -128
inline constexpr uint32_t kGivenBit = 0x80000000U;       // of a word of 31 bits

struct AloneArgs {
  Ops::Experts args;
  Around around;
  // Zeros before. What blocks hand each other is never zero, so that each word tells by itself that it is there.
  uint32_t* columns = nullptr;  // [top_k, tiles, 4]: down's inputs A, with the uppermost bits of bytes changed
  uint32_t* scales = nullptr;   // [top_k, tiles]: T' + 1
  int64_t* rest = nullptr;      // [rest_tiles, pieces, gate and up, 16]: 2 * sum + 1
  uint4* sums = nullptr;        // [blocks, even and odd experts, 16]: of a tile of down that the next block ends
  // Gate and up: `whole` tiles a block, each by `warps_each` warps with `chunk` parts; of the tiles that are left,
  // `span` blocks each share one, `rest_chunk` parts by the last worker of the first `pieces` of them.
  int gate_parts = 1, down_parts = 1;
  int whole = 0, chunk = 1, givers = 1;  // warps that have parts of a tile
  int rest_tiles = 0, rest_chunk = 1, pieces = 1;
  int most_jobs = 1;   // tiles of one expert's down, of a block
  int most_ended = 1;  // tiles of all experts that it ends
  int pairs = 1;       // of a column of gate and up
  Divisor warps_each, span, blocks, tiles, top_k, down_blocks;
};

// Places in shared memory, in bytes. Before down's weights come, their place has x and, of the shared expert, inputs
// and rows of down.
struct AlonePlaces {
  int rest, down, inner, shared_rows, columns, rest_columns, end;

  __host__ __device__ explicit AlonePlaces(const AloneArgs& a) {
    rest = a.whole * static_cast<int>(a.warps_each.value) * a.chunk * 2 * kPartBytes;
    down = rest + (a.rest_tiles > 0 ? a.rest_chunk * 2 * kPartBytes : 0);
    const int weights = a.most_jobs * a.down_parts * kPartBytes;
    inner = down + a.pairs * 256 * 4;
    shared_rows = inner + a.around.inputs * 4;
    const int before = shared_rows + a.most_ended * kTileRows * a.around.inputs * 2;
    columns = down + weights > before ? down + weights : before;
    const int of_gate = kRunsOfPass * 2 * a.pairs * kPairBytes;
    const int of_down = static_cast<int>(a.args.top_k) * a.down_parts * kPartColumnBytes;
    rest_columns = columns + (of_gate > of_down ? of_gate : of_down);
    end = rest_columns + 2 * (a.rest_chunk / 2 + 1) * kPairBytes;
  }
};

// What all warps of a block have.
struct AloneShared {
  alignas(16) std::byte rehearsal[2 * kPartColumnBytes];  // whatever is written in rehearsals
  BlockChoiceMemory choice;                               // ranked: the experts that were chosen
  float candidate_scalars[32][kScalars];
  float scalars[kMostAloneTopK][kScalars];  // of the chosen
  float weights[32];
  float shared_sums[2][2 * kTileRows];  // halves of down of the shared expert, of the tiles that the block ends
  int tickets[kWorkers];                // of tiles of gate: warps that have given their sums
  Arrival halves[kWorkers][2];
  Arrival jobs[kWorkers];
  Arrival shared_rows;
};

// What blocks hand each other, past the first-level cache.
__device__ inline uint4 load_given(const void* from) {
  uint4 out;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(from)
               : "memory");
  return out;
}
// In a rehearsal whatever there is.
__device__ inline uint4 await_given(bool rehearsal, const void* from) {
  uint4 out;
  do {
    out = load_given(from);
  } while (!rehearsal && (out.x == 0 || out.y == 0 || out.z == 0 || out.w == 0));
  return out;
}
__device__ inline int64_t load_given_sum(const int64_t* from) {
  int64_t out;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(out) : "l"(from) : "memory");
  return out;
}
__device__ inline void give(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline void give(int64_t* to, int64_t value) {
  asm volatile("st.relaxed.gpu.global.s64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
// Sums of any size, 31 bits a word.
__device__ inline void give_whole(uint4* to, int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  const uint32_t low = static_cast<uint32_t>(bits) | kGivenBit;
  const uint32_t middle = static_cast<uint32_t>(bits >> 31) | kGivenBit;
  const uint32_t high = static_cast<uint32_t>(bits >> 62) | kGivenBit;
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(low), "r"(middle), "r"(high),
               "r"(kGivenBit)
               : "memory");
}
__device__ inline int64_t await_whole(bool rehearsal, const uint4* from) {
  const uint4 words = await_given(rehearsal, from);
  return static_cast<int64_t>(static_cast<uint64_t>(words.x & ~kGivenBit) |
                              static_cast<uint64_t>(words.y & ~kGivenBit) << 31 |
                              static_cast<uint64_t>(words.z & ~kGivenBit) << 62);
}

// The sums of two rows of parts of 16 rows, `second` bytes apart as their inputs are `second_column`, into to[row] and
// to[16 + row]: `pairs` parts of either, and `singles` of the first behind these. `arrivals`: of two pairs each; none
// where all is there.
//
// Code that a launch comes to when weights were asked for comes behind these, microseconds late. So what has much to do
// stands in functions that warps without other work go through before, without effect ("rehearsal").
__noinline__ __device__ void sum_parts(const std::byte* weights, int second, const std::byte* column, int second_column,
                                       int pairs, int singles, Arrival* arrivals, int64_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ColumnPlaces<1> places(lane, [&](int) { return column; });
  const Nvfp4Tables tables = Nvfp4Tables::make();
  TileSums<1> sums[2];
  sums[0].clear();
  sums[1].clear();
#pragma unroll 1
  for (int i = 0; i < pairs; ++i) {
    PartInputs<1> inputs[2];
    inputs[0].load(places, i * kPartColumnBytes, lane);
    inputs[1].load(places, i * kPartColumnBytes + second_column, lane);
    if (arrivals != nullptr && i % 2 == 0) arrivals[i / 2].await();
    sums[0].add_part(tables, weights + i * kPartBytes, inputs[0], lane);
    sums[1].add_part(tables, weights + i * kPartBytes + second, inputs[1], lane);
  }
#pragma unroll 1
  for (int i = pairs; i < pairs + singles; ++i) {
    PartInputs<1> inputs;
    inputs.load(places, i * kPartColumnBytes, lane);
    sums[0].add_part(tables, weights + i * kPartBytes, inputs, lane);
  }
  __syncwarp();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    sums[m].gather(lane, [&](int, int row, int64_t sum) { to[m * kTileRows + row] = sum; });
  }
  __syncwarp();
}

// Barriers of the workers; of these and the asking warp; and one where it waits until all workers have come.
__device__ inline void meet_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkThreads) : "memory");
}
__device__ inline void meet_asking() {
  asm volatile("bar.sync 2, %0;" ::"n"(kWorkThreads + 32) : "memory");
}
__device__ inline void release_asking() {
  asm volatile("bar.arrive 3, %0;" ::"n"(kWorkThreads + 32) : "memory");
}
__device__ inline void await_release() {
  asm volatile("bar.sync 3, %0;" ::"n"(kWorkThreads + 32) : "memory");
}

}  // namespace tandem::ops::cuda::expert
