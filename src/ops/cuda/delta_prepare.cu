// What a chunk needs and no state: normalised keys and queries, T and P (delta_chunks.cuh).
#include "ops/cuda/delta_chunks.cuh"
#include "ops/cuda/delta_gates.cuh"
#include "ops/cuda/delta_tiles.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kHeadsAtOnce = 3;  // value heads of a key head
constexpr int kProductStride = kChunk + 1;
constexpr int kMatrixStride = kChunk + 4;  // rows begin at multiples of 16 bytes

// The tiles' place is taken over by the products and by A of the value heads.
struct Tiles {
  __nv_bfloat16 key[2][kChunk * kChunkKeyDim];
  __nv_bfloat16 query[2][kChunk * kChunkKeyDim];
};
struct Products {
  float matrices[kHeadsAtOnce][kChunk][kMatrixStride];  // -A below the diagonal
  float keys[kChunk][kProductStride];                   // K K^T
  float queries[kChunk][kProductStride];                // Q K^T
  float gamma[kHeadsAtOnce][kChunk];
  float beta[kHeadsAtOnce][kChunk];
};
union Shared {
  Tiles tiles;
  Products products;
};
static_assert(sizeof(Shared) <= 96 * 1024);

// A warp normalises a row to the tile and to the chunk's memory.
__device__ inline void normalise_row(const float* from, float factor, int row,
                                     __nv_bfloat16 (*tile)[kChunk * kChunkKeyDim],
                                     __nv_bfloat16 (*to)[kChunk][kChunkKeyDim]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float4 v = load4(from + 4 * lane);
  const float squares = warp_sum(fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))));
  const float scale = factor * rsqrtf(squares + 1e-6F);
  const Split left = split_pair(v.x * scale, v.y * scale);
  const Split right = split_pair(v.z * scale, v.w * scale);
  const int at = tile_offset<kChunkKeyDim>(row, lane / 2) + 4 * (lane % 2);
  const uint2 high = {left.high, right.high};
  const uint2 low = {left.low, right.low};
  *reinterpret_cast<uint2*>(tile[0] + at) = high;
  *reinterpret_cast<uint2*>(tile[1] + at) = low;
  *reinterpret_cast<uint2*>(&to[0][row][4 * lane]) = high;
  *reinterpret_cast<uint2*>(&to[1][row][4 * lane]) = low;
}

// 16 rows of `tile` times the keys up to the last of these rows; the rest of `sums` stays.
__device__ inline void multiply_by_keys(const __nv_bfloat16 (*tile)[kChunk * kChunkKeyDim],
                                        const __nv_bfloat16 (*keys)[kChunk * kChunkKeyDim], int first,
                                        float (&sums)[kChunk / 8][4]) {
  for (int at = 0; at < kChunkKeyDim; at += 16) {
    const Quad high = rows_as_rows<kChunkKeyDim>(tile[0], first, at);
    const Quad low = rows_as_rows<kChunkKeyDim>(tile[1], first, at);
#pragma unroll
    for (int pair = 0; pair < kChunk / 16; ++pair) {
      if (16 * pair > first) continue;
      const Quad key_high = rows_as_columns<kChunkKeyDim>(keys[0], 16 * pair, at);
      const Quad key_low = rows_as_columns<kChunkKeyDim>(keys[1], 16 * pair, at);
#pragma unroll
      for (int half = 0; half < 2; ++half) mma_quad(sums[2 * pair + half], high, key_high, half);
#pragma unroll
      for (int half = 0; half < 2; ++half) mma_quad(sums[2 * pair + half], low, key_high, half);
#pragma unroll
      for (int half = 0; half < 2; ++half) mma_quad(sums[2 * pair + half], high, key_low, half);
    }
  }
}

// Running sums of the log decays, by one warp with two tokens a lane.
__device__ inline void find_gates(const Ops::DeltaNet& net, int64_t first, int64_t head, float* gamma, float* beta,
                                  ChunkHead& to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float a_log = net.a_log[head];
  const float dt_bias = net.dt_bias[head];
  float decays[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t at = (first + 2 * lane + i) * net.value_heads + head;
    decays[i] = log_decay(net.a[at], a_log, dt_bias);
    beta[2 * lane + i] = to.beta[2 * lane + i] = 1.0F / (1.0F + exp_exact(0.0F - net.b[at]));
  }
  const float sum = sum_up_to_lane(decays[0] + decays[1]);
  const float all = __shfl_sync(kWholeWarp, sum, 31);
  const float sums[2] = {sum - decays[1], sum};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    gamma[2 * lane + i] = sums[i];
    to.past[2 * lane + i] = exp_exact(sums[i]);
    to.rest[2 * lane + i] = exp_exact(all - sums[i]);
  }
}

// Column `column` of T = (I - matrix)^-1 by forward substitution in blocks of 16 rows; a warp's columns are of one
// half, and rows above the half are zeros. x_j, the column's row j, is kept at matrix[column][j]: there, on and above
// the diagonal, the strictly lower matrix has nothing, and the other columns read nothing.
__device__ inline void invert_column(float (*matrix)[kMatrixStride], int column, ChunkHead& to) {
  constexpr int kRows = 16;
  float* x = matrix[column];
#pragma unroll 1
  for (int first = 0; first < kChunk; first += kRows) {
    float sums[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums[i] = first + i == column ? 1.0F : 0.0F;
#pragma unroll 1
    for (int j = column / 32 * 32; j < first; j += 4) {
      float4 above = load4(x + j);
      above = {j >= column ? above.x : 0.0F, j + 1 >= column ? above.y : 0.0F, j + 2 >= column ? above.z : 0.0F,
               j + 3 >= column ? above.w : 0.0F};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 m = load4(&matrix[first + i][j]);
        sums[i] = fmaf(m.w, above.w, fmaf(m.z, above.z, fmaf(m.y, above.y, fmaf(m.x, above.x, sums[i]))));
      }
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int i = j + 1; i < kRows; ++i) sums[i] = fmaf(matrix[first + i][first + j], sums[j], sums[i]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i >= column) x[first + i] = sums[i];
      const __nv_bfloat16 high = __float2bfloat16_rn(sums[i]);
      to.inverse[0][first + i][column] = high;
      to.inverse[1][first + i][column] = __float2bfloat16_rn(sums[i] - __bfloat162float(high));
    }
  }
}

// -A to shared memory and P to the chunk's, of `count` value heads.
__device__ inline void scale_products(Products& products, int count, ChunkHead* heads) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kChunk * (kChunk / 2); i += kThreads) {
    const int head = i / (kChunk * kChunk / 2);
    const int row = i / (kChunk / 2) % kChunk;
    const int column = 2 * (i % (kChunk / 2));
    const float gamma = products.gamma[head][row];
    float scores[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int j = column + e;
      // The fast exponential: 1e-6 of it at the least that still counts.
      const float decay = j <= row ? __expf(gamma - products.gamma[head][j]) : 0.0F;
      scores[e] = j <= row ? products.queries[row][j] * decay : 0.0F;
      products.matrices[head][row][j] = j < row ? -(products.beta[head][row] * products.keys[row][j] * decay) : 0.0F;
    }
    const Split parts = split_pair(scores[0], scores[1]);
    *reinterpret_cast<uint32_t*>(&heads[head].scores[0][row][column]) = parts.high;
    *reinterpret_cast<uint32_t*>(&heads[head].scores[1][row][column]) = parts.low;
  }
}

// Blocks (key heads, chunks).
__global__ void __launch_bounds__(kThreads, 2) prepare_kernel(const Chunks args) {
  follow();
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Ops::DeltaNet& net = args.net;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t key_head = blockIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kChunk;
  const int64_t stride = 2 * net.key_heads * kChunkKeyDim + net.value_heads * net.value_dim;
  ChunkKeys& keys = args.keys[blockIdx.y * net.key_heads + key_head];
  const float query_factor = 1.0F / sqrtf(static_cast<float>(kChunkKeyDim));
#pragma unroll 4
  for (int row = warp; row < kChunk; row += kThreads / 32) {
    const float* query = net.qkv + (first + row) * stride + key_head * kChunkKeyDim;
    normalise_row(query, query_factor, row, shared.tiles.query, keys.query);
    normalise_row(query + net.key_heads * kChunkKeyDim, 1.0F, row, shared.tiles.key, keys.key);
  }
  __syncthreads();
  // Warps 0 to 3 take the keys' rows, the others the queries'.
  float sums[kChunk / 8][4] = {};
  const int first_row = warp % 4 * 16;
  multiply_by_keys(warp < 4 ? shared.tiles.key : shared.tiles.query, shared.tiles.key, first_row, sums);
  __syncthreads();
  Products& products = shared.products;
  auto* to = warp < 4 ? products.keys : products.queries;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < kChunk / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[first_row + g + i / 2 * 8][8 * tile + 2 * t + i % 2] = sums[tile][i];
  }
  const int group = static_cast<int>(net.value_heads / net.key_heads);
  for (int begin = 0; begin < group; begin += kHeadsAtOnce) {
    const int count = min(kHeadsAtOnce, group - begin);
    const int64_t head = key_head * group + begin;
    ChunkHead* heads = args.heads + blockIdx.y * net.value_heads + head;
    if (warp < count) {
      find_gates(net, first, head + warp, products.gamma[warp], products.beta[warp], heads[warp]);
    }
    __syncthreads();
    scale_products(products, count, heads);
    __syncthreads();
    const int mine = warp / 2;
    const int column = static_cast<int>(threadIdx.x) % 64;
    if (mine < count) invert_column(products.matrices[mine], column, heads[mine]);
    __syncthreads();
  }
}

}  // namespace

void prepare_chunks(const Context& context, const Chunks& chunks) {
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(sizeof(Shared))));
  const dim3 grid(static_cast<unsigned>(chunks.net.key_heads), static_cast<unsigned>(chunks.count));
  launch_following(context, prepare_kernel, grid, kThreads, sizeof(Shared), chunks);
  TANDEM_CUDA_LAUNCHED("delta_net prepare");
}

}  // namespace tandem::ops::cuda
