// Attention of few query rows on tensor cores: decoding, windows of drafts, and columns with blocks of their own.
//
// A block of four warps has one kv head of a run (or of one column with selected blocks) and all query rows that share
// it: 16 rows a tile, column by column. It works through its list in steps of 64 tokens, of which it reads the keys,
// then the values, in tiles through a ring of asynchronous copies that runs on across steps. Of the keys each warp
// takes 16 tokens, of the values a quarter of the dimensions. Weights pass between the warps in FP32 and are rounded to
// BF16 where they meet the values. Pages are of BF16; attention_codes.cu has those of 8 bits.
//
// No sum depends on which rows lie beside each other, on how many tiles of rows there are, or on how far the list goes
// on behind a row's own end: what a row does not see adds zeros.
#include <cuda_bf16.h>

#include "ops/cuda/attention_answer.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_piece_tiles.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

using namespace pieces;  // NOLINT(google-build-using-namespace)

// Products of all query rows with eight keys of a tile, before the softmax's scale.
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

// The weights of 16 tokens as the left operand.
__device__ __forceinline__ void weight_fragment(const float* weights, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  const float* at = weights + lane / 4 * kWeightStride + 2 * (lane % 4);
  const float2 p[4] = {*reinterpret_cast<const float2*>(at), *reinterpret_cast<const float2*>(at + 8 * kWeightStride),
                       *reinterpret_cast<const float2*>(at + 8),
                       *reinterpret_cast<const float2*>(at + 8 * kWeightStride + 8)};
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack_bf16(p[i].x, p[i].y);
}

// sums += weights * values of a tile, for the warp's dimensions.
template <typename S, int kRowTiles>
__device__ __forceinline__ void add_values(const Block<S>& block, const char* tile, const float* weights,
                                           float (&sums)[kRowTiles][S::kColumnTiles][4]) {
  const uint32_t base = shared_address(tile);
  const int part = block.lane / 8;
#pragma unroll
  for (int s = 0; s < S::kTile / 16; ++s) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      weight_fragment(weights + 16 * m * kWeightStride + 16 * s, a[m]);
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
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add(sums[m][c + half], a[m], words[2 * half], words[2 * half + 1]);
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
        largest[m][h] = -INFINITY;
        sum[m][h] = 0;
        limit[m][h] = block.work.limit(block.args, 16 * m + 8 * h + block.lane / 4);
      }
    }
  }
};

// The first of the warp's keys in eight of a step.
__device__ __forceinline__ int first_key(int warp, int n) {
  return 32 * n + 8 * warp;
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
        const bool seen = first + first_key(block.warp, n) + i % 2 <= states.limit[m][i / 2];
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
      float* at = weights + (16 * m + block.lane / 4) * kWeightStride + first_key(block.warp, n) + 2 * (block.lane % 4);
      *reinterpret_cast<float2*>(at) = make_float2(scores[n][m][0], scores[n][m][1]);
      *reinterpret_cast<float2*>(at + 8 * kWeightStride) = make_float2(scores[n][m][2], scores[n][m][3]);
    }
  }
}

// Writes the answers, or the piece's part of them.
template <typename S, int kRowTiles>
__device__ void finish(const Block<S>& block, const RowStates<kRowTiles>& states,
                       const float (&sums)[kRowTiles][S::kColumnTiles][4], bool for_good) {
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
      if (!for_good || block.work.column_of(args, r) < 0) continue;
      const float* part = reduce + r;
      const float sum = ((part[0] + part[S::kRows]) + part[2 * S::kRows]) + part[3 * S::kRows];
      const int64_t row = block.work.query_row(args, r);
      float* to = args.out + row * dim;
      float factor = 1.0F / sum;
      if (args.partial != nullptr) {
        const int64_t at = row * args.pieces + block.work.piece;
        to = args.partial + at * dim;
        factor = 1.0F;
        if (block.warp == 0 && block.lane % 4 == 0) args.states[at] = make_float2(states.largest[m][h], sum);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        const int d = block.warp * S::kWarpDims + 8 * n + 2 * (block.lane % 4);
        if (d >= dim) continue;
        *reinterpret_cast<float2*>(to + d) = make_float2(sums[m][n][2 * h] * factor, sums[m][n][2 * h + 1] * factor);
      }
    }
  }
  if (args.partial != nullptr) return;
  multiply_gates(args, S::kRows, [&](int r) {
    return block.work.column_of(args, r) >= 0 ? block.work.query_row(args, r) : int64_t{-1};
  });
}

// Of a grid of pieces the first blocks mostly begin long before the kernel before has ended: they rehearse
// (follow.cuh), and bring the instructions closer for the others, too.
constexpr unsigned kEarlyBlocks = 8;

// Works through a piece or list, of which the first tiles were asked for; unless `for_good`, through one step of
// whatever lies in shared memory.
template <typename S, int kRowTiles>
__device__ __forceinline__ void attend(Block<S>& block, bool for_good) {
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
  auto* weights = reinterpret_cast<float*>(block.shared + S::kWeights);
  for (int step = 0; step < (for_good ? block.steps() : 1); ++step) {
    // Ahead of the copies, which are at most one step before the products.
    const int next = step / kLookUpSteps * kLookUpSteps + kLookUpSteps;
    if (for_good && next < block.steps()) {
      if (step % kLookUpSteps == 0) block.find_tokens(next);
      if (step % kLookUpSteps == 1) block.find_pages();
      if (step % kLookUpSteps == 2) block.keep_places(next);
    }
    float scores[kKeyTiles][kRowTiles][4] = {};
    const int tiles = for_good ? block.tiles(step) : kKeyTiles;
    // Keys, then values. Not unrolled: the instructions that ask for tiles are many.
#pragma unroll 1
    for (int t = 0; t < 2 * tiles; ++t) {
      await_copies<S::kStages - 2>();
      __syncthreads();
      if (for_good) block.ask();
      const char* tile = block.stage(stage);
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
      if (t >= tiles) {
        add_values<S, kRowTiles>(block, tile, weights + (t - tiles) * S::kTile, sums);
        continue;
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        if (t == n) score_tile<S, kRowTiles>(block, tile, queries, scores[n]);
      }
      if (t + 1 < tiles) continue;
      soften<S, kRowTiles>(block, step, scores, states, sums);
      put_weights<S, kRowTiles>(block, scores, weights);
    }
  }
  finish<S, kRowTiles>(block, states, sums, for_good);
}

template <int kDim, int kRowTiles, int kStages>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 && kStages == 3 ? 3 : 2)
    attend_pieces_kernel(const __grid_constant__ AttentionArgs args, const __grid_constant__ AttentionGrid grid) {
  let_next_start();
  using S = Shape<kDim, kRowTiles, kStages>;
  extern __shared__ __align__(128) char shared[];
  Work work(args, grid, S::kRows);
  const bool early = work.known && work.begin < work.end;
  Block<S> block{args, work, shared};
  if (early) {
    block.find_first();
    block.keep_places(0);
    __syncthreads();
    block.ask_early();
  }
  bool asked = early;
  constexpr bool rehearses = kRowTiles == 1 && kStages == 4;  // more rows have no registers left for it
#pragma unroll 1
  for (int round = rehearses && blockIdx.x < kEarlyBlocks ? 0 : 1; round < 2; ++round) {
    bool for_good = true;
    if constexpr (rehearses) {
      for_good = begin_round(round);
    } else {
      await_previous();
    }
    if (for_good) {
      if (!work.known) work.find_piece(args);
      work.zero_padding(args);
    }
#pragma unroll 1
    while (true) {
      if (!for_good || work.begin < work.end) {
        if (for_good) {
          bool late = false;
          if (asked) {
            late = block.ask_late();
          } else {
            block.find_first();
          }
          block.load_queries();
          if (!asked) block.keep_places(0);
          if (late) await_copies<0>();
        } else {
          await_copies<0>();
        }
        __syncthreads();
        if (!asked && for_good) {
#pragma unroll 1
          for (int i = 0; i < S::kStages - 1; ++i) block.ask();
        }
        attend<S, kRowTiles>(block, for_good);
        __syncthreads();  // nobody reads anything of this piece or rehearsal any more
      }
      if (!for_good || !work.has_more_columns()) break;
      work.find_piece(args);
      block.start_over();
      asked = false;
    }
  }
}

template <int kDim, int kRowTiles, int kStages>
void launch(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  using S = Shape<kDim, kRowTiles, kStages>;
  static_assert(S::kBytes <= 96 * 1024);
  const auto kernel = attend_pieces_kernel<kDim, kRowTiles, kStages>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  launch_following(context, kernel, work_blocks(args, grid, S::kRows), kThreads, S::kBytes, args, grid);
  TANDEM_CUDA_LAUNCHED("attend_pieces");
}

template <int kDim>
void launch_rows(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (grid.rows <= 16) {
    // Of pieces two blocks are on a multiprocessor, which a longer ring keeps busy; of whole lists as many as fit.
    if (args.partial != nullptr) return launch<kDim, 1, 4>(context, grid, args);
    launch<kDim, 1, 3>(context, grid, args);
  } else if (grid.rows <= 32) {
    launch<kDim, 2, 3>(context, grid, args);
  } else {
    launch<kDim, 3, 3>(context, grid, args);
  }
}

}  // namespace

void attend_pieces(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.kv.head_dim <= 64) {
    launch_rows<64>(context, grid, args);
  } else {
    launch_rows<256>(context, grid, args);
  }
}

}  // namespace tandem::ops::cuda
