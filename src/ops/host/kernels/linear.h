// y = x * w^T in FP32 accumulation for few columns, weights BF16 or FP32: bound by the weights' bytes.
//
// Tiles of R rows and C
// columns keep R * C accumulators of 16 lanes in registers; the sum of one (row, column) is the same in any tile.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

#ifdef __AVX512F__
inline constexpr int kTileRows = 4;
inline constexpr int kTileColumns = 4;
#else
inline constexpr int kTileRows = 2;
inline constexpr int kTileColumns = 2;
#endif

template <int R, int C, typename W>
inline void dot_tile(const float* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t count,
                     float (&out)[R][C]) {
  f32x16 sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  }
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    f32x16 row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) row[r] = load_any(w + r * w_stride + k);
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
      const f32x16 row = load_any_part(w + r * w_stride + k, count - k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sum[r][c] = fma(row, load_part(x + c * x_stride + k, count - k), sum[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) out[r][c] = reduce_add(sum[r][c]);
  }
}

template <int R, int C, typename W>
inline void linear_tile(const float* x, int64_t x_stride, const W* w, int64_t inputs, float* y, float* y_upper,
                        int64_t y_stride) {
  float sum[R][C];
  const int64_t lower = y_upper != nullptr ? inputs / 2 : inputs;
  dot_tile<R, C>(x, x_stride, w, inputs, lower, sum);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) y[c * y_stride + r] = sum[r][c];
  }
  if (y_upper == nullptr) return;
  dot_tile<R, C>(x + lower, x_stride, w + lower, inputs, inputs - lower, sum);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) y_upper[c * y_stride + r] = sum[r][c];
  }
}

template <int R, typename W>
inline void linear_rows(const float* x, int64_t x_stride, int64_t columns, const W* w, int64_t inputs, float* y,
                        float* y_upper, int64_t y_stride) {
  int64_t c = 0;
  const auto upper = [&] { return y_upper != nullptr ? y_upper + c * y_stride : nullptr; };
  for (; c + kTileColumns <= columns; c += kTileColumns) {
    linear_tile<R, kTileColumns>(x + c * x_stride, x_stride, w, inputs, y + c * y_stride, upper(), y_stride);
  }
  for (; c < columns; ++c) {
    linear_tile<R, 1>(x + c * x_stride, x_stride, w, inputs, y + c * y_stride, upper(), y_stride);
  }
}

template <typename W>
inline void linear_range(const float* x, int64_t x_stride, int64_t columns, const W* w, int64_t inputs,
                         int64_t row_begin, int64_t row_end, float* y, float* y_upper, int64_t y_stride) {
  int64_t n = row_begin;
  const auto upper = [&] { return y_upper != nullptr ? y_upper + n : nullptr; };
  for (; n + kTileRows <= row_end; n += kTileRows) {
    linear_rows<kTileRows>(x, x_stride, columns, w + n * inputs, inputs, y + n, upper(), y_stride);
  }
  for (; n < row_end; ++n) linear_rows<1>(x, x_stride, columns, w + n * inputs, inputs, y + n, upper(), y_stride);
}

}  // namespace tandem::ops::host::TANDEM_ISA
