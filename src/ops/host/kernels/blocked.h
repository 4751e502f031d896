// y = x * w^T for many columns: the sums of linear.h, with every operand where it is needed.
//
// A block of decoded rows stays in the second-level cache while columns pass by, kBlockedColumns at a time; a piece of
// kBlockedInputs of these columns stays in the first-level cache while all rows of the block take it. The lanes of a
// sum wait in memory between two pieces, so each takes the same FMAs in the same order as with few columns.
#pragma once

#include "ops/host/kernels/linear.h"

namespace tandem::ops::host::TANDEM_ISA {

#ifdef __AVX512F__
inline constexpr int kBlockedColumns = 6;
#else
inline constexpr int kBlockedColumns = 2;
#endif
inline constexpr int64_t kBlockedInputs = 512;
static_assert(kBlockedColumns <= kMostBlockedColumns);

// sums [R][C][16] take `count` inputs.
template <int R, int C>
inline void add_products(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t count, bool first,
                         float* sums) {
  f32x16 sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[r][c] = first ? zero() : load(sums + 16 * (r * C + c));
  }
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    f32x16 row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) row[r] = load(w + r * w_stride + k);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const f32x16 column = load(x + c * x_stride + k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r][c] = fma(row[r], column, sum[r][c]);
    }
  }
  if (k < count) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const f32x16 row = load_part(w + r * w_stride + k, count - k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sum[r][c] = fma(row, load_part(x + c * x_stride + k, count - k), sum[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(sums + 16 * (r * C + c), sum[r][c]);
  }
}

template <int C>
inline void blocked_tile(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t rows,
                         int64_t inputs, float* y, int64_t y_stride, float* sums) {
  int64_t k = 0;
  do {  // once at least: no inputs make sums of zero
    const int64_t count = inputs - k < kBlockedInputs ? inputs - k : kBlockedInputs;
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      add_products<kTileRows, C>(x + k, x_stride, w + r * w_stride + k, w_stride, count, k == 0, sums + 16 * C * r);
    }
    for (; r < rows; ++r) {
      add_products<1, C>(x + k, x_stride, w + r * w_stride + k, w_stride, count, k == 0, sums + 16 * C * r);
    }
    k += kBlockedInputs;
  } while (k < inputs);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < C; ++c) y[c * y_stride + r] = reduce_add(load(sums + 16 * (r * C + c)));
  }
}

// `rows` rows of w [rows, w_stride] in FP32, at most dense_block_rows; sums has 16 * kMostBlockedColumns floats a row.
inline void blocked_rows(const float* x, int64_t x_stride, int64_t columns, const float* w, int64_t w_stride,
                         int64_t rows, int64_t inputs, float* y, int64_t y_stride, float* sums) {
  int64_t c = 0;
  for (; c + kBlockedColumns <= columns; c += kBlockedColumns) {
    blocked_tile<kBlockedColumns>(x + c * x_stride, x_stride, w, w_stride, rows, inputs, y + c * y_stride, y_stride,
                                  sums);
  }
  for (; c + 2 <= columns; c += 2) {
    blocked_tile<2>(x + c * x_stride, x_stride, w, w_stride, rows, inputs, y + c * y_stride, y_stride, sums);
  }
  if (c < columns)
    blocked_tile<1>(x + c * x_stride, x_stride, w, w_stride, rows, inputs, y + c * y_stride, y_stride, sums);
}

}  // namespace tandem::ops::host::TANDEM_ISA
