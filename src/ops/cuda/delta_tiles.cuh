// Tiles of BF16 in shared memory, as ldmatrix reads them.
//
// A row is kWidth values. Its pieces of 16 bytes lie at their number xor the row's number modulo 8, so that eight rows
// of one piece fill all banks.
#pragma once

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/state_mma.cuh"

namespace tandem::ops::cuda {

template <int kWidth>
__device__ inline int tile_offset(int row, int piece) {  // in values
  return row * kWidth + 8 * (piece ^ (row & 7));
}

// Copies `rows` rows from contiguous memory, asynchronously, with a block of kThreads.
template <int kWidth, int kThreads>
__device__ inline void copy_tile(__nv_bfloat16* tile, const __nv_bfloat16* from, int rows) {
  constexpr int kPieces = kWidth / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kThreads) {
    copy_16(shared_address(tile + tile_offset<kWidth>(i / kPieces, i % kPieces)), from + 8 * i);
  }
}

struct Quad {
  uint32_t r[4];
};
__device__ inline Quad load_quad(const __nv_bfloat16* row) {
  Quad q;
  load_matrices(q.r, shared_address(row));
  return q;
}
__device__ inline Quad load_transposed_quad(const __nv_bfloat16* row) {
  Quad q;
  load_transposed(q.r, shared_address(row));
  return q;
}

// As B of the product, of the tile's rows [row, row + 16) as columns and its values [at, at + 16) as inputs: r[0], r[1]
// for the first eight rows, r[2], r[3] for the others.
template <int kWidth>
__device__ inline Quad rows_as_columns(const __nv_bfloat16* tile, int row, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return load_quad(tile + tile_offset<kWidth>(row + lane / 16 * 8 + lane % 8, at / 8 + lane / 8 % 2));
}
// As B, of the tile's rows [row, row + 16) as inputs and its values [at, at + 16) as columns.
template <int kWidth>
__device__ inline Quad rows_as_inputs(const __nv_bfloat16* tile, int row, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return load_transposed_quad(tile + tile_offset<kWidth>(row + lane / 8 % 2 * 8 + lane % 8, at / 8 + lane / 16));
}
// As A, of the tile's rows [row, row + 16) and its values [at, at + 16) as inputs.
template <int kWidth>
__device__ inline Quad rows_as_rows(const __nv_bfloat16* tile, int row, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return load_quad(tile + tile_offset<kWidth>(row + lane / 8 % 2 * 8 + lane % 8, at / 8 + lane / 16));
}

// Columns [8 * half, 8 * half + 8) of a B of sixteen.
__device__ inline void mma_quad(float (&c)[4], const Quad& a, const Quad& b, int half) {
  multiply_bf16(c, a.r[0], a.r[1], a.r[2], a.r[3], b.r[2 * half], b.r[2 * half + 1]);
}

// FP32 sums of two neighbouring tiles of eight columns, as A of sixteen inputs.
struct SplitQuad {
  Quad high, low;
};
__device__ inline SplitQuad sums_as_rows(const float (&left)[4], const float (&right)[4]) {
  SplitQuad a;
  const Split parts[4] = {split_pair(left[0], left[1]), split_pair(left[2], left[3]), split_pair(right[0], right[1]),
                          split_pair(right[2], right[3])};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a.high.r[i] = parts[i].high;
    a.low.r[i] = parts[i].low;
  }
  return a;
}

}  // namespace tandem::ops::cuda
