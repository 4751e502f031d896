// How the kernels read GGUF's block formats from their units (numeric/block_units.h); iquants.h has those with
// codebooks.
//
// A format gives 32 inputs of all rows as eight words of four bytes a lane, in an order of inputs of its own (kOrder[i]
// is the input of byte i), one after the other to `take(i, word)`; with kScales scales (none, one, or one for each half
// of the words), and the FP32 factor of each row.
//
// With AVX-512 a word is the weights with 128 added (kAdded), which makes them unsigned. With AVX2 it is their
// magnitudes, and bytes with their signs.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/rows.h"

namespace tandem::ops::host::TANDEM_ISA {

// Byte i of the registers meets input i.
struct NaturalOrder {
  static constexpr uint8_t kOrder[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                         16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
};
// Word 4j + k has inputs k, 4 + k, 8 + k, 12 + k of the j-th sixteen.
struct FourApartOrder {
  static constexpr uint8_t kOrder[32] = {0,  4,  8,  12, 1,  5,  9,  13, 2,  6,  10, 14, 3,  7,  11, 15,
                                         16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27, 31};
};

// A one in each byte, at bit i.
alignas(64) inline constexpr uint32_t kBitOfBytes[8] = {0x01010101, 0x02020202, 0x04040404, 0x08080808,
                                                        0x10101010, 0x20202020, 0x40404040, 0x80808080};
// Bits to shift by. From memory a broadcast costs a load, from a register a shuffle.
alignas(64) inline constexpr uint32_t kShifts[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
inline Rows shift_right_by(Rows a, int bits) {
  return shift_right(a, set_rows(static_cast<int32_t>(kShifts[bits])));
}

#ifdef __AVX512F__
inline constexpr int kAddedToSigned = 128;
using Word = Rows;
using BlockScale = RowFloats;  // sums and scales are whole numbers below 2^24, also in products: exact in FP32

inline Word steps_word(Rows steps) {
  return steps;
}
inline Word codes_word(Rows codes) {
  return codes;
}
// 128 + each magnitude, 128 - it where the bytes of `signs` have the bit of `bits`: bytes wrap.
inline Word negate_where(Rows added, Rows signs, Rows bits) {
  return _mm512_mask_sub_epi8(added, _mm512_test_epi8_mask(signs, bits), _mm512_setzero_si512(), added);
}
// From magnitudes, negative where the bytes of `signs` have the bit of `bits`.
inline Word signed_word(Rows magnitudes, Rows signs, Rows bits) {
  return negate_where(or_rows(magnitudes, set_rows(static_cast<int32_t>(0x80808080U))), signs, bits);
}
// 2 * (the nibble at `bit`) + 1
inline BlockScale odd_scale(Rows word, int bit) {
  const __m512 odd = _mm512_setr_ps(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutexvar_ps(shift_right_by(word, bit), odd);
}
inline BlockScale whole_scale(Rows scale) {
  return to_float(scale);
}
#else
inline constexpr int kAddedToSigned = 0;
struct Word {
  Rows magnitudes;
  Rows signs;  // a negative number's byte where the weight is negative, a positive one's where it is positive
};
using BlockScale = Rows;  // 16 bits, twice

inline Word steps_word(Rows steps) {
  return {_mm256_abs_epi8(steps), steps};
}
inline Word codes_word(Rows codes) {
  return {codes, codes};
}
inline Word signed_word(Rows magnitudes, Rows signs, Rows bits) {
  const Rows negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
  return {magnitudes, _mm256_or_si256(negative, _mm256_set1_epi8(1))};
}
inline BlockScale whole_scale(Rows scale) {
  return shuffle_in_words<0, 1, 0, 1>(scale);
}
inline BlockScale odd_scale(Rows word, int bit) {
  const Rows nibble = whole_scale(and_rows(shift_right_by(word, bit), set_rows(15)));
  return or_rows(_mm256_add_epi16(nibble, nibble), _mm256_set1_epi16(1));
}
#endif

inline Rows low_nibbles(Rows x) {
  return and_rows(x, set_rows(0x0f0f0f0f));
}
inline Rows high_nibbles(Rows x) {
  return low_nibbles(shift_right<4>(x));
}
// Word w of a unit; `unit` points at the first row's lane.
inline Rows load_word(const std::byte* unit, int w) {
  return load_rows(unit + static_cast<ptrdiff_t>(w) * 64);
}
// d of the rows, behind the words.
inline RowFloats load_scale(const std::byte* unit, int words, int64_t row, int b) {
  return load_halves(unit + static_cast<ptrdiff_t>(words) * 64 + static_cast<ptrdiff_t>(b) * 32 + row * 2);
}

// Eight words of nibbles, each a step of IQ4_NL.
template <typename Take>
[[gnu::always_inline]] inline void words_of_steps(const std::byte* unit, int word, const Take& take) {
  constexpr int kAdd = kAddedToSigned;  // 128 flips the uppermost bit
  alignas(16) static constexpr int8_t kSteps[16] = {
      static_cast<int8_t>(-127 + kAdd), static_cast<int8_t>(-104 + kAdd), static_cast<int8_t>(-83 + kAdd),
      static_cast<int8_t>(-65 + kAdd),  static_cast<int8_t>(-49 + kAdd),  static_cast<int8_t>(-35 + kAdd),
      static_cast<int8_t>(-22 + kAdd),  static_cast<int8_t>(-10 + kAdd),  static_cast<int8_t>(1 + kAdd),
      static_cast<int8_t>(13 + kAdd),   static_cast<int8_t>(25 + kAdd),   static_cast<int8_t>(38 + kAdd),
      static_cast<int8_t>(53 + kAdd),   static_cast<int8_t>(69 + kAdd),   static_cast<int8_t>(89 + kAdd),
      static_cast<int8_t>(113 + kAdd)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Rows codes = load_word(unit, word + i);
    take(i, steps_word(lookup_nibbles(kSteps, codes)));
    take(4 + i, steps_word(lookup_nibbles(kSteps, shift_right<4>(codes))));
  }
}

struct Iq4nl : NaturalOrder {
  static constexpr int64_t kInputs = 64, kBytes = 576;
  static constexpr int kScales = 0, kAdded = kAddedToSigned, kLargest = 127;
  static constexpr bool kSigned = true;

  template <typename Take>
  [[gnu::always_inline]] static void weights(const std::byte* unit, int b, const IquantTables&, const Take& take) {
    words_of_steps(unit, 4 * b, take);
  }
  static void scales(const std::byte*, int, BlockScale*) {}
  static RowFloats factor(const std::byte* unit, int64_t row, int b) { return load_scale(unit, 8, row, b); }
};

struct Iq4xs : NaturalOrder {
  static constexpr int64_t kInputs = 256, kBytes = 2176;
  static constexpr int kScales = 1, kAdded = kAddedToSigned, kLargest = 127;
  static constexpr bool kSigned = true;

  template <typename Take>
  [[gnu::always_inline]] static void weights(const std::byte* unit, int b, const IquantTables&, const Take& take) {
    words_of_steps(unit, 2 + 4 * b, take);
  }
  static void scales(const std::byte* unit, int b, BlockScale* scales) {
    const Rows low = and_rows(shift_right_by(load_word(unit, 1), 4 * b), set_rows(15));
    const Rows high = and_rows(shift_right_by(load_word(unit, 0), 16 + 2 * b), set_rows(3));
    scales[0] = whole_scale(add_rows(or_rows(low, shift_left<4>(high)), set_rows(-32)));
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) { return low_halves(load_rows(unit + row * 4)); }
};

struct Q2_0 : FourApartOrder {
  static constexpr int64_t kInputs = 128, kBytes = 576;
  static constexpr int kScales = 0, kAdded = 1, kLargest = 3;  // the codes are 1 + the weight
  static constexpr bool kSigned = false;

  template <typename Take>
  [[gnu::always_inline]] static void weights(const std::byte* unit, int b, const IquantTables&, const Take& take) {
    const Rows two_bits = set_rows(0x03030303);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows codes = load_word(unit, 2 * b + j);
      take(4 * j, codes_word(and_rows(codes, two_bits)));
      take(4 * j + 1, codes_word(and_rows(shift_right<2>(codes), two_bits)));
      take(4 * j + 2, codes_word(and_rows(shift_right<4>(codes), two_bits)));
      take(4 * j + 3, codes_word(and_rows(shift_right<6>(codes), two_bits)));
    }
  }
  static void scales(const std::byte*, int, BlockScale*) {}
  static RowFloats factor(const std::byte* unit, int64_t row, int b) { return load_scale(unit, 8, row, b / 2); }
};

}  // namespace tandem::ops::host::TANDEM_ISA
