// Attention of many columns of a run over everything up to each, on tensor cores.
//
// A block of eight warps (of four where it may not have enough shared memory) has 16 query rows a warp: columns, each
// with the query heads that share one kv head. It goes through the pages from the first: scores of 64 keys, running
// softmax in FP32, weights rounded to BF16, values. Each warp has its rows whole, so nothing is summed across warps; a
// row's numbers depend on its position alone. Keys of a page are fetched while the values before them are summed, and
// values while keys are. 8-bit keys and values come as they are, and are multiplied by their scales and rounded to BF16
// into the one tile that products read.
#include <cuda_bf16.h>

#include "numeric/f16.h"
#include "ops/cuda/attention_answer.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_mma.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kTile = kPageTokens;
constexpr int kKeyTiles = kTile / 8;

template <KvType kType, int kDim, int kWarps>
struct Shape {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kWarps;
  static constexpr bool kCodes = kType == KvType::kInt8;
  static constexpr int kInputSteps = kDim / 16;
  static constexpr int kColumnTiles = kDim / 8;
  static constexpr int kChunks = kDim / 8;  // of a row in BF16
  static constexpr int kTileBytes = kTile * kDim * 2;
  static constexpr int kGroups = kDim / kScaleGroup;
  static constexpr int kRawBytes = kTile * kDim + kTile * kGroups * 2;
  // Shared memory: queries, then keys and values in BF16; or with codes one tile in BF16, then keys and values as they
  // come.
  static constexpr int kKeys = kRows * kDim * 2;
  static constexpr int kValues = kCodes ? kKeys : kKeys + kTileBytes;
  static constexpr int kRawKeys = kKeys + kTileBytes;
  static constexpr int kRawValues = kRawKeys + kRawBytes;
  static constexpr int kBytes = kCodes ? kRawValues + kRawBytes : kValues + kTileBytes;
};

struct Work {
  Run run;
  int64_t first_column;
  int kv_head;
  int first_row;
  int rows;  // of the run, padding apart
  int last;  // the last token that a row of the block sees

  __device__ Work(const AttentionArgs& args, int rows_a_block)
      : run(args.runs[blockIdx.z]),
        first_column(static_cast<int64_t>(blockIdx.z) * args.each),
        kv_head(blockIdx.y),
        first_row(static_cast<int>(gridDim.x - 1 - blockIdx.x) * rows_a_block),  // those that see most come first
        rows(static_cast<int>(run.tokens) * args.group),
        last(static_cast<int>(run.position) + (min(rows, first_row + rows_a_block) - 1) / args.group) {}
};

template <typename S>
struct Block {
  const AttentionArgs& args;
  const Work& work;
  char* shared;
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;

  // Asks for the keys or values of a page; rows behind the last visible token become zeros.
  __device__ void ask(int page, bool values) const {
    const int tokens = work.last + 1 - page * kTile;
    if (tokens > 0) {
      const std::byte* base = args.kv.pages + work.run.block_table[page] * args.kv.page_bytes;
      const std::byte* from = base + args.kv.key_offset(work.kv_head, 0) + (values ? args.kv.values : 0);
      char* to = shared + (S::kCodes ? (values ? S::kRawValues : S::kRawKeys) : (values ? S::kValues : S::kKeys));
      constexpr int chunks = S::kCodes ? S::kChunks / 2 : S::kChunks;
      constexpr int rows_at_once = S::kThreads / chunks;
      const int chunk = threadIdx.x % chunks;
#pragma unroll 8
      for (int i = 0; i < kTile / rows_at_once; ++i) {
        const int r = static_cast<int>(threadIdx.x) / chunks + i * rows_at_once;
        const bool valid = r < tokens && chunk * 16 < args.kv.row_bytes;
        const int at = S::kCodes ? r * chunks + chunk : swizzled<chunks>(r, chunk);
        copy_16(shared_address(to + at * 16), valid ? from + r * args.kv.row_bytes + chunk * 16 : base, valid);
      }
      if constexpr (S::kCodes) ask_scales(base, tokens, values, to + kTile * kDimBytes());
    }
    commit_copies();
  }
  __device__ static constexpr int kDimBytes() { return S::kGroups * kScaleGroup; }

  __device__ void ask_scales(const std::byte* base, int tokens, bool values, char* to) const {
    const int r = threadIdx.x;
    if (r >= kTile) return;
    const std::byte* from = base + args.kv.scale_offset(work.kv_head, 0) + (values ? args.kv.value_scales() : 0);
    const int groups = args.kv.groups();
    auto* scales = reinterpret_cast<uint16_t*>(to) + r * S::kGroups;
    if (S::kGroups == 4 && groups == 4) {
      copy_8(shared_address(scales), from + r * 8, r < tokens);
      return;
    }
    for (int g = 0; g < S::kGroups; ++g) {
      scales[g] = r < tokens && g < groups ? reinterpret_cast<const uint16_t*>(from)[r * groups + g] : 0;
    }
  }

  // Codes times scales in BF16: from where they came to the tile of products. A code becomes 32768 + 128 + code in
  // FP32, and one exact fused operation takes that off again.
  __device__ void decode(const char* raw) const {
    constexpr int chunks = S::kChunks / 2;
    const auto* scales = reinterpret_cast<const uint16_t*>(raw + kTile * kDimBytes());
#pragma unroll 2
    for (int i = threadIdx.x; i < kTile * chunks; i += S::kThreads) {
      const int r = i / chunks;
      const int chunk = i % chunks;
      const uint4 words = *reinterpret_cast<const uint4*>(raw + i * 16);
      const float scale = numeric::f16_to_float(scales[r * S::kGroups + chunk * 16 / kScaleGroup]);
      uint32_t out[8];
      decode_word(words.x, scale, out);
      decode_word(words.y, scale, out + 2);
      decode_word(words.z, scale, out + 4);
      decode_word(words.w, scale, out + 6);
      const bool swap = (chunk / 4) % 2 != 0;  // eight neighbours then write to different banks
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool high = (h != 0) != swap;
        char* to = shared + S::kKeys + swizzled<S::kChunks>(r, 2 * chunk + (high ? 1 : 0)) * 16;
        *reinterpret_cast<uint4*>(to) =
            high ? make_uint4(out[4], out[5], out[6], out[7]) : make_uint4(out[0], out[1], out[2], out[3]);
      }
    }
  }
  __device__ static void decode_word(uint32_t codes, float scale, uint32_t* out) {
    const uint32_t raised = codes ^ 0x80808080u;
    const float offset = -32896.0F * scale;
    const float a = fmaf(__uint_as_float(__byte_perm(raised, 0x00004700u, 0x5404)), scale, offset);
    const float b = fmaf(__uint_as_float(__byte_perm(raised, 0x00004700u, 0x5414)), scale, offset);
    const float c = fmaf(__uint_as_float(__byte_perm(raised, 0x00004700u, 0x5424)), scale, offset);
    const float d = fmaf(__uint_as_float(__byte_perm(raised, 0x00004700u, 0x5434)), scale, offset);
    out[0] = pack_bf16(a, b);
    out[1] = pack_bf16(c, d);
  }

  __device__ int64_t query_row(int r) const {
    const int row = work.first_row + r;
    return args.row(work.first_column + row / args.group, work.kv_head, row % args.group);
  }
  __device__ void load_queries() const {
    constexpr int pairs = S::kInputSteps * 8;
    for (int i = threadIdx.x; i < S::kRows * pairs; i += S::kThreads) {
      const int r = i / pairs;
      const int d = i % pairs * 2;
      float2 q{0.0F, 0.0F};
      if (work.first_row + r < work.rows && d < args.kv.head_dim) {
        q = *reinterpret_cast<const float2*>(args.q + query_row(r) * args.kv.head_dim + d);
      }
      *reinterpret_cast<uint32_t*>(shared + swizzled<S::kChunks>(r, d / 8) * 16 + d % 8 * 2) = pack_bf16(q.x, q.y);
    }
  }

  // scores[n] += the warp's 16 rows times keys 8 n and following.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kKeyTiles][4]) const {
    const uint32_t queries = shared_address(shared);
    const uint32_t keys = shared_address(shared + S::kKeys);
#pragma unroll
    for (int s = 0; s < S::kInputSteps; ++s) {
      uint32_t a[4];
      load_matrices(a, queries + swizzled<S::kChunks>(16 * warp + lane % 16, 2 * s + lane / 16) * 16);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        load_matrices(b, keys + swizzled<S::kChunks>(8 * (n + lane / 16) + lane % 8, 2 * s + lane / 8 % 2) * 16);
        multiply_add(scores[n], a, b[0], b[1]);
        multiply_add(scores[n + 1], a, b[2], b[3]);
      }
    }
  }

  // sums += weights times the tile of values.
  __device__ __forceinline__ void multiply_values(const float (&weights)[kKeyTiles][4],
                                                  float (&sums)[S::kColumnTiles][4]) const {
    const uint32_t values = shared_address(shared + S::kValues);
#pragma unroll
    for (int s = 0; s < kTile / 16; ++s) {
      const uint32_t a[4] = {pack_bf16(weights[2 * s][0], weights[2 * s][1]),
                             pack_bf16(weights[2 * s][2], weights[2 * s][3]),
                             pack_bf16(weights[2 * s + 1][0], weights[2 * s + 1][1]),
                             pack_bf16(weights[2 * s + 1][2], weights[2 * s + 1][3])};
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; n += 2) {
        uint32_t b[4];
        load_transposed(b, values + swizzled<S::kChunks>(16 * s + lane % 16, n + lane / 16) * 16);
        multiply_add(sums[n], a, b[0], b[1]);
        multiply_add(sums[n + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void finish(const float (&sum)[2], const float (&sums)[S::kColumnTiles][4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = sum[h];
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      const int r = 16 * warp + 8 * h + lane / 4;
      if (work.first_row + r >= args.each * args.group) continue;
      const bool padding = work.first_row + r >= work.rows;
      const int64_t row = query_row(r);
      const float factor = 1.0F / total;
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        const int d = 8 * n + 2 * (lane % 4);
        if (d >= args.kv.head_dim) continue;
        *reinterpret_cast<float2*>(args.out + row * args.kv.head_dim + d) =
            padding ? float2{} : make_float2(sums[n][2 * h] * factor, sums[n][2 * h + 1] * factor);
      }
    }
    multiply_gates(args, S::kRows, [&](int r) { return work.first_row + r < work.rows ? query_row(r) : int64_t{-1}; });
  }
};

// Rows lane / 4 and lane / 4 + 8 of the warp.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // the lane's part
  int limit[2];
  float unit;

  // Scores to weights; `before` is what earlier sums are to be multiplied by.
  __device__ __forceinline__ void soften(int first, float (&scores)[kKeyTiles][4], float (&before)[2]) {
    const bool all = first + kTile - 1 <= min(limit[0], limit[1]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = largest[h];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          const int token = first + 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2;
          scores[n][i] = all || token <= limit[h] ? scores[n][i] * unit : -INFINITY;
          most = fmaxf(most, scores[n][i]);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
      const float base = most == -INFINITY ? 0.0F : most;
      before[h] = power_of_two(largest[h] - base);
      largest[h] = most;
      float here = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) {
          scores[n][i] = power_of_two(scores[n][i] - base);
          here += scores[n][i];
        }
      }
      sum[h] = fmaf(sum[h], before[h], here);
    }
  }
};

template <KvType kType, int kDim, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 8 / kWarps)
    attend_prefill_kernel(const __grid_constant__ AttentionArgs args) {
  using S = Shape<kType, kDim, kWarps>;
  extern __shared__ __align__(128) char shared[];
  const Work work(args, S::kRows);
  const Block<S> block{args, work, shared};
  float sums[S::kColumnTiles][4] = {};
  Softmax softmax;
  if (work.first_row >= work.rows) {
    block.finish(softmax.sum, sums);
    return;
  }
  block.ask(0, false);
  block.load_queries();
  softmax.unit = args.scale * 1.4426950408889634F;
  for (int h = 0; h < 2; ++h) {
    const int row = min(work.first_row + 16 * block.warp + 8 * h + block.lane / 4, work.rows - 1);
    softmax.limit[h] = static_cast<int>(work.run.position) + row / args.group;
  }
  for (int page = 0; page * kTile <= work.last; ++page) {
    await_copies<0>();
    __syncthreads();
    block.ask(page, true);
    if constexpr (S::kCodes) {
      block.decode(shared + S::kRawKeys);
      __syncthreads();
      block.ask(page + 1, false);
    }
    float scores[kKeyTiles][4] = {};
    block.multiply_keys(scores);
    float before[2];
    softmax.soften(page * kTile, scores, before);
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= before[i / 2];
    }
    await_copies<S::kCodes ? 1 : 0>();
    __syncthreads();
    if constexpr (S::kCodes) {
      block.decode(shared + S::kRawValues);
      __syncthreads();
    } else {
      block.ask(page + 1, false);
    }
    block.multiply_values(scores, sums);
  }
  await_copies<0>();
  block.finish(softmax.sum, sums);
}

template <KvType kType, int kDim, int kWarps>
void launch(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  using S = Shape<kType, kDim, kWarps>;
  static_assert(S::kBytes <= (kWarps == 4 ? 99 : 164) * 1024);
  const auto kernel = attend_prefill_kernel<kType, kDim, kWarps>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  const dim3 blocks(static_cast<unsigned>((grid.rows + S::kRows - 1) / S::kRows),
                    static_cast<unsigned>(args.kv.kv_heads), static_cast<unsigned>(grid.units));
  kernel<<<blocks, S::kThreads, S::kBytes, context.stream>>>(args);
  TANDEM_CUDA_LAUNCHED("attend_prefill");
}

template <KvType kType>
void launch_type(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.kv.head_dim <= 64) return launch<kType, 64, 4>(context, grid, args);
  // Twice the rows halve what a block fetches and decodes, where a block may have so much shared memory.
  const bool large_blocks = context.capability / 10 == 9 || context.capability / 10 == 10;
  if (large_blocks) return launch<kType, 256, 8>(context, grid, args);
  launch<kType, 256, 4>(context, grid, args);
}

}  // namespace

void attend_prefill(const Context& context, const AttentionGrid& grid, const AttentionArgs& args) {
  if (args.kv.type == KvType::kInt8) {
    launch_type<KvType::kInt8>(context, grid, args);
  } else {
    launch_type<KvType::kBF16>(context, grid, args);
  }
}

}  // namespace tandem::ops::cuda
