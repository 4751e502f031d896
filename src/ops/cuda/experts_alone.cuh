// What the parts of the kernel of a single column's NVFP4 experts share (experts_alone.cu).
#pragma once

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/experts_few_gate.cuh"
#include "ops/cuda/experts_few_shared.cuh"
#include "ops/cuda/router_rows.cuh"

namespace tandem::ops::cuda::expert {

inline constexpr int kWorkers = 16;       // warps; the last one has parts of tiles that blocks share
inline constexpr int kAsking = kWorkers;  // the warp that asks for weights
inline constexpr int kAside = 2;          // warps that do the shared expert's down
inline constexpr int kWorkThreads = kWorkers * 32;
inline constexpr int kAloneThreads = (kWorkers + 1 + kAside) * 32;
inline constexpr int kMostChunk = 4;  // parts of gate and up that a warp multiplies
inline constexpr int kMostAloneTopK = numeric::kMostExpertsPerToken;
inline constexpr int kMostAloneHidden = 4096;
inline constexpr int kScalars = 6;                       // of an expert
inline constexpr int kPairBytes = 2 * kPartColumnBytes;  // of a column, of the 256 inputs that are quantised at once
inline constexpr int kBlocksOfPart = 4 * kPartUnits;     // of 16 inputs
inline constexpr int kBlockFloats = 20;  // from one of x's blocks to the next, so that lanes meet in no bank
inline constexpr uint32_t kChangedSigns = 0x80808080U;  // no byte A is -128
inline constexpr uint32_t kGivenBit = 0x80000000U;      // of a word of 31 bits
inline constexpr int kRowHalves = 2;                    // of the workers, who share a part of the rows that come first
inline constexpr int kRowSlots = 4;                     // of such parts
inline constexpr int kHandedBytes = 128 << 10;
static_assert(kMostAloneTopK <= kWorkers && kMostFewExperts == kWorkThreads);

// What blocks hand each other, as bytes from its beginning. All is zero before, and nothing that is given is, so that
// each word tells by itself that it is there.
struct Handed {
  // At 0: the router's logits [experts], as 2^32 + the bits of a float, which the next two are too.
  int gate = 0;     // of the shared expert
  int inner = 0;    // [shared inner]
  int columns = 0;  // [top_k, tiles, 4]: down's inputs A, with the uppermost bits of bytes changed
  int scales = 0;   // [top_k, tiles]: T' + 1
  int rest = 0;     // [rest_tiles, pieces, gate and up, 16]: 2 * sum + 1
  int sums = 0;     // [blocks, even and odd experts, 16]: of a tile of down that the next block ends
};

struct AloneArgs {
  Ops::Experts args;
  Around around;
  RouterRows rows;
  int row_parts = 0;
  Handed handed;
  // Gate and up: `whole` tiles a block, each by `warps_each` warps in turns of a part, `chunk` of these at most; of the
  // tiles that are left, `span` blocks each share one, `rest_chunk` parts by the last worker of the first `pieces` of
  // them.
  int gate_parts = 1, down_parts = 1;
  int whole = 0, chunk = 1, givers = 1;  // warps that have parts of a tile
  int ahead = 2;                         // turns of tiles whose weights are under way at once
  int rest_tiles = 0, rest_chunk = 1, pieces = 1;
  int most_jobs = 1;   // tiles of one expert's down, of a block
  int most_ended = 1;  // tiles of all experts that it ends
  int pairs = 1;       // of a column of gate and up
  Divisor warps_each, span, blocks, tiles, top_k, down_blocks, down_units;
};

// Places in shared memory, in bytes. Before down's weights come, their place has x and, of the shared expert, inputs
// and rows of down; before those of gate and up, from 0 on, that of the rows that come first; and the columns' place
// has a Ranking.
struct AlonePlaces {
  int rest, down, inner, shared_rows, columns, rest_columns, end;

  __host__ __device__ explicit AlonePlaces(const AloneArgs& a) {
    rest = a.whole * static_cast<int>(a.warps_each.value) * a.chunk * 2 * kPartBytes;
    down = rest + (a.rest_tiles > 0 ? a.rest_chunk * 2 * kPartBytes : 0);
    const int slots = (a.row_parts + static_cast<int>(a.blocks.value) - 1) / static_cast<int>(a.blocks.value);
    const int rows = slots * kRowsOfPart * a.rows.inputs * 2;
    constexpr int kDownSums = kWorkers * 3 * kTileRows * 8;
    down = down > rows ? down : rows;
    down = down > kDownSums ? down : kDownSums;
    const int weights = a.most_jobs * a.down_parts * kPartBytes;
    inner = down + a.pairs * 16 * kBlockFloats * 4;
    shared_rows = inner + a.around.inputs * 4;
    const int before = shared_rows + a.most_ended * kTileRows * a.around.inputs * 2;
    columns = down + weights > before ? down + weights : before;
    const int of_gate = kRunsOfPass * 2 * a.pairs * kPairBytes;
    constexpr int kRanking = (kMostFewExperts + kWorkers) * 4;
    const int of_down = static_cast<int>(a.args.top_k) * a.down_parts * kPartColumnBytes;
    const int most = of_gate > of_down ? of_gate : of_down;
    rest_columns = columns + (most > kRanking ? most : kRanking);
    end = rest_columns + 2 * (a.rest_chunk / 2 + 1) * kPairBytes;
  }
};

struct ExpertScalars {
  float values[kScalars];
};

// What all warps of a block have.
struct AloneShared {
  alignas(16) std::byte rehearsal[2 * kPartColumnBytes];  // whatever is written in rehearsals
  std::byte* handed;                                      // what Handed has the places of
  Choice ranked[32];                                      // the experts that were chosen
  float exponents[32];
  float scalars[kMostAloneTopK][kScalars];  // of the chosen
  float weights[32];
  float shared_sums[2][2 * kTileRows];  // halves of down of the shared expert, of the tiles that the block ends
  int tickets[kWorkers];                // of tiles of gate: warps that have given their sums
  float row_sums[kRowSlots][kRowThreads / 32][kRowsOfPart];
  Arrival rows[kRowSlots];
  Arrival turns[kWorkers][kMostChunk];  // of tiles of gate and up; the last ones of the worker's own part of a tile
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
__device__ inline void give_word(std::byte* words, int at, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(reinterpret_cast<uint32_t*>(words) + at), "r"(value)
               : "memory");
}
__device__ inline void give(int64_t* to, int64_t value) {
  asm volatile("st.relaxed.gpu.global.s64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline void give_float(std::byte* floats, int at, float value) {
  give(reinterpret_cast<int64_t*>(floats) + at, 1LL << 32 | __float_as_uint(value));
}
// 0 where it is not there yet.
__device__ inline int64_t load_given_float(const std::byte* floats, int at) {
  return load_given_sum(reinterpret_cast<const int64_t*>(floats) + at);
}
// `first`: what there was when one looked before.
__device__ inline float await_float(const std::byte* floats, int at, int64_t first = 0) {
  while (first == 0) first = load_given_float(floats, at);
  return __uint_as_float(static_cast<uint32_t>(first));
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

// What a lane has of the sums of units (experts_nvfp4.cuh says which): two rows of one block of 16. Four codes a
// dp4a: the tensor cores' products of one column take as long, for most of what they multiply with are zeros, and the
// card's clock is lower beside them.
struct UnitSums {
  int64_t rows[2] = {};

  __device__ void add(const Nvfp4Tables& tables, const std::byte* unit, const std::byte* column, int lane) {
    const int block = lane / 8;
    const int place = lane % 8 * 8;
    const int swap = block % 2 * 64;
    const uint4 x = *reinterpret_cast<const uint4*>(column + block * 16);
    const int t = *reinterpret_cast<const int*>(column + 64 + block * 4);
    const uint2 first = *reinterpret_cast<const uint2*>(unit + block * 128 + swap + place);
    const uint2 second = *reinterpret_cast<const uint2*>(unit + block * 128 + 64 - swap + place);
    const uint2 codes = *reinterpret_cast<const uint2*>(unit + 512 + place);
    add_row(tables, first.x, second.x, codes.x, x, t, block, rows[0]);
    add_row(tables, first.y, second.y, codes.y, x, t, block, rows[1]);
  }

 private:
  __device__ static void add_row(const Nvfp4Tables& tables, uint32_t first, uint32_t second, uint32_t codes, uint4 x,
                                 int t, int block, int64_t& sum) {
    const int dot = add_eight(tables, second, x.z, x.w, add_eight(tables, first, x.x, x.y, 0));
    const int scale = e4m3_times_512(__funnelshift_l(codes, codes, 20 - 8 * block) & 0x07f00000U);
    add_product(sum, dot * scale, t);
  }
  __device__ static int add_eight(const Nvfp4Tables& tables, uint32_t codes, uint32_t low, uint32_t high, int sum) {
    const uint32_t upper = codes >> 16;
    sum = dot_signed(permute_bytes(tables.twice[0], tables.twice[1], codes), low, sum);
    sum = dot_signed(permute_bytes(tables.negated[0], tables.negated[1], codes & 0x77777777U), low, sum);
    sum = dot_signed(permute_bytes(tables.twice[0], tables.twice[1], upper), high, sum);
    return dot_signed(permute_bytes(tables.negated[0], tables.negated[1], upper & 0x7777U), high, sum);
  }
};

// The sums of two rows of parts of 16 rows, `second` bytes apart as their inputs are `second_column`, into to[row] and
// to[16 + row]: of every `step`-th part `pairs` units of either, and `singles` of the first behind these. `arrivals`:
// of a pair of parts each; none where all is there.
//
// Code that a launch comes to when weights were asked for comes behind these, microseconds late. So what has much to do
// stands in functions that warps without other work go through before, without effect ("rehearsal").
__noinline__ __device__ void sum_parts(const std::byte* weights, int second, const std::byte* column, int second_column,
                                       int step, int pairs, int singles, Arrival* arrivals, int64_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Nvfp4Tables tables = Nvfp4Tables::make();
  constexpr int kColumnBytes = kPartColumnBytes / kPartUnits;
  const int to_part = step * kPartBytes - kNvfp4UnitBytes;
  const int to_column = step * kPartColumnBytes - kColumnBytes;
  UnitSums sums[2];
#pragma unroll 1
  for (int i = 0; i < pairs; ++i) {
    if (arrivals != nullptr && i % 2 == 0) arrivals[i / 2].await();
    sums[0].add(tables, weights, column, lane);
    sums[1].add(tables, weights + second, column + second_column, lane);
    weights += i % 2 == 0 ? kNvfp4UnitBytes : to_part;
    column += i % 2 == 0 ? kColumnBytes : to_column;
  }
#pragma unroll 1
  for (int i = 0; i < singles; ++i) {
    sums[0].add(tables, weights, column, lane);
    weights += kNvfp4UnitBytes;
    column += kColumnBytes;
  }
  __syncwarp();
  // Over the blocks: lane 8 (2 m + r) + j ends with that of row 2 j + r of m.
  const int m = lane / 16;
  const int r = lane / 8 % 2;
  int64_t halves[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t given = m == 0 ? sums[1].rows[i] : sums[0].rows[i];
    halves[i] = (m == 0 ? sums[0].rows[i] : sums[1].rows[i]) + __shfl_xor_sync(kWholeWarp, given, 16);
  }
  const int64_t given = r == 0 ? halves[1] : halves[0];
  to[m * kTileRows + lane % 8 * 2 + r] = (r == 0 ? halves[0] : halves[1]) + __shfl_xor_sync(kWholeWarp, given, 8);
  __syncwarp();
}

// Barriers: of the workers; of a half of them; of the workers and the asking warp; one where that waits until all
// workers and the warps aside have come; one where workers learn that it has set up the barriers of rows; one where the
// warps aside wait for the workers; one of the warps aside; and one where the workers wait for these.
__device__ inline void meet_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkThreads) : "memory");
}
__device__ inline void meet_half() {
  if (threadIdx.x < kRowThreads) {
    asm volatile("bar.sync 4, %0;" ::"n"(kRowThreads) : "memory");
  } else {
    asm volatile("bar.sync 5, %0;" ::"n"(kRowThreads) : "memory");
  }
}
__device__ inline void meet_asking() {
  asm volatile("bar.sync 2, %0;" ::"n"(kWorkThreads + 32) : "memory");
}
__device__ inline void release_asking() {
  asm volatile("bar.arrive 3, %0;" ::"n"(kAloneThreads) : "memory");
}
__device__ inline void await_release() {
  asm volatile("bar.sync 3, %0;" ::"n"(kAloneThreads) : "memory");
}
__device__ inline void tell_of_rows() {
  asm volatile("bar.arrive 8, %0;" ::"n"(kWorkThreads + 32) : "memory");
}
__device__ inline void learn_of_rows() {
  asm volatile("bar.sync 8, %0;" ::"n"(kWorkThreads + 32) : "memory");
}
__device__ inline void tell_aside() {
  asm volatile("bar.arrive 9, %0;" ::"n"(kWorkThreads + kAside * 32) : "memory");
}
__device__ inline void learn_aside() {
  asm volatile("bar.sync 9, %0;" ::"n"(kWorkThreads + kAside * 32) : "memory");
}
__device__ inline void meet_aside() {
  asm volatile("bar.sync 6, %0;" ::"n"(kAside * 32) : "memory");
}
__device__ inline void end_aside() {
  asm volatile("bar.arrive 7, %0;" ::"n"(kWorkThreads + kAside * 32) : "memory");
}
__device__ inline void meet_workers_and_aside() {
  asm volatile("bar.sync 7, %0;" ::"n"(kWorkThreads + kAside * 32) : "memory");
}

}  // namespace tandem::ops::cuda::expert
