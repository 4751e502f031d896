// y = x * w^T for quantised weights, in the lane order of linear.h.
//
// Up to kDirectColumns columns decode in registers, tile by tile: bound by the weights' bytes at one column and by
// FMAs at eight. More columns decode kDenseScratchRows rows once and run the FP32 tiles over them, columns outside, so
// that the rows stay in the second-level cache. Both take the same FMAs in the same order.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/decode.h"
#include "ops/host/kernels/linear.h"

namespace tandem::ops::host::TANDEM_ISA {

inline constexpr int64_t kDirectColumns = 8;

// One unit of R rows times C columns: vectors [first, last) of eight.
template <int J, typename Row, int R, int C>
[[gnu::always_inline]] inline void dot_unit(const float* x, int64_t x_stride, Row (&rows)[R], int first, int last,
                                            f32x16 (&sum)[R][C]) {
  if constexpr (J < 8) {
    if (J >= first && J < last) {
      f32x16 weights[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) weights[r] = rows[r].template get<J>();
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const f32x16 column = load(x + c * x_stride + kLanes * J);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][c] = fma(weights[r], column, sum[r][c]);
      }
    }
    dot_unit<J + 1>(x, x_stride, rows, first, last, sum);
  }
}

// out = the sums over inputs [begin, end), both multiples of 16, of the columns x (from input 0 on).
template <typename Row, int R, int C>
[[gnu::always_inline]] inline void dot_decoded(const float* x, int64_t x_stride, Row (&rows)[R], int64_t begin,
                                               int64_t end, float (&out)[R][C]) {
  f32x16 sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  }
  for (int64_t unit = begin / kDecodeUnit; unit * kDecodeUnit < end; ++unit) {
    const int64_t input = unit * kDecodeUnit;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) rows[r].begin(unit);
    if (input >= begin && input + kDecodeUnit <= end) {
      dot_unit<0>(x + input, x_stride, rows, 0, 8, sum);
    } else {
      const int first = input < begin ? static_cast<int>((begin - input) / kLanes) : 0;
      const int last = input + kDecodeUnit > end ? static_cast<int>((end - input) / kLanes) : 8;
      dot_unit<0>(x + input, x_stride, rows, first, last, sum);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) out[r][c] = rows[r].finish(reduce_add(sum[r][c]));
  }
}

template <typename Row, int R, int C>
inline void decoded_tile(const float* x, int64_t x_stride, const Weight& w, int64_t row, float* y, float* y_upper,
                         int64_t y_stride) {
  Row rows[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) rows[r] = Row(w, row + r);
  const int64_t middle = y_upper != nullptr ? w.inputs / 2 : w.inputs;
  float sum[R][C];
  dot_decoded(x, x_stride, rows, 0, middle, sum);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) y[c * y_stride + row + r] = sum[r][c];
  }
  if (y_upper == nullptr) return;
  dot_decoded(x, x_stride, rows, middle, w.inputs, sum);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) y_upper[c * y_stride + row + r] = sum[r][c];
  }
}

template <typename Row, int C>
inline void decoded_columns(const float* x, int64_t x_stride, const Weight& w, int64_t row_begin, int64_t row_end,
                            float* y, float* y_upper, int64_t y_stride) {
#ifdef __AVX512F__
  constexpr int kRows = 4;
#else
  constexpr int kRows = C == 1 ? 4 : C == 2 ? 2 : 1;
#endif
  int64_t row = row_begin;
  for (; row + kRows <= row_end; row += kRows) decoded_tile<Row, kRows, C>(x, x_stride, w, row, y, y_upper, y_stride);
  for (; row < row_end; ++row) decoded_tile<Row, 1, C>(x, x_stride, w, row, y, y_upper, y_stride);
}

template <int J, typename Row>
inline void decode_unit(Row& row, int64_t count, float* out) {
  if constexpr (J < 8) {
    const int64_t left = count - kLanes * J;
    if (left >= kLanes) {
      store(out + kLanes * J, row.template get<J>());
      decode_unit<J + 1>(row, count, out);
    } else if (left > 0) {
      float lanes[kLanes];
      store(lanes, row.template get_part<J>(left));
      std::memcpy(out + kLanes * J, lanes, static_cast<size_t>(left) * sizeof(float));
    }
  }
}
template <typename Row>
inline void decode_inputs(Row& row, int64_t inputs, float* out) {
  for (int64_t unit = 0; unit * kDecodeUnit < inputs; ++unit) {
    row.begin(unit);
    decode_unit<0>(row, inputs - unit * kDecodeUnit, out + unit * kDecodeUnit);
  }
}

// `count` rows decoded in scratch, columns outside, then what finish() does.
template <typename Row>
inline void scratch_rows(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row, int64_t count,
                         float* y, float* y_upper, int64_t y_stride, float* scratch) {
  Row rows[kDenseScratchRows];
  for (int64_t r = 0; r < count; ++r) {
    rows[r] = Row(w, row + r);
    decode_inputs(rows[r], w.inputs, scratch + r * w.inputs);
  }
  float* const lower = y + row;
  float* const upper = y_upper != nullptr ? y_upper + row : nullptr;
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t tile = columns - c < kTileColumns ? columns - c : kTileColumns;
    linear_range(x + c * x_stride, x_stride, tile, scratch, w.inputs, 0, count, lower + c * y_stride,
                 upper != nullptr ? upper + c * y_stride : nullptr, y_stride);
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < count; ++r) {
      float& sum = lower[c * y_stride + r];
      sum = rows[r].finish(sum);
      if (upper == nullptr) continue;
      float& other = upper[c * y_stride + r];
      other = rows[r].finish(other);
    }
  }
}

template <typename Row>
inline void linear_decoded(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                           int64_t row_end, float* y, float* y_upper, int64_t y_stride, float* scratch) {
  const int64_t step = y_upper != nullptr ? 2 * kLanes : kLanes;
  if (columns > kDirectColumns || w.inputs % step != 0) {
    for (int64_t row = row_begin; row < row_end; row += kDenseScratchRows) {
      const int64_t count = row_end - row < kDenseScratchRows ? row_end - row : kDenseScratchRows;
      scratch_rows<Row>(x, x_stride, columns, w, row, count, y, y_upper, y_stride, scratch);
    }
    return;
  }
  const auto upper = [&](int64_t c) { return y_upper != nullptr ? y_upper + c * y_stride : nullptr; };
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) {
    decoded_columns<Row, 4>(x + c * x_stride, x_stride, w, row_begin, row_end, y + c * y_stride, upper(c), y_stride);
  }
  if (c + 2 <= columns) {
    decoded_columns<Row, 2>(x + c * x_stride, x_stride, w, row_begin, row_end, y + c * y_stride, upper(c), y_stride);
    c += 2;
  }
  if (c < columns) {
    decoded_columns<Row, 1>(x + c * x_stride, x_stride, w, row_begin, row_end, y + c * y_stride, upper(c), y_stride);
  }
}

// Calls body with a null pointer to the decoder of a format; nothing for the formats that linear() reads as they are.
template <typename Body>
inline void with_decoder(WeightFormat format, const Body& body) {
  switch (format) {
    case WeightFormat::kBF16:
    case WeightFormat::kF32:
      return;
    case WeightFormat::kF16:
      return body(static_cast<F16Row*>(nullptr));
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp8Tensor:
      return body(static_cast<Fp8Row*>(nullptr));
    case WeightFormat::kFp8Block:
      return body(static_cast<Fp8BlockRow*>(nullptr));
    case WeightFormat::kNvfp4:
      return body(static_cast<Nvfp4Row*>(nullptr));
    case WeightFormat::kInt3:
      return body(static_cast<IntRow<3>*>(nullptr));
    case WeightFormat::kInt4:
      return body(static_cast<IntRow<4>*>(nullptr));
    case WeightFormat::kInt8:
      return body(static_cast<Int8Row*>(nullptr));
  }
}

inline void linear_quantised(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                             int64_t row_end, float* y, float* y_upper, int64_t y_stride, float* scratch) {
  with_decoder(w.format, [&]<typename Row>(Row*) {
    linear_decoded<Row>(x, x_stride, columns, w, row_begin, row_end, y, y_upper, y_stride, scratch);
  });
}

inline void decode_row(const Weight& w, int64_t row, float* out) {
  if (w.format == WeightFormat::kF32) {
    std::memcpy(out, static_cast<const float*>(w.data) + row * w.inputs, static_cast<size_t>(w.inputs) * sizeof(float));
  } else if (w.format == WeightFormat::kBF16) {
    const uint16_t* bits = static_cast<const uint16_t*>(w.data) + row * w.inputs;
    for (int64_t i = 0; i < w.inputs; ++i) out[i] = load_scale(bits, ScaleType::kBF16, i);
  }
  with_decoder(w.format, [&]<typename Row>(Row*) {
    Row decoder(w, row);
    decode_inputs(decoder, w.inputs, out);
    for (int64_t i = 0; i < w.inputs; ++i) out[i] = decoder.finish(out[i]);
  });
}

}  // namespace tandem::ops::host::TANDEM_ISA
