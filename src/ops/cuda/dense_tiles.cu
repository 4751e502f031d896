// A product of BF16 matrices of our own, for many columns: tiles of 128 columns x 128 rows, 32 inputs at a time in four
// stages of shared memory, each warp 64 columns x 32 rows on the tensor cores. Bound by mma.sync: on cards with warp
// group products (H100, H200) about half of what cuBLASLt reaches.
#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_mma.cuh"
#include "ops/cuda/dense_paths.h"
#include "ops/cuda/line_stages.cuh"

namespace tandem::ops::cuda::dense {

namespace {

constexpr int kTile = 128;
constexpr int kStep = 32;  // inputs of a stage: 64 bytes a line
constexpr int kStages = 4;
constexpr int kThreads = 256;
constexpr int kStageBytes = 2 * kTile * kStep * 2;
constexpr int kSharedBytes = kStages * kStageBytes;

struct Arguments {
  Bf16Product product;
  Weight w;
  int64_t first_row = 0;
};

// One stage's lines of one side: two 16-byte copies a thread.
__device__ inline void copy_lines(uint32_t to, const uint16_t* from, int64_t stride, int64_t first, int64_t lines,
                                  int64_t input, int64_t inputs) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int line = index / 4;
    const int chunk = index % 4;
    const int64_t at = input + 8 * chunk;
    const bool inside = first + line < lines && at < inputs;
    const int64_t left = inputs - at;
    const uint16_t* source = inside ? from + (first + line) * stride + at : from;
    copy_16_of(to + place(line, chunk), source, inside ? static_cast<int>(left < 8 ? left * 2 : 16) : 0);
  }
}

__device__ inline void multiply_stage(uint32_t x_lines, uint32_t w_lines, int warp_column, int warp_row,
                                      float (&sum)[4][4][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) {
    uint32_t x[4][4];
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_matrices(x[i], x_lines + place(warp_column + 16 * i + lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      load_matrices(w[j], w_lines + place(warp_row + 16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        multiply_bf16(sum[i][j], x[i][0], x[i][1], x[i][2], x[i][3], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

__device__ inline void store_pair(const Arguments& a, int64_t column, int64_t row, float first, float second) {
  const Bf16Product& p = a.product;
  if (column >= p.tokens || row >= p.rows) return;
  float* to = p.d + column * p.d_stride + row;
  to[0] = finish_sum(a.w, a.first_row + row, first);
  if (row + 1 < p.rows) to[1] = finish_sum(a.w, a.first_row + row + 1, second);
}

__global__ void __launch_bounds__(kThreads, 2) bf16_tiles(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) uint8_t stages[];
  const Bf16Product& p = a.product;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kTile;
  const int warp = threadIdx.x / 32;
  const int warp_column = warp % 2 * 64;
  const int warp_row = warp / 2 * 32;
  const int steps = static_cast<int>((p.inputs + kStep - 1) / kStep);
  float sum[4][4][4] = {};

  run_stages<kStages, kStageBytes>(
      base, steps,
      [&](int step, uint32_t to) {
        copy_lines(to, p.x, p.x_stride, first_column, p.tokens, int64_t{step} * kStep, p.inputs);
        copy_lines(to + kStageBytes / 2, p.w, p.w_stride, first_row, p.rows, int64_t{step} * kStep, p.inputs);
      },
      [&](uint32_t from) { multiply_stage(from, from + kStageBytes / 2, warp_column, warp_row, sum); });

  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t column = first_column + warp_column + 16 * i + lane / 4;
      const int64_t row = first_row + warp_row + 8 * j + lane % 4 * 2;
      store_pair(a, column, row, sum[i][j][0], sum[i][j][1]);
      store_pair(a, column + 8, row, sum[i][j][2], sum[i][j][3]);
    }
  }
}

}  // namespace

void tile_product(const Context& context, const Bf16Product& product, const Weight& w, int64_t first_row) {
  static_assert(kSharedBytes > 48 * 1024 && kSharedBytes <= 96 * 1024);
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(bf16_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const dim3 grid(static_cast<unsigned>((product.rows + kTile - 1) / kTile),
                  static_cast<unsigned>((product.tokens + kTile - 1) / kTile));
  bf16_tiles<<<grid, kThreads, kSharedBytes, context.stream>>>({product, w, first_row});
  TANDEM_CUDA_LAUNCHED("bf16_tiles");
}

}  // namespace tandem::ops::cuda::dense
