// Attention of few query rows on tensor cores: decoding, windows of drafts, and columns with blocks of their own.
//
// A block of four warps has one kv head of a run (or of one column with selected blocks) and all query rows that share
// it: 16 rows a tile, column by column. It works through its list in steps of 64 tokens, of which it reads the keys,
// then the values, in tiles through a ring of asynchronous copies that runs on across steps. Of the keys each warp
// takes 16 tokens, of the values a quarter of the dimensions. Weights pass between the warps in FP32 and are rounded to
// BF16 where they meet the values, with 8-bit values after their scales.
//
// No sum depends on which rows lie beside each other, on how many tiles of rows there are, or on how far the list goes
// on behind a row's own end: what a row does not see adds zeros.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStep = 64;                 // tokens
constexpr int kKeyTiles = kStep / 32;     // eight keys each, of one warp
constexpr int kWeightStride = kStep + 8;  // floats of a row of weights: four rows' pairs lie in different banks
// Tokens are looked up in the tables for so many steps at once, in several stages so that nothing waits for a load.
constexpr int kLookUpSteps = 4;
constexpr int kLookUp = kLookUpSteps * kStep;

template <KvType kType, int kDim, int kRowTiles>
struct Shape {
  static constexpr bool kCodes = kType == KvType::kInt8;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kRowBytes = kDim * (kCodes ? 1 : 2);
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kGroups = kDim / kScaleGroup;
  static constexpr int kTile = kCodes ? 64 : 32;  // tokens: 16 KB of heads of 256 dimensions
  static constexpr int kTiles = kStep / kTile;
  static constexpr int kStages = 3;
  static constexpr int kStageBytes = kTile * kRowBytes + (kCodes ? kTile * kGroups * 2 : 0);
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

// What one block works on.
struct Work {
  Run run;
  int64_t first_column;  // of the unit
  int64_t position;      // of that column
  int columns;           // of the unit that are no padding
  int kv_head;
  int first_row;  // of the unit's rows
  int64_t begin;  // of the list
  int64_t end;

  __device__ Work(const AttentionArgs& args, int rows_a_block) {
    const bool split = args.partial != nullptr;
    const bool chosen = args.selection.counts != nullptr;
    const int64_t unit = split ? blockIdx.z : blockIdx.x;
    first_column = chosen ? unit : unit * args.each;
    run = args.runs[first_column / args.each];
    const auto offset = static_cast<int>(first_column % args.each);
    position = run.position + offset;
    columns = chosen ? (offset < run.tokens ? 1 : 0) : static_cast<int>(run.tokens);
    kv_head = blockIdx.y % args.kv.kv_heads;
    first_row = blockIdx.y / args.kv.kv_heads * rows_a_block;
    begin = 0;
    end = 0;
    if (first_row >= columns * args.group) return;
    const int last_column = min(columns - 1, (first_row + rows_a_block - 1) / args.group);
    end = TokenList(position + last_column, args.selection, first_column, args.kv.ratio).count;
    if (!split) return;
    begin = piece_begin(piece());
    end = min(end, piece_begin(piece() + 1));
  }
  // The longest pieces come first.
  __device__ static int64_t piece() { return gridDim.x - 1 - blockIdx.x; }
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
  __device__ int length() const { return static_cast<int>(work.end - work.begin); }
  __device__ int steps() const { return (length() + kStep - 1) / kStep; }
  __device__ int tiles(int step) const {
    return S::kTiles == 1 ? 1 : (min(kStep, length() - step * kStep) + S::kTile - 1) / S::kTile;
  }

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

  // Asks for the next tile, if there is one; closes a group of copies in any case.
  __device__ void ask() {
    if (ask_step < steps()) {
      const int count = tiles(ask_step);
      const bool values = ask_tile >= count;
      load(ask_step, values ? ask_tile - count : ask_tile, values, stage(ask_stage));
      if (++ask_tile == 2 * count) {
        ask_tile = 0;
        ++ask_step;
      }
      ask_stage = ask_stage + 1 == S::kStages ? 0 : ask_stage + 1;
    }
    commit_copies();
  }

  __device__ void load(int step, int tile, bool values, char* to) const {
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
        copy_16(base + swizzled<S::kChunks>(r, chunk) * 16, r < tokens ? from : args.kv.pages, r < tokens);
        from += rows_at_once * args.kv.row_bytes;
      }
    } else {
#pragma unroll
      for (int i = 0; i < S::kTile / rows_at_once; ++i) {
        const int r = first + i * rows_at_once;
        const bool valid = inside && page[r] != nullptr;
        const std::byte* from = valid ? page[r] + part + row[r] * args.kv.row_bytes + chunk * 16 : args.kv.pages;
        copy_16(base + swizzled<S::kChunks>(r, chunk) * 16, from, valid);
      }
    }
    if constexpr (S::kCodes) {
      if (threadIdx.x < S::kTile)
        load_scales(page[threadIdx.x], row[threadIdx.x], values, to + S::kTile * S::kRowBytes);
    }
  }

  __device__ void load_scales(const std::byte* page, int row, bool values, char* to) const {
    const int groups = args.kv.groups();
    const int64_t part = args.kv.scales + (values ? args.kv.value_scales() : 0);
    const std::byte* from = page != nullptr ? page + part + static_cast<int64_t>(row) * groups * 2 : args.kv.pages;
    auto* scales = reinterpret_cast<uint16_t*>(to) + threadIdx.x * S::kGroups;
    if (S::kGroups == 4 && groups == 4) {
      copy_8(shared_address(scales), from, page != nullptr);
      return;
    }
    for (int g = 0; g < S::kGroups; ++g) {
      scales[g] = page != nullptr && g < groups ? reinterpret_cast<const uint16_t*>(from)[g] : 0;
    }
  }

  // Row r of the block as (column of the unit, query head of the group); -1 where there is none.
  __device__ int column_of(int r) const {
    const int row = work.first_row + r;
    return row < work.columns * args.group ? row / args.group : -1;
  }
  __device__ int64_t query_row(int r) const {
    const int row = work.first_row + r;
    return args.row(work.first_column + row / args.group, work.kv_head, row % args.group);
  }

  // Queries in BF16. With codes the inputs of each 16 are exchanged, as the words of four codes lie in the fragments:
  // 0 1 4 5 8 9 12 13, then 2 3 6 7 10 11 14 15.
  __device__ __forceinline__ void load_queries() const {
    char* const to = shared + S::kQueries;
    constexpr int quads = S::kInputSteps * 4;
    constexpr int each = S::kRows * quads / kThreads;
    float4 q[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / quads;
      const int d = static_cast<int>(threadIdx.x) % quads * 4;
      const bool held = column_of(r) >= 0 && d < args.kv.head_dim;
      q[i] = held ? *reinterpret_cast<const float4*>(args.q + query_row(r) * args.kv.head_dim + d) : float4{};
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / quads;
      const int d = static_cast<int>(threadIdx.x) % quads * 4;
      const uint2 packed = make_uint2(pack_bf16(q[i].x, q[i].y), pack_bf16(q[i].z, q[i].w));
      if constexpr (S::kCodes) {
        const int at = d / 16 * 16 + d % 16 / 4 * 2;
        char* row = to + at % 8 * 2;
        *reinterpret_cast<uint32_t*>(row + swizzled<2 * S::kInputSteps>(r, at / 8) * 16) = packed.x;
        *reinterpret_cast<uint32_t*>(row + swizzled<2 * S::kInputSteps>(r, at / 8 + 1) * 16) = packed.y;
      } else {
        *reinterpret_cast<uint2*>(to + swizzled<2 * S::kInputSteps>(r, d / 8) * 16 + d % 8 * 2) = packed;
      }
    }
  }
  __device__ void query_fragment(uint32_t (&a)[4], int row_tile, int step) const {
    const int r = 16 * row_tile + lane % 16;
    load_matrices(a, shared_address(shared + S::kQueries) + swizzled<2 * S::kInputSteps>(r, 2 * step + lane / 16) * 16);
  }
};

// Products of all query rows with the warp's keys of a tile of codes: scores[eight keys][row tile][4], before the
// softmax's scale. A group's sum is multiplied by the scale of its key.
template <typename S, int kRowTiles, typename Queries>
__device__ __forceinline__ void score_codes(const Block<S>& block, const char* tile, const Queries& queries,
                                            float (&scores)[kKeyTiles][kRowTiles][4]) {
  const uint32_t base = shared_address(tile);
  const auto* scales = reinterpret_cast<const __half*>(tile + S::kTile * S::kRowBytes);
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {
    uint32_t words[kKeyTiles][4];
    float sums[kKeyTiles][kRowTiles][4] = {};
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const int key = 16 * block.warp + 8 * n + block.lane % 8;
      load_matrices(words[n], base + swizzled<S::kChunks>(key, 4 * g + block.lane / 8) * 16);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        uint32_t a[4];
        queries(a, m, 4 * g + s);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          multiply_add(sums[n][m], a, codes_to_bf16<kBytes01>(words[n][s]), codes_to_bf16<kBytes23>(words[n][s]));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const int mine = 16 * block.warp + 8 * n + 2 * (block.lane % 4);
      const float first = __half2float(scales[mine * S::kGroups + g]);
      const float second = __half2float(scales[(mine + 1) * S::kGroups + g]);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[n][m][i] = fmaf(sums[n][m][i], i % 2 == 0 ? first : second, scores[n][m][i]);
        }
      }
    }
  }
}

// The same of eight keys in BF16.
template <typename S, int kRowTiles, typename Queries>
__device__ __forceinline__ void score_tile(const Block<S>& block, const char* tile, const Queries& queries,
                                           float (&scores)[kRowTiles][4]) {
  const uint32_t base = shared_address(tile);
  const int key = 8 * block.warp + block.lane % 8;
  float odd[kRowTiles][4] = {};  // a second chain of products
#pragma unroll
  for (int s = 0; s < S::kInputSteps; s += 2) {
    uint32_t b[4];
    load_matrices(b, base + swizzled<S::kChunks>(key, 2 * s + block.lane / 8) * 16);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      uint32_t a[4];
      queries(a, m, s);
      multiply_add(scores[m], a, b[0], b[1]);
      queries(a, m, s + 1);
      multiply_add(odd[m], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[m][i] += odd[m][i];
  }
}

// The weights of 16 tokens as the left operand, times the scales of their values where those are codes.
template <typename S>
__device__ __forceinline__ void weight_fragment(const Block<S>& block, const float* weights, const float (&scale)[4],
                                                uint32_t (&a)[4]) {
  const float* at = weights + block.lane / 4 * kWeightStride + 2 * (block.lane % 4);
  const float2 p[4] = {*reinterpret_cast<const float2*>(at), *reinterpret_cast<const float2*>(at + 8 * kWeightStride),
                       *reinterpret_cast<const float2*>(at + 8),
                       *reinterpret_cast<const float2*>(at + 8 * kWeightStride + 8)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = S::kCodes ? pack_bf16(p[i].x * scale[i / 2 * 2], p[i].y * scale[i / 2 * 2 + 1]) : pack_bf16(p[i].x, p[i].y);
  }
}

// sums += weights * values of a tile, for the warp's dimensions. With codes the column tiles come in pairs: the even
// and the odd ones of 16 dimensions.
template <typename S, int kRowTiles>
__device__ __forceinline__ void add_values(const Block<S>& block, const char* tile, const float* weights,
                                           float (&sums)[kRowTiles][S::kColumnTiles][4]) {
  const uint32_t base = shared_address(tile);
  const int part = block.lane / 8;
#pragma unroll
  for (int s = 0; s < S::kTile / 16; ++s) {
    float scale[4] = {1.0F, 1.0F, 1.0F, 1.0F};
    if constexpr (S::kCodes) {
      const auto* scales = reinterpret_cast<const __half*>(tile + S::kTile * S::kRowBytes);
      const int group = block.warp * S::kWarpDims / kScaleGroup;
      const int token = 16 * s + 2 * (block.lane % 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) scale[i] = __half2float(scales[(token + i / 2 * 8 + i % 2) * S::kGroups + group]);
    }
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      weight_fragment(block, weights + 16 * m * kWeightStride + 16 * s, scale, a[m]);
    }
    const int token = 16 * s + block.lane % 16;
    const int first_chunk = block.warp * (S::kChunks / kWarps);
    constexpr int chunks = S::kChunks / kWarps;
#pragma unroll
    for (int c = 0; c < chunks; c += 2) {
      // The last of an odd number of chunks is read twice.
      const int chunk = first_chunk + min(c + part / 2, chunks - 1);
      uint32_t words[4];
      load_transposed(words, base + swizzled<S::kChunks>(token, chunk) * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (c + half >= chunks) continue;
        const uint32_t low = words[2 * half];
        const uint32_t high = words[2 * half + 1];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          if constexpr (S::kCodes) {
            multiply_add(sums[m][2 * (c + half)], a[m], codes_to_bf16<kBytes02>(low), codes_to_bf16<kBytes02>(high));
            multiply_add(sums[m][2 * (c + half) + 1], a[m], codes_to_bf16<kBytes13>(low),
                         codes_to_bf16<kBytes13>(high));
          } else {
            multiply_add(sums[m][c + half], a[m], low, high);
          }
        }
      }
    }
  }
}

// Softmax of rows lane / 4 and lane / 4 + 8 of each tile: the largest score, and the warp's part of the sum.
template <int kRowTiles>
struct RowStates {
  float largest[kRowTiles][2];
  float sum[kRowTiles][2];
  int limit[kRowTiles][2];  // the last place of the list that the row sees

  template <typename S>
  __device__ void start(const Block<S>& block) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int column = block.column_of(16 * m + 8 * h + block.lane / 4);
        largest[m][h] = -INFINITY;
        sum[m][h] = 0;
        const int64_t last = block.args.selection.counts != nullptr ? block.work.end - 1 : block.work.position + column;
        limit[m][h] = column < 0 ? -1 : static_cast<int>(last);
      }
    }
  }
};

// The first of the warp's keys in eight of a step.
template <typename S>
__device__ __forceinline__ int first_key(int warp, int n) {
  return S::kCodes ? 16 * warp + 8 * n : 32 * n + 8 * warp;
}

// Turns a step's scores into weights, and brings what was summed before to the new largest scores.
template <typename S, int kRowTiles>
__device__ __forceinline__ void soften(const Block<S>& block, int step, float (&scores)[kKeyTiles][kRowTiles][4],
                                       RowStates<kRowTiles>& states, float (&sums)[kRowTiles][S::kColumnTiles][4]) {
  auto* reduce = reinterpret_cast<float*>(block.shared + S::kReduce);
  const float unit = block.args.scale * 1.4426950408889634F;
  const int first = static_cast<int>(block.work.begin) + step * kStep + 2 * (block.lane % 4);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = first + first_key<S>(block.warp, n) + i % 2 <= states.limit[m][i / 2];
        scores[n][m][i] = seen ? scores[n][m][i] * unit : -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], scores[n][m][i]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xFFFFFFFFu, most[h], 1));
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xFFFFFFFFu, most[h], 2));
      if (block.lane % 4 == 0) reduce[block.warp * S::kRows + 16 * m + 8 * h + block.lane / 4] = most[h];
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float together = states.largest[m][h];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        together = fmaxf(together, reduce[w * S::kRows + 16 * m + 8 * h + block.lane / 4]);
      }
      const float base = together == -INFINITY ? 0.0F : together;
      const float before = power_of_two(states.largest[m][h] - base);
      states.largest[m][h] = together;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          scores[n][m][i] = power_of_two(scores[n][m][i] - base);
          sum += scores[n][m][i];
        }
      }
      states.sum[m][h] = fmaf(states.sum[m][h], before, sum);
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        sums[m][n][2 * h] *= before;
        sums[m][n][2 * h + 1] *= before;
      }
    }
  }
}

template <typename S, int kRowTiles>
__device__ __forceinline__ void put_weights(const Block<S>& block, const float (&scores)[kKeyTiles][kRowTiles][4],
                                            float* weights) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      float* at =
          weights + (16 * m + block.lane / 4) * kWeightStride + first_key<S>(block.warp, n) + 2 * (block.lane % 4);
      *reinterpret_cast<float2*>(at) = make_float2(scores[n][m][0], scores[n][m][1]);
      *reinterpret_cast<float2*>(at + 8 * kWeightStride) = make_float2(scores[n][m][2], scores[n][m][3]);
    }
  }
}

// Writes the answers, or the piece's part of them.
template <typename S, int kRowTiles>
__device__ void finish(const Block<S>& block, const RowStates<kRowTiles>& states,
                       const float (&sums)[kRowTiles][S::kColumnTiles][4]) {
  const AttentionArgs& args = block.args;
  auto* reduce = reinterpret_cast<float*>(block.shared + S::kReduce);
  const int dim = args.kv.head_dim;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = states.sum[m][h];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      if (block.lane % 4 == 0) reduce[block.warp * S::kRows + 16 * m + 8 * h + block.lane / 4] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = 16 * m + 8 * h + block.lane / 4;
      if (block.column_of(r) < 0) continue;
      const float* part = reduce + r;
      const float sum = ((part[0] + part[S::kRows]) + part[2 * S::kRows]) + part[3 * S::kRows];
      const int64_t row = block.query_row(r);
      float* to = args.out + row * dim;
      float divisor = sum;
      if (args.partial != nullptr) {
        const int64_t at = row * args.pieces + Work::piece();
        to = args.partial + at * dim;
        divisor = 1.0F;
        if (block.warp == 0 && block.lane % 4 == 0) args.states[at] = make_float2(states.largest[m][h], sum);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        // With codes a pair of column tiles has four neighbours here: two for each.
        const int d = block.warp * S::kWarpDims +
                      (S::kCodes ? n / 2 * 16 + 4 * (block.lane % 4) + n % 2 * 2 : 8 * n + 2 * (block.lane % 4));
        float2 pair = make_float2(sums[m][n][2 * h], sums[m][n][2 * h + 1]);
        if constexpr (S::kCodes)
          pair = make_float2(sums[m][n / 2 * 2][2 * h + n % 2], sums[m][n / 2 * 2 + 1][2 * h + n % 2]);
        if (d < dim) *reinterpret_cast<float2*>(to + d) = make_float2(pair.x / divisor, pair.y / divisor);
      }
    }
  }
}

// Answers of padding, where no merge writes them.
__device__ void zero_padding(const AttentionArgs& args, const Work& work) {
  if (args.partial != nullptr || work.first_row != 0) return;
  const int all = args.selection.counts != nullptr ? 1 : args.each;
  const int width = args.group * args.kv.head_dim;
  for (int c = work.columns; c < all; ++c) {
    float* out = args.out + args.row(work.first_column + c, work.kv_head, 0) * args.kv.head_dim;
    for (int i = threadIdx.x; i < width; i += kThreads) out[i] = 0.0F;
  }
}

template <KvType kType, int kDim, int kRowTiles>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 ? 3 : 2)
    attend_pieces_kernel(const __grid_constant__ AttentionArgs args) {
  follow();
  using S = Shape<kType, kDim, kRowTiles>;
  extern __shared__ __align__(128) char shared[];
  const Work work(args, S::kRows);
  zero_padding(args, work);
  if (work.begin >= work.end) return;
  Block<S> block{args, work, shared};
  block.find_tokens(0);
  block.find_pages();
  block.load_queries();
  block.keep_places(0);
  __syncthreads();
  for (int i = 0; i < S::kStages - 1; ++i) block.ask();

  // One tile of rows keeps its queries in registers, more read them again for every tile of keys.
  uint32_t kept[kRowTiles == 1 ? S::kInputSteps : 1][4];
  if constexpr (kRowTiles == 1) {
#pragma unroll
    for (int s = 0; s < S::kInputSteps; ++s) block.query_fragment(kept[s], 0, s);
  }
  const auto queries = [&](uint32_t(&a)[4], int m, int s) {
    if constexpr (kRowTiles == 1) {
      for (int i = 0; i < 4; ++i) a[i] = kept[s][i];
    } else {
      block.query_fragment(a, m, s);
    }
  };
  float sums[kRowTiles][S::kColumnTiles][4] = {};
  RowStates<kRowTiles> states;
  states.start(block);
  int stage = 0;
  const auto next_tile = [&] {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    block.ask();
    const char* tile = block.stage(stage);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    return tile;
  };
  auto* weights = reinterpret_cast<float*>(shared + S::kWeights);
  for (int step = 0; step < block.steps(); ++step) {
    // Ahead of the copies, which are at most one step before the products.
    const int next = step / kLookUpSteps * kLookUpSteps + kLookUpSteps;
    if (next < block.steps()) {
      if (step % kLookUpSteps == 0) block.find_tokens(next);
      if (step % kLookUpSteps == 1) block.find_pages();
      if (step % kLookUpSteps == 2) block.keep_places(next);
    }
    float scores[kKeyTiles][kRowTiles][4] = {};
    const int tiles = block.tiles(step);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      if (t >= tiles) continue;
      const char* tile = next_tile();
      if constexpr (S::kCodes) {
        score_codes<S, kRowTiles>(block, tile, queries, scores);
      } else {
        score_tile<S, kRowTiles>(block, tile, queries, scores[t]);
      }
    }
    soften<S, kRowTiles>(block, step, scores, states, sums);
    put_weights<S, kRowTiles>(block, scores, weights);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      const char* tile = next_tile();
      add_values<S, kRowTiles>(block, tile, weights + t * S::kTile, sums);
    }
  }
  finish<S, kRowTiles>(block, states, sums);
}

template <KvType kType, int kDim, int kRowTiles>
void launch(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  using S = Shape<kType, kDim, kRowTiles>;
  static_assert(S::kBytes <= 96 * 1024);
  const auto kernel = attend_pieces_kernel<kType, kDim, kRowTiles>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  const auto heads = static_cast<unsigned>(args.kv.kv_heads * ((grid.rows + S::kRows - 1) / S::kRows));
  const bool split = args.partial != nullptr;
  const dim3 blocks(static_cast<unsigned>(split ? args.pieces : grid.units), heads,
                    static_cast<unsigned>(split ? grid.units : 1));
  launch_following(context, kernel, blocks, kThreads, S::kBytes, args);
  TANDEM_CUDA_LAUNCHED("attend_pieces");
}

template <KvType kType, int kDim>
void launch_rows(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (grid.rows <= 16) {
    launch<kType, kDim, 1>(context, grid, args);
  } else if (grid.rows <= 32) {
    launch<kType, kDim, 2>(context, grid, args);
  } else {
    launch<kType, kDim, 3>(context, grid, args);
  }
}

template <KvType kType>
void launch_type(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.kv.head_dim <= 64) {
    launch_rows<kType, 64>(context, grid, args);
  } else {
    launch_rows<kType, 256>(context, grid, args);
  }
}

}  // namespace

void attend_pieces(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.kv.type == KvType::kInt8) {
    launch_type<KvType::kInt8>(context, grid, args);
  } else {
    launch_type<KvType::kBF16>(context, grid, args);
  }
}

}  // namespace tandem::ops::cuda
