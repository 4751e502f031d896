// y = x * w^T for weights of every format, in the lane order of linear.h.
//
// Up to kDirectColumns columns decode in registers, tile by tile: bound by the weights' bytes at one column and by
// FMAs at eight. More columns decode a block of rows once (blocked.h). Both take the same FMAs in the same order.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/blocked.h"
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
        const f32x16 column = Row::arrange(load(x + c * x_stride + kLanes * J));
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
    for (int c = 0; c < C; ++c) out[r][c] = rows[r].finish(reduce_add(Row::restore(sum[r][c])));
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
  constexpr int kRows = C == 1 ? 8 : 4;
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
      store(out + kLanes * J, Row::restore(row.template get<J>()));
      decode_unit<J + 1>(row, count, out);
    } else if (left > 0) {
      float lanes[kLanes];
      store(lanes, Row::restore(row.template get_part<J>(left)));
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

// Rows [row, row + count) as FP32: where they are so already, or decoded in scratch.
template <typename Row>
inline const float* rows_in_fp32(Row* rows, const Weight& w, int64_t row, int64_t count, float* scratch) {
  for (int64_t r = 0; r < count; ++r) {
    rows[r] = Row(w, row + r);
    decode_inputs(rows[r], w.inputs, scratch + r * w.inputs);
  }
  return scratch;
}

template <typename Row>
inline void blocked_range(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                          int64_t row_end, float* y, float* y_upper, int64_t y_stride, float* scratch) {
  const int64_t most = dense_block_rows(w.inputs);
  float* const decoded = scratch + 16 * kMostBlockedColumns * most;
  const int64_t middle = y_upper != nullptr ? w.inputs / 2 : w.inputs;
  for (int64_t row = row_begin; row < row_end; row += most) {
    const int64_t count = row_end - row < most ? row_end - row : most;
    Row rows[kMostBlockRows];
    const float* matrix = rows_in_fp32(rows, w, row, count, decoded);
    blocked_rows(x, x_stride, columns, matrix, w.inputs, count, middle, y + row, y_stride, scratch);
    if (y_upper != nullptr) {
      blocked_rows(x + middle, x_stride, columns, matrix + middle, w.inputs, count, w.inputs - middle, y_upper + row,
                   y_stride, scratch);
    }
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < count; ++r) {
        float& sum = y[c * y_stride + row + r];
        sum = rows[r].finish(sum);
        if (y_upper == nullptr) continue;
        float& other = y_upper[c * y_stride + row + r];
        other = rows[r].finish(other);
      }
    }
  }
}

template <typename Row>
inline void direct_range(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                         int64_t row_end, float* y, float* y_upper, int64_t y_stride) {
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

template <typename Row>
inline void linear_decoded(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                           int64_t row_end, float* y, float* y_upper, int64_t y_stride, float* scratch) {
  const int64_t step = y_upper != nullptr ? 2 * kLanes : kLanes;
  if (!Row::kDirect || columns > kDirectColumns || w.inputs % step != 0) {
    return blocked_range<Row>(x, x_stride, columns, w, row_begin, row_end, y, y_upper, y_stride, scratch);
  }
  if constexpr (Row::kDirect) direct_range<Row>(x, x_stride, columns, w, row_begin, row_end, y, y_upper, y_stride);
}

// Calls body with a null pointer to the decoder of integers of so many bits.
template <int Bits, ScaleType kType, bool kWhole, typename Body>
inline void with_int_row(const Body& body) {
  if constexpr (Bits == 8) {
    body(static_cast<Int8Row<kType, kWhole>*>(nullptr));
  } else {
    body(static_cast<IntRow<Bits, kType, kWhole>*>(nullptr));
  }
}
template <int Bits, typename Body>
inline void with_int_decoder(const Weight& w, const Body& body) {
  const bool whole = w.group % kDecodeUnit == 0;
  switch (w.scale_type) {
    case ScaleType::kBF16:
      return whole ? with_int_row<Bits, ScaleType::kBF16, true>(body)
                   : with_int_row<Bits, ScaleType::kBF16, false>(body);
    case ScaleType::kF16:
      return whole ? with_int_row<Bits, ScaleType::kF16, true>(body) : with_int_row<Bits, ScaleType::kF16, false>(body);
    case ScaleType::kF32:
      return whole ? with_int_row<Bits, ScaleType::kF32, true>(body) : with_int_row<Bits, ScaleType::kF32, false>(body);
  }
}

// Calls body with a null pointer to the decoder of a matrix; nothing for the formats that linear() reads as they are.
template <typename Body>
inline void with_decoder(const Weight& w, const Body& body) {
  switch (w.format) {
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
      return with_int_decoder<3>(w, body);
    case WeightFormat::kInt4:
      return with_int_decoder<4>(w, body);
    case WeightFormat::kInt8:
      return with_int_decoder<8>(w, body);
  }
}

// BF16 and FP32 rows: few columns read them as they are.
template <typename W>
class PlainRow {
 public:
  PlainRow() = default;
  PlainRow(const Weight& w, int64_t row) : row_(static_cast<const W*>(w.data) + row * w.inputs) {}
  const W* data() const { return row_; }
  float finish(float sum) const { return sum; }

 private:
  const W* row_ = nullptr;
};

inline const float* rows_in_fp32(PlainRow<float>*, const Weight& w, int64_t row, int64_t, float*) {
  return static_cast<const float*>(w.data) + row * w.inputs;
}
inline const float* rows_in_fp32(PlainRow<uint16_t>*, const Weight& w, int64_t row, int64_t count, float* scratch) {
  const uint16_t* bits = static_cast<const uint16_t*>(w.data) + row * w.inputs;
  const int64_t elements = count * w.inputs;  // rows lie one behind the other
  int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) store(scratch + i, load_bf16(bits + i));
  for (; i < elements; ++i) scratch[i] = load_scale(bits, ScaleType::kBF16, i);
  return scratch;
}

template <typename W>
inline void linear_plain(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                         int64_t row_end, float* y, float* y_upper, int64_t y_stride, float* scratch) {
  if (columns > kDirectColumns) {
    return blocked_range<PlainRow<W>>(x, x_stride, columns, w, row_begin, row_end, y, y_upper, y_stride, scratch);
  }
  linear_range(x, x_stride, columns, static_cast<const W*>(w.data), w.inputs, row_begin, row_end, y, y_upper, y_stride);
}

inline void linear(const float* x, int64_t x_stride, int64_t columns, const Weight& w, int64_t row_begin,
                   int64_t row_end, float* y, float* y_upper, int64_t y_stride, float* scratch) {
  if (w.format == WeightFormat::kBF16) {
    return linear_plain<uint16_t>(x, x_stride, columns, w, row_begin, row_end, y, y_upper, y_stride, scratch);
  }
  if (w.format == WeightFormat::kF32) {
    return linear_plain<float>(x, x_stride, columns, w, row_begin, row_end, y, y_upper, y_stride, scratch);
  }
  with_decoder(w, [&]<typename Row>(Row*) {
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
  with_decoder(w, [&]<typename Row>(Row*) {
    Row decoder(w, row);
    decode_inputs(decoder, w.inputs, out);
    for (int64_t i = 0; i < w.inputs; ++i) out[i] = decoder.finish(out[i]);
  });
}

}  // namespace tandem::ops::host::TANDEM_ISA
