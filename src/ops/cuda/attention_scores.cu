// Scores of blocks of the context: for each column the sum over index heads of relu(query * pooled key).
//
// Scores go to scratch, a row a column. On tensor cores a tile is 16 columns by 32 keys for each head, so that the sum
// over heads stays in one lane and has the host's order; a warp reads its keys from memory straight into fragments.
// Whatever the number of columns is, each of them takes the same steps.
#include <cuda_bf16.h>

#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/attention_select.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kFewThreads = 128;

// Queries of a tile's columns in BF16, [groups of 16 columns, heads, 16, inputs], with the inputs of each 32 in the
// order of the fragments: a lane's 16 bytes of a key are inputs of two products.
template <int kInputs>
__device__ __forceinline__ void load_queries(const SelectArgs& args, const Tile& tile, char* to) {
  constexpr int chunks = kInputs / 8;
  constexpr int quads = kInputs / 4;
  constexpr int ahead = 4;
  const int count = args.tile_columns * args.heads * quads;
  const auto place = [&](int i, int& row, int& d) {
    row = i / quads;
    d = i % quads * 4;
  };
  for (int first = threadIdx.x; first < count; first += ahead * kThreads) {
    float4 q[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      int row = 0;
      int d = 0;
      place(first + i * kThreads, row, d);
      const int head = row / kScoreColumns % args.heads;
      const int column = row / (args.heads * kScoreColumns) * kScoreColumns + row % kScoreColumns;
      const float* from = args.q + ((tile.first_column + column) * args.heads + head) * args.kv.index_dim + d;
      q[i] = column < tile.columns && d < args.kv.index_dim ? *reinterpret_cast<const float4*>(from) : float4{};
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      int row = 0;
      int d = 0;
      place(first + i * kThreads, row, d);
      if (first + i * kThreads >= count) continue;
      const int at = d / 32 * 32 + d % 8 / 4 * 16 + d % 32 / 8 * 2;
      char* base = to + at % 8 * 2;
      *reinterpret_cast<uint32_t*>(base + swizzled<chunks>(row, at / 8) * 16) = pack_bf16(q[i].x, q[i].y);
      *reinterpret_cast<uint32_t*>(base + swizzled<chunks>(row, at / 8 + 1) * 16) = pack_bf16(q[i].z, q[i].w);
    }
  }
}

// A block has one tile of columns and `keys` blocks of the context.
template <int kInputs>
__global__ void __launch_bounds__(kThreads, kInputs <= 128 ? 2 : 1)
    score_kernel(const __grid_constant__ SelectArgs args, int keys) {
  let_next_start();
  extern __shared__ __align__(128) char queries[];
  const Tile tile(args, blockIdx.y);
  const int visible = tile.visible(tile.columns - 1, args.kv.ratio);
  if (tile.columns == 0 || visible <= args.selection.budget || static_cast<int>(blockIdx.x) * keys >= visible) {
    await_previous();  // without it kernels behind this one could pass those before it
    return;
  }
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int groups = args.tile_columns / kScoreColumns;
  const int group = warp % groups;
  const int parts = kWarps / groups;  // warps that share out the keys
  const int end = min(visible, (static_cast<int>(blockIdx.x) + 1) * keys);
  constexpr int chunks = kInputs / 8;
  uint4 b[4][kInputs / 32];
  const auto load_keys = [&](int first) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int key = min(first + 8 * n + lane / 4, visible - 1);
      const std::byte* from = args.kv.index_key(tile.run.block_table, key);
#pragma unroll
      for (int i = 0; i < kInputs / 32; ++i) {
        const int d = 32 * i + 8 * (lane % 4);
        b[n][i] = d < args.kv.index_dim ? *reinterpret_cast<const uint4*>(from + 2 * d) : make_uint4(0, 0, 0, 0);
      }
    }
  };
  int first = static_cast<int>(blockIdx.x) * keys + warp / groups * kScoreKeys;
  // The newest key may be on its way yet: until it is here, the others come closer.
  if (first + lane < visible)
    prefetch_bytes(args.kv.index_key(tile.run.block_table, first + lane), args.kv.index_row_bytes());
  await_previous();
  load_keys(first);
  load_queries<kInputs>(args, tile, queries);
  __syncthreads();
  for (; first < end; first += parts * kScoreKeys) {
    float sums[4][4] = {};
    for (int h = 0; h < args.heads; ++h) {
      float products[4][4] = {};
      const int row = (group * args.heads + h) * kScoreColumns + lane % 16;
#pragma unroll
      for (int s = 0; s < kInputs / 16; ++s) {
        uint32_t a[4];
        load_matrices(a, shared_address(queries) + swizzled<chunks>(row, 2 * s + lane / 16) * 16);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint4& words = b[n][s / 2];
          multiply_add(products[n], a, s % 2 == 0 ? words.x : words.z, s % 2 == 0 ? words.y : words.w);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] += products[n][i] > 0.0F ? products[n][i] : 0.0F;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = group * kScoreColumns + 8 * half + lane / 4;
      if (column >= tile.columns) continue;
      float* to = args.scores + (tile.first_row + column) * args.stride + first + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(sums[n][2 * half] * args.scale, sums[n][2 * half + 1] * args.scale);
      }
    }
    if (first + parts * kScoreKeys < end) load_keys(first + parts * kScoreKeys);
  }
}

// Of few columns: they are the columns of the products, of one head after the other, and the keys are the rows. A warp
// has 32 keys, and fetches all but those of the step's own blocks before the kernels before have ended. The inputs of
// each 32 are in the order in which a lane's 16 bytes of a key are inputs of two products.
template <int kInputs>
__global__ void __launch_bounds__(kFewThreads, kInputs <= 128 ? 4 : 1)
    score_few_kernel(const __grid_constant__ SelectArgs args) {
  let_next_start();
  constexpr int parts = kInputs / 32;
  extern __shared__ __align__(128) uint4 operands[];  // [heads, parts, 8 columns, 4]: a lane's of the right operand
  const Tile tile(args, blockIdx.y);
  const int visible = tile.visible(tile.columns - 1, args.kv.ratio);
  const int lane = threadIdx.x % 32;
  const int block_first = static_cast<int>(blockIdx.x) * kFewThreads;
  if (tile.columns == 0 || visible <= args.selection.budget || block_first >= visible) {
    await_previous();  // without it kernels behind this one could pass those before it
    return;
  }
  const int first = block_first + static_cast<int>(threadIdx.x) / 32 * kScoreKeys;
  const auto old = static_cast<int>(static_cast<unsigned>(tile.run.position) / static_cast<unsigned>(args.kv.ratio));
  const std::byte* rows[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    rows[n] = args.kv.index_key(tile.run.block_table, min(first + 8 * n + lane / 4, visible - 1)) + 16 * (lane % 4);
  }
  uint4 keys[4][parts];
  const auto load_key = [&](int n, bool wanted) {
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      const bool held = wanted && 32 * i + 8 * (lane % 4) < args.kv.index_dim;
      keys[n][i] = held ? *reinterpret_cast<const uint4*>(rows[n] + 64 * i) : uint4{};
    }
  };
#pragma unroll
  for (int n = 0; n < 4; ++n) load_key(n, first + 8 * n + lane / 4 < old);
  await_previous();
  const int eighths = args.heads * parts * 32;  // of queries, eight inputs each
#pragma unroll 2
  for (int i = threadIdx.x; i < eighths; i += kFewThreads) {
    const int column = i / 4 % 8;
    const int d = i / 32 % parts * 32 + i % 4 * 8;
    uint4 operand{};
    if (column < tile.columns && d < args.kv.index_dim) {
      const float* from =
          args.q + ((tile.first_column + column) * args.heads + i / (32 * parts)) * args.kv.index_dim + d;
      const auto lower = *reinterpret_cast<const float4*>(from);
      const auto upper = *reinterpret_cast<const float4*>(from + 4);
      operand = {pack_bf16(lower.x, lower.y), pack_bf16(lower.z, lower.w), pack_bf16(upper.x, upper.y),
                 pack_bf16(upper.z, upper.w)};
    }
    operands[i] = operand;
  }
  if (first + kScoreKeys > old) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (first + 8 * n + lane / 4 >= old) load_key(n, true);
    }
  }
  __syncthreads();
  float sums[2][4] = {};
#pragma unroll 1
  for (int h = 0; h < args.heads; ++h) {
    float products[2][4] = {};
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      const uint4 q = operands[(h * parts + i) * 32 + lane];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint4& upper = keys[2 * t][i];
        const uint4& lower = keys[2 * t + 1][i];
        multiply_add(products[t], {upper.x, lower.x, upper.y, lower.y}, q.x, q.y);
        multiply_add(products[t], {upper.z, lower.z, upper.w, lower.w}, q.z, q.w);
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][i] += products[t][i] > 0.0F ? products[t][i] : 0.0F;
    }
  }
  if (first >= visible) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * (lane % 4) + i % 2;
    if (column >= tile.columns) continue;
    float* to = args.scores + (tile.first_row + column) * args.stride + first + lane / 4 + i / 2 * 8;
#pragma unroll
    for (int t = 0; t < 2; ++t) to[16 * t] = sums[t][i] * args.scale;
  }
}

// In FP32 on ordinary cores: a warp a block of the context, for one column.
__global__ void __launch_bounds__(kThreads) score_portable_kernel(const __grid_constant__ SelectArgs args, int keys) {
  follow();
  const Tile tile(args, blockIdx.y / args.tile_columns);
  const auto column = static_cast<int>(blockIdx.y) % args.tile_columns;
  if (column >= tile.columns) return;
  const int visible = tile.visible(column, args.kv.ratio);
  if (visible <= args.selection.budget) return;
  const int lane = threadIdx.x % 32;
  const int dim = args.kv.index_dim;
  const int end = min(visible, (static_cast<int>(blockIdx.x) + 1) * keys);
  const float* q = args.q + (tile.first_column + column) * args.heads * dim;
  for (int key = static_cast<int>(blockIdx.x) * keys + threadIdx.x / 32; key < end; key += kWarps) {
    const std::byte* from = args.kv.index_key(tile.run.block_table, key);
    float sum = 0;
    for (int h = 0; h < args.heads; ++h) {
      float product = 0;
      for (int d = lane; d < dim; d += 32) {
        const float k = args.kv.type == KvType::kF32
                            ? reinterpret_cast<const float*>(from)[d]
                            : __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[d]);
        product = fmaf(q[h * dim + d], k, product);
      }
      for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xFFFFFFFFu, product, step);
      sum += product > 0.0F ? product : 0.0F;
    }
    if (lane == 0) args.scores[(tile.first_row + column) * args.stride + key] = sum * args.scale;
  }
}

template <int kInputs>
void launch_scores(const Context& context, const SelectArgs& args, int64_t tiles, int keys, int64_t blocks, bool few) {
  if (few) {
    const dim3 grid(static_cast<unsigned>((args.stride + kFewThreads - 1) / kFewThreads), static_cast<unsigned>(tiles));
    const auto kernel = score_few_kernel<kInputs>;
    const int bytes = args.heads * kInputs * 8 * 2;
    allow_shared(kernel, bytes);
    launch_following(context, kernel, grid, kFewThreads, static_cast<size_t>(bytes), args);
    TANDEM_CUDA_LAUNCHED("score_few_blocks");
    return;
  }
  const int bytes = args.tile_columns * args.heads * kInputs * 2;
  const auto kernel = score_kernel<kInputs>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  launch_following(context, kernel, grid, kThreads, static_cast<size_t>(bytes), args, keys);
  TANDEM_CUDA_LAUNCHED("score_blocks");
}

}  // namespace

void score_blocks(const Context& context, const SelectArgs& args, bool tensor_cores, int64_t tiles, bool few) {
  // A block of the grid takes as many keys as pay for its queries.
  const int keys = args.tile_columns > kScoreColumns ? 1024 : kWarps * kScoreKeys;
  const int64_t blocks = (args.stride + keys - 1) / keys;
  if (!tensor_cores) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles * args.tile_columns));
    launch_following(context, score_portable_kernel, grid, kThreads, 0, args, keys);
    TANDEM_CUDA_LAUNCHED("score_blocks");
    return;
  }
  if (args.kv.index_dim <= 32) return launch_scores<32>(context, args, tiles, keys, blocks, few);
  if (args.kv.index_dim <= 64) return launch_scores<64>(context, args, tiles, keys, blocks, few);
  if (args.kv.index_dim <= 128) return launch_scores<128>(context, args, tiles, keys, blocks, few);
  launch_scores<256>(context, args, tiles, keys, blocks, few);
}

}  // namespace tandem::ops::cuda
