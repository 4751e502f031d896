// How the kernels read FP8 experts from their units (numeric/fp8_units.h), and their exact sums with 8-bit activations.
//
// In units of 2^-9 an E4M3 number is an integer of 18 bits and a sign. Its upper exponent bits (bits 5 and 6 of the
// code) say in which of four planes it stands, whose units are 1, 8, 128 and 2048: there it is a byte of at most 120 in
// magnitude, and 0 in the other planes. The products of a plane are summed as bytes, the planes' sums by Horner's rule.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/block_formats.h"

namespace tandem::ops::host::TANDEM_ISA {

struct Fp8Units : NaturalOrder {
  static constexpr int64_t kInputs = 32, kBytes = 512;
  static constexpr int kScales = 0;
  // To the weights of each plane kAddedToSigned is added.
  static constexpr int kAdded = kAddedToSigned * (1 + 8 + 128 + 2048);
};

// With n the lower nibble of a code, B = (8 + (n & 7)) << (n >> 3): the magnitude is n or 2 B in the first plane, B or
// 4 B in the others, by bit 4. Each with kAddedToSigned.
template <int kTimes>
inline Rows fp8_magnitudes(Rows nibbles) {
  constexpr auto at = [](int n) { return static_cast<int8_t>(((8 + (n & 7)) << (n >> 3)) * kTimes + kAddedToSigned); };
  alignas(16) static constexpr int8_t kTable[16] = {at(0), at(1), at(2),  at(3),  at(4),  at(5),  at(6),  at(7),
                                                    at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15)};
  return lookup_bytes(kTable, nibbles);
}

// From a plane to the next lower one, in bits.
inline constexpr int kFp8Steps[4] = {3, 4, 4, 0};

// The planes of word i of a unit, four inputs of all rows; the sums of 32 inputs for each column, and both together.
#ifdef __AVX512F__
struct Fp8Planes {
  Rows planes[4][8];
};
inline void fp8_word(Rows codes, int i, Fp8Planes& to) {
  const Rows zero = set_rows(static_cast<int32_t>(0x80808080U));  // kAddedToSigned
  const Rows nibbles = low_nibbles(codes);
  const __mmask64 bit4 = _mm512_test_epi8_mask(codes, set_rows(0x10101010));
  const __mmask64 bit5 = _mm512_test_epi8_mask(codes, set_rows(0x20202020));
  const __mmask64 bit6 = _mm512_test_epi8_mask(codes, set_rows(0x40404040));
  const __mmask64 first = _knot_mask64(_kor_mask64(bit5, bit6));
  const Rows lower = _mm512_mask_blend_epi8(bit4, or_rows(nibbles, zero), fp8_magnitudes<2>(nibbles));
  const Rows others = _mm512_mask_blend_epi8(bit4, fp8_magnitudes<1>(nibbles), fp8_magnitudes<4>(nibbles));
  const Rows magnitudes = _mm512_mask_mov_epi8(others, first, lower);
  const Rows weights = negate_where(magnitudes, codes, zero);
  to.planes[0][i] = _mm512_mask_mov_epi8(zero, first, weights);
  to.planes[1][i] = _mm512_mask_mov_epi8(zero, _kandn_mask64(bit6, bit5), weights);
  to.planes[2][i] = _mm512_mask_mov_epi8(zero, _kandn_mask64(bit5, bit6), weights);
  to.planes[3][i] = _mm512_mask_mov_epi8(zero, _kand_mask64(bit5, bit6), weights);
}

template <int C>
[[gnu::always_inline]] inline void fp8_dots(const Fp8Planes& weights, const Int8Block* const* columns, int64_t block,
                                            Rows (&dots)[C]) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) dots[c] = set_rows(0);
#pragma GCC unroll 4
  for (int plane = 3; plane >= 0; --plane) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) dots[c] = shift_left(dots[c], set_rows(kFp8Steps[plane]));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) dots[c] = add_dots(dots[c], weights.planes[plane][i], columns[c][block].values[i]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) dots[c] = add_rows(dots[c], set_rows(columns[c][block].start[0]));
}
#else
struct Fp8Planes {
  Rows planes[4][8];  // magnitudes
  Rows signs[8];
};
inline void fp8_word(Rows codes, int i, Fp8Planes& to) {
  const Rows nibbles = low_nibbles(codes);
  const Rows bit4 = shift_left<3>(codes);  // uppermost in its byte
  const Rows number = and_rows(codes, set_rows(0x60606060));
  const Rows first = _mm256_blendv_epi8(nibbles, fp8_magnitudes<2>(nibbles), bit4);
  const Rows others = _mm256_blendv_epi8(fp8_magnitudes<1>(nibbles), fp8_magnitudes<4>(nibbles), bit4);
  to.planes[0][i] = and_rows(first, _mm256_cmpeq_epi8(number, set_rows(0)));
  to.planes[1][i] = and_rows(others, _mm256_cmpeq_epi8(number, set_rows(0x20202020)));
  to.planes[2][i] = and_rows(others, _mm256_cmpeq_epi8(number, set_rows(0x40404040)));
  to.planes[3][i] = and_rows(others, _mm256_cmpeq_epi8(number, set_rows(0x60606060)));
  to.signs[i] = or_rows(codes, set_rows(0x01010101));  // never zero
}

// magnitudes * (x with the weight's sign): two products are at most 2 * 120 * 127 and fit 16 bits.
template <int C>
[[gnu::always_inline]] inline void fp8_dots(const Fp8Planes& weights, const Int8Block* const* columns, int64_t block,
                                            Rows (&dots)[C]) {
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    Rows x[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) x[i] = _mm256_sign_epi8(set_rows(columns[c][block].values[i]), weights.signs[i]);
    dots[c] = set_rows(0);
#pragma GCC unroll 4
    for (int plane = 3; plane >= 0; --plane) {
      dots[c] = shift_left(dots[c], set_rows(kFp8Steps[plane]));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const Rows pairs = _mm256_maddubs_epi16(weights.planes[plane][i], x[i]);
        dots[c] = add_rows(dots[c], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      }
    }
  }
}
#endif

template <int C>
[[gnu::always_inline]] inline void fp8_sums(const std::byte* unit, const Int8Block* const* columns, int64_t block,
                                            RowFloats (&out)[C]) {
  Fp8Planes weights;
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) fp8_word(load_word(unit, i), i, weights);
  Rows dots[C];
  fp8_dots(weights, columns, block, dots);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) out[c] = to_float(dots[c]);
}

// What the rows' sums are multiplied by, from the BF16 multiplier of their 128 inputs.
inline RowFloats fp8_factor(uint16_t multiplier) {
  const uint32_t bits = uint32_t{multiplier} << 16;
  float factor = 0;
  std::memcpy(&factor, &bits, sizeof factor);
  return set_row_floats(factor * 0x1p-9F);
}

}  // namespace tandem::ops::host::TANDEM_ISA
