// Products with NVFP4 expert records: canonical 4-bit activations in integers, and FP32 activations.
//
// A tile of 16 rows is a run of units of 16 rows x 64 inputs: u32 codes[8][16 rows], then u8 scales[16 rows][4]. One
// register holds one word of all rows, so lane = row everywhere and no sum crosses lanes. A unit is decoded once for
// all columns of a call. With VBMI, per unit of 576 bytes: 40 operations to decode, 48 a column; at one and two
// columns the records' bytes bound it, at eight the multiplications.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/rows.h"

namespace tandem::ops::host::TANDEM_ISA {

inline constexpr int64_t kUnitBytes = 576;
inline constexpr int64_t kUnitInputs = 64;
// C + 12 of each code, C = 2 * E2M1: the byte products want one unsigned operand. A column's `start` takes it off
// again.
alignas(16) inline constexpr int8_t kShiftedE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
// 512 * E4M3 = ((code & 7) | hidden bit) << shift, both by the exponent.
alignas(16) inline constexpr int8_t kE4m3Hidden[16] = {0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
alignas(16) inline constexpr int8_t kE4m3Shift[16] = {0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

// The four block scales of each row of a unit, S = mantissa << shift, a byte each.
struct UnitScales {
  Rows mantissa, shift;
};
inline UnitScales unit_scales(const void* codes) {
  const Rows scales = load_rows(codes);
  const Rows exponents = shift_right<3>(scales);  // and bits of neighbours above them
  return {and_or(scales, set_rows(0x07070707), lookup_nibbles(kE4m3Hidden, exponents)),
          lookup_nibbles(kE4m3Shift, exponents)};
}
template <int kBlock>
inline Rows block_scale(const UnitScales& scales) {
  return shift_left(shuffle_in_words<kBlock, -1, -1, -1>(scales.mantissa),
                    shuffle_in_words<kBlock, -1, -1, -1>(scales.shift));
}

// dots[c] = the exact integer products of column c with the weights, four registers of unsigned bytes.
#ifdef __AVX512F__
inline constexpr int kNvfp4Together = 8;  // columns whose sums stay in registers

// Column by column within one step, so that neighbouring instructions do not wait for each other.
template <int C>
inline void block_dots(const Rows (&w)[4], const Nvfp4Block* const* columns, int64_t block, Rows (&dots)[C]) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) dots[c] = set_rows(columns[c][block].start);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) dots[c] = add_dots(dots[c], w[i], columns[c][block].values[i]);
  }
}
#else
inline constexpr int kNvfp4Together = 4;

// Sums of 8 products are at most 8 * 24 * 12 and fit 16 bits, so nothing saturates.
template <int C>
inline void block_dots(const Rows (&w)[4], const Nvfp4Block* const* columns, int64_t block, Rows (&dots)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const Nvfp4Block& x = columns[c][block];
    const Rows a = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], set_rows(x.values[0])),
                                    _mm256_maddubs_epi16(w[1], set_rows(x.values[1])));
    const Rows b = _mm256_add_epi16(_mm256_maddubs_epi16(w[2], set_rows(x.values[2])),
                                    _mm256_maddubs_epi16(w[3], set_rows(x.values[3])));
    dots[c] = add_rows(_mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1)), set_rows(x.start));
  }
}
#endif

// One block of 16 inputs of a unit, for C columns.
template <int kBlock, int C>
inline void nvfp4_block(const std::byte* unit, const UnitScales& scales, const Nvfp4Block* const* columns,
                        int64_t block, RowSums (&sums)[C]) {
  const Rows first = load_rows(unit + static_cast<ptrdiff_t>(2 * kBlock) * 64);
  const Rows second = load_rows(unit + static_cast<ptrdiff_t>(2 * kBlock + 1) * 64);
  const Rows w[4] = {lookup_nibbles(kShiftedE2m1, first), lookup_nibbles(kShiftedE2m1, shift_right<4>(first)),
                     lookup_nibbles(kShiftedE2m1, second), lookup_nibbles(kShiftedE2m1, shift_right<4>(second))};
  const Rows scale = block_scale<kBlock>(scales);
  Rows dots[C];
  block_dots(w, columns, block, dots);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) dots[c] = multiply_rows(dots[c], scale);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) sums[c] = add_products(sums[c], dots[c], columns[c][block].scale);
}

template <int C>
inline void nvfp4_columns(const Tile& tile, int64_t inputs, const Nvfp4Block* const* columns,
                          const float* column_scales, float* out) {
  const int64_t units = inputs / kUnitInputs;
  for (int64_t row = 0; row < kExpertTileRows; row += kRowLanes) {
    RowSums sums[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[c] = no_sums();
    for (int64_t u = 0; u < units; ++u) {
      const std::byte* unit = tile.data + u * kUnitBytes + row * 4;
      if (row == 0) prefetch_ahead(unit, kUnitBytes, tile.data + units * kUnitBytes, tile.next);
      const UnitScales scales = unit_scales(unit + 512);
      nvfp4_block<0>(unit, scales, columns, 4 * u, sums);
      nvfp4_block<1>(unit, scales, columns, 4 * u + 1, sums);
      nvfp4_block<2>(unit, scales, columns, 4 * u + 2, sums);
      nvfp4_block<3>(unit, scales, columns, 4 * u + 3, sums);
    }
    // y = float(R) * 2^-20 * scale of the column
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      store_rows(out + kExpertTileRows * c + row,
                 multiply(multiply(to_float(sums[c]), set_row_floats(0x1p-20F)), set_row_floats(column_scales[c])));
    }
  }
}

template <int C>
inline void nvfp4_dispatch(const Tile& tile, int64_t inputs, const Nvfp4Block* const* columns, int64_t count,
                           const float* scales, float* out) {
  if (count == C) return nvfp4_columns<C>(tile, inputs, columns, scales, out);
  if constexpr (C > 1) nvfp4_dispatch<C - 1>(tile, inputs, columns, count, scales, out);
}

inline void nvfp4_w4a4(const Tile& tile, int64_t inputs, const Nvfp4Block* const* columns, int64_t count,
                       const float* scales, float* out) {
  for (int64_t c = 0; c < count; c += kNvfp4Together) {
    const int64_t together = count - c < kNvfp4Together ? count - c : kNvfp4Together;
    nvfp4_dispatch<kNvfp4Together>(tile, inputs, columns + c, together, scales + c, out + kExpertTileRows * c);
  }
}

template <int kBlock>
inline RowFloats nvfp4_float_block(const std::byte* unit, const UnitScales& scales, const float* x, RowFloats sum) {
  // 2^-10 undoes 2 * E2M1 and 512 * E4M3, exactly.
  const RowFloats scale = multiply(to_float(block_scale<kBlock>(scales)), set_row_floats(0x1p-10F));
  for (int word = 2 * kBlock; word < 2 * kBlock + 2; ++word) {
    Rows codes = load_rows(unit + static_cast<ptrdiff_t>(word) * 64);
    for (int n = 0; n < 8; ++n) {
      sum = multiply_add(multiply(to_float(e2m1_doubled(codes)), scale), set_row_floats(x[8 * word + n]), sum);
      codes = shift_right<4>(codes);
    }
  }
  return sum;
}

inline void nvfp4_w4a16(const std::byte* tile, int64_t inputs, const float* const* columns, int64_t count, float scale,
                        float* out) {
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t row = 0; row < kExpertTileRows; row += kRowLanes) {
      RowFloats sum = set_row_floats(0);
      for (int64_t u = 0; u < inputs / kUnitInputs; ++u) {
        const std::byte* unit = tile + u * kUnitBytes + row * 4;
        const float* x = columns[c] + u * kUnitInputs;
        const UnitScales scales = unit_scales(unit + 512);
        sum = nvfp4_float_block<0>(unit, scales, x, sum);
        sum = nvfp4_float_block<1>(unit, scales, x, sum);
        sum = nvfp4_float_block<2>(unit, scales, x, sum);
        sum = nvfp4_float_block<3>(unit, scales, x, sum);
      }
      store_rows(out + kExpertTileRows * c + row, multiply(sum, set_row_floats(scale)));
    }
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
