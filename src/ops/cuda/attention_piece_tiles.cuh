// Tiles of keys and values on their way from the pages to shared memory, and the queries there, for
// attention_pieces.cu.
#pragma once

#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/attention_work.cuh"

namespace tandem::ops::cuda::pieces {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStep = 64;                 // tokens
constexpr int kKeyTiles = kStep / 32;     // eight keys each, of one warp
constexpr int kWeightStride = kStep + 8;  // floats of a row of weights: four rows' pairs lie in different banks
// Tokens are looked up in the tables for so many steps at once, in several stages so that nothing waits for a load.
constexpr int kLookUpSteps = 4;
constexpr int kLookUp = kLookUpSteps * kStep;

template <int kDim, int kRowTiles, int kTiles>
struct Shape {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kTile = 32;        // tokens: 16 KB of heads of 256 dimensions
  static constexpr int kStages = kTiles;  // of the ring
  static constexpr int kStageBytes = kTile * kRowBytes;
  static constexpr int kWarpDims = kDim / kWarps;
  static constexpr int kColumnTiles = kWarpDims / 8;
  static constexpr int kInputSteps = kDim / 16;
  // Shared memory, in this order.
  static constexpr int kQueries = kStages * kStageBytes;
  static constexpr int kWeights = kQueries + kRows * kDim * 2;
  static constexpr int kPlaces = kWeights + kRows * kWeightStride * 4;
  static constexpr int kRowsOfPages = kPlaces + 2 * kLookUp * 8;
  static constexpr int kReduce = kRowsOfPages + 2 * kLookUp * 4;
  static constexpr int kBytes = kReduce + kWarps * kRows * 4;
};

template <typename S>
struct Block {
  const AttentionArgs& args;
  const Work& work;
  char* shared;
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  // The next tile to ask for.
  int ask_step = 0;
  int ask_tile = 0;  // keys, then values
  int ask_stage = 0;

  // Look-up under way: the list's tokens, then their pages.
  int64_t found_token[kLookUp / kThreads];
  int32_t found_page[kLookUp / kThreads];

  __device__ char* stage(int i) const { return shared + i * S::kStageBytes; }
  __device__ std::byte** places(int step) const {
    return reinterpret_cast<std::byte**>(shared + S::kPlaces) + step % (2 * kLookUpSteps) * kStep;
  }
  __device__ int* page_rows(int step) const {
    return reinterpret_cast<int*>(shared + S::kRowsOfPages) + step % (2 * kLookUpSteps) * kStep;
  }
  __device__ int length() const { return work.length(); }
  __device__ int steps() const { return (length() + kStep - 1) / kStep; }
  __device__ int tiles(int step) const { return (min(kStep, length() - step * kStep) + S::kTile - 1) / S::kTile; }

  // Finds where the tokens of kLookUpSteps steps lie: the page, or null, and the row in it; in three stages.
  __device__ __forceinline__ void find_tokens(int step) {
    const TokenList list(work.position, args.selection, work.first_column, args.kv.ratio);
#pragma unroll
    for (int i = 0; i < kLookUp / kThreads; ++i) {
      const int at = step * kStep + i * kThreads + static_cast<int>(threadIdx.x);
      found_token[i] = at < length() ? list.token(work.begin + at) : -1;
    }
  }
  __device__ __forceinline__ void find_pages() {
#pragma unroll
    for (int i = 0; i < kLookUp / kThreads; ++i) {
      found_page[i] = found_token[i] >= 0 ? work.run.block_table[found_token[i] / kPageTokens] : 0;
    }
  }
  __device__ __forceinline__ void keep_places(int step) {
#pragma unroll
    for (int i = 0; i < kLookUp / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      std::byte* page = found_token[i] >= 0 ? args.kv.pages + found_page[i] * args.kv.page_bytes : nullptr;
      places(step)[at] = page;
      page_rows(step)[at] = static_cast<int>(work.kv_head * kPageTokens + found_token[i] % kPageTokens);
    }
  }

  // Looks up where the first tokens lie.
  __device__ __forceinline__ void find_first() {
    find_tokens(0);
    find_pages();
  }
  __device__ void start_over() {
    await_copies<0>();
    ask_step = ask_tile = ask_stage = 0;
  }

  // Asks for the next tile, if there is one; closes a group of copies in any case.
  __device__ void ask() {
    if (ask_step < steps()) {
      const int count = tiles(ask_step);
      const bool values = ask_tile >= count;
      load<false>(ask_step, values ? ask_tile - count : ask_tile, values, stage(ask_stage), 0, S::kTile);
      if (++ask_tile == 2 * count) {
        ask_tile = 0;
        ++ask_step;
      }
      ask_stage = ask_stage + 1 == S::kStages ? 0 : ask_stage + 1;
    }
    commit_copies();
  }

  // Asks for the first tiles of a list all of which is known, before the kernels before this one have ended: for all
  // but the run's own tokens, which they may still write. More of the list comes closer meanwhile.
  __device__ void ask_early() {
    const int count = tiles(0);
    const int asks = min(S::kStages - 1, 2 * count);
#pragma unroll 1
    for (int i = 0; i < S::kStages - 1; ++i) {
      if (i < asks) load<true>(0, i % count, i >= count, stage(i), 0, old_rows(i % count));
      commit_copies();
    }
    ask_step = asks == 2 * count ? 1 : 0;
    ask_tile = asks == 2 * count ? 0 : asks;
    ask_stage = asks % S::kStages;
    if (threadIdx.x == 0 && asks < 2 * count) {
      prefetch_bytes(places(0)[0] + args.kv.values + page_rows(0)[0] * args.kv.row_bytes,
                     min(kStep, length()) * args.kv.row_bytes);
    }
  }
  // Afterwards, for the run's own. Returns whether there were any.
  __device__ bool ask_late() {
    const int count = tiles(0);
    if (old_rows(count - 1) >= S::kTile) return false;
#pragma unroll 1
    for (int i = 0; i < min(S::kStages - 1, 2 * count); ++i) {
      load<true>(0, i % count, i >= count, stage(i), old_rows(i % count), S::kTile);
    }
    commit_copies();
    return true;
  }
  // Of a tile of the first step, whose list is everything.
  __device__ int old_rows(int tile) const { return static_cast<int>(work.run.position - work.begin) - tile * S::kTile; }

  // Asks for a tile, or the rows from `from_row` to before `to_row` of one.
  template <bool kPart>
  __device__ __forceinline__ void load(int step, int tile, bool values, char* to, int from_row, int to_row) const {
    std::byte* const* const page = places(step) + tile * S::kTile;
    const int* const row = page_rows(step) + tile * S::kTile;
    const uint32_t base = shared_address(to);
    const int64_t part = values ? args.kv.values : 0;
    const int chunk = threadIdx.x % S::kChunks;
    const bool inside = chunk * 16 < args.kv.row_bytes;
    constexpr int rows_at_once = kThreads / S::kChunks;
    const int first = static_cast<int>(threadIdx.x) / S::kChunks;
    if (args.selection.counts == nullptr) {  // a step is one page's tokens side by side
      const int tokens = inside ? length() - step * kStep - tile * S::kTile : 0;
      const std::byte* from = page[0] + part + (row[0] + first) * args.kv.row_bytes + chunk * 16;
#pragma unroll
      for (int i = 0; i < S::kTile / rows_at_once; ++i) {
        const int r = first + i * rows_at_once;
        if (!kPart || (r >= from_row && r < to_row)) {
          copy_16(base + swizzled<S::kChunks>(r, chunk) * 16, r < tokens ? from : args.kv.pages, r < tokens);
        }
        from += rows_at_once * args.kv.row_bytes;
      }
    } else {
#pragma unroll
      for (int i = 0; i < S::kTile / rows_at_once; ++i) {
        const int r = first + i * rows_at_once;
        if (kPart && (r < from_row || r >= to_row)) continue;
        const bool valid = inside && page[r] != nullptr;
        const std::byte* from = valid ? page[r] + part + row[r] * args.kv.row_bytes + chunk * 16 : args.kv.pages;
        copy_16(base + swizzled<S::kChunks>(r, chunk) * 16, from, valid);
      }
    }
  }

  // Queries in BF16.
  __device__ __forceinline__ void load_queries() const {
    char* const to = shared + S::kQueries;
    constexpr int quads = S::kInputSteps * 4;
    constexpr int each = S::kRows * quads / kThreads;
    float4 q[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / quads;
      const int d = static_cast<int>(threadIdx.x) % quads * 4;
      const bool held = work.column_of(args, r) >= 0 && d < args.kv.head_dim;
      q[i] =
          held ? *reinterpret_cast<const float4*>(args.q + work.query_row(args, r) * args.kv.head_dim + d) : float4{};
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / quads;
      const int d = static_cast<int>(threadIdx.x) % quads * 4;
      *reinterpret_cast<uint2*>(to + swizzled<2 * S::kInputSteps>(r, d / 8) * 16 + d % 8 * 2) =
          make_uint2(pack_bf16(q[i].x, q[i].y), pack_bf16(q[i].z, q[i].w));
    }
  }
  __device__ void query_fragment(uint32_t (&a)[4], int row_tile, int step) const {
    const int r = 16 * row_tile + lane % 16;
    load_matrices(a, shared_address(shared + S::kQueries) + swizzled<2 * S::kInputSteps>(r, 2 * step + lane / 16) * 16);
  }
};

}  // namespace tandem::ops::cuda::pieces
