// How the kernels read GGUF's block formats from their units (numeric/block_units.h).
//
// A format gives 32 inputs of all rows as eight registers of four bytes a lane, in an order of inputs of its own
// (kOrder[i] is the input of byte i), with kScales integer scales (none, one, or one for each half of the words), and
// the FP32 factor of each row. Signed weights have 128 added with AVX-512 (kAdded).
//
// The codebooks are looked up in registers where the processor has VBMI (two 64-byte registers a step, 7 bits of the
// index, the rest by blending), else gathered from the first cache. The two forms meet the inputs in another order.
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
// Word 4j + k has inputs k, 8 + k, 4 + k, 12 + k of the j-th sixteen.
struct EightApartOrder {
  static constexpr uint8_t kOrder[32] = {0,  8,  4,  12, 1,  9,  5,  13, 2,  10, 6,  14, 3,  11, 7,  15,
                                         16, 24, 20, 28, 17, 25, 21, 29, 18, 26, 22, 30, 19, 27, 23, 31};
};

#ifdef __AVX512F__
inline constexpr int kAddedToSigned = 128;

// 128 + each magnitude, negated where the sign bytes have one of `bits` (a byte each): 128 - it, as bytes wrap.
inline Rows apply_signs(Rows magnitudes, Rows signs, Rows bits) {
  return _mm512_mask_sub_epi8(magnitudes, _mm512_test_epi8_mask(signs, bits), _mm512_setzero_si512(), magnitudes);
}
// Words of magnitudes with 128 added, of four groups. An index has 16 bits: groups 0 and 2 in the lower and upper
// halves of the lanes of `even`, 1 and 3 in those of `odd`.
inline void gather_groups(const uint32_t* table, Rows even, Rows odd, Rows (&out)[4]) {
  const Rows added = set_rows(static_cast<int32_t>(0x80808080U));
  const Rows half = set_rows(0xffff);
  const Rows index[4] = {and_rows(even, half), and_rows(odd, half), shift_right<16>(even), shift_right<16>(odd)};
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) out[g] = or_rows(_mm512_i32gather_epi32(index[g], table, 4), added);
}
// Both words of entries of two.
inline void gather_pairs(const uint32_t* table, Rows index, Rows (&out)[2]) {
  const Rows added = set_rows(static_cast<int32_t>(0x80808080U));
  out[0] = or_rows(_mm512_i32gather_epi32(index, table, 8), added);
  out[1] = or_rows(_mm512_i32gather_epi32(index, table + 1, 8), added);
}
// All bits of a 16-bit lane where it has the bit of `bits`.
inline Rows bits_set(Rows a, Rows bits) {
  return _mm512_movm_epi16(_mm512_test_epi16_mask(a, bits));
}
#else
inline constexpr int kAddedToSigned = 0;

inline Rows apply_signs(Rows magnitudes, Rows signs, Rows bits) {
  const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
  return _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative);
}
inline void gather_groups(const uint32_t* table, Rows even, Rows odd, Rows (&out)[4]) {
  const Rows half = set_rows(0xffff);
  const auto* words = reinterpret_cast<const int*>(table);
  out[0] = _mm256_i32gather_epi32(words, and_rows(even, half), 4);
  out[1] = _mm256_i32gather_epi32(words, and_rows(odd, half), 4);
  out[2] = _mm256_i32gather_epi32(words, shift_right<16>(even), 4);
  out[3] = _mm256_i32gather_epi32(words, shift_right<16>(odd), 4);
}
inline void gather_pairs(const uint32_t* table, Rows index, Rows (&out)[2]) {
  alignas(32) uint32_t i[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(i), index);
  const auto two = [&](int a, int b) {
    const auto* first = reinterpret_cast<const __m128i*>(table + static_cast<ptrdiff_t>(2 * i[a]));
    const auto* second = reinterpret_cast<const double*>(table + static_cast<ptrdiff_t>(2 * i[b]));
    return _mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64(first)), second);
  };
  const __m256 a = _mm256_castpd_ps(_mm256_set_m128d(two(4, 5), two(0, 1)));
  const __m256 b = _mm256_castpd_ps(_mm256_set_m128d(two(6, 7), two(2, 3)));
  out[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  out[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}
inline Rows bits_set(Rows a, Rows bits) {
  return _mm256_cmpeq_epi16(_mm256_and_si256(a, bits), bits);
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
// 2 * (the nibble at `bit`) + 1.
inline Rows odd_scale(Rows word, int bit) {
  return and_or(rotate_right(word, bit + 31), set_rows(30), set_rows(1));
}

#ifdef __AVX512VBMI__

// The bytes at `index`, of a table of 128 times the number of blends and one.
inline Rows lookup_128(const uint8_t* table, Rows index) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
}
inline Rows lookup_256(const uint8_t* table, Rows index, __mmask64 bit7) {
  return _mm512_mask_blend_epi8(bit7, lookup_128(table, index), lookup_128(table + 128, index));
}
inline Rows lookup_512(const uint8_t* table, Rows index, __mmask64 bit7, __mmask64 bit8) {
  return _mm512_mask_blend_epi8(bit8, lookup_256(table, index, bit7), lookup_256(table + 256, index, bit7));
}
inline Rows lookup_1024(const uint8_t* table, Rows index, __mmask64 bit7, __mmask64 bit8, __mmask64 bit9) {
  return _mm512_mask_blend_epi8(bit9, lookup_512(table, index, bit7, bit8), lookup_512(table + 512, index, bit7, bit8));
}

// 16 inputs from the two halves of their four entries, with the signs of their two groups of eight. 128 is added to the
// magnitudes on the way.
template <bool kLevels>
inline void words_of_halves(Rows first, Rows second, Rows signs, Rows* w) {
  alignas(16) static constexpr int8_t kIq3xxsLevels[16] = {4 - 128,  12 - 128, 20 - 128, 28 - 128,
                                                           36 - 128, 44 - 128, 52 - 128, 62 - 128};
  const Rows added = set_rows(static_cast<int32_t>(0x80808080U));
  const Rows codes[4] = {first, shift_right<4>(first), second, shift_right<4>(second)};
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const Rows magnitudes =
        kLevels ? lookup_bytes(kIq3xxsLevels, low_nibbles(codes[k])) : and_or(codes[k], set_rows(0x0f0f0f0f), added);
    w[k] = apply_signs(magnitudes, signs, set_rows(0x10011001 << k));
  }
}

#endif

// The eighth sign bits, which make the number of negative weights in each byte even.
inline Rows with_parity(Rows sevens) {
  alignas(16) static constexpr int8_t kOdd[16] = {0,    -128, -128, 0,    -128, 0,    0,    -128,
                                                  -128, 0,    0,    -128, 0,    -128, -128, 0};
  return or_rows(sevens, xor_rows(lookup_bytes(kOdd, low_nibbles(sevens)), lookup_bytes(kOdd, high_nibbles(sevens))));
}
// Four times seven sign bits to four bytes.
inline Rows spread_sevens(Rows word) {
  const Rows low = or_rows(and_rows(word, set_rows(0x7f)), and_rows(shift_left<1>(word), set_rows(0x7f00)));
  const Rows high =
      or_rows(and_rows(shift_left<2>(word), set_rows(0x7f0000)), and_rows(shift_left<3>(word), set_rows(0x7f000000)));
  return or_rows(low, high);
}

// Byte `index` of each word in all its four bytes.
inline Rows spread_byte(Rows word, int index) {
  return shuffle_in_words<0, 0, 0, 0>(shift_right(word, 8 * index));
}

template <int kIndex>
inline Rows spread_byte(Rows word) {
  return shuffle_in_words<kIndex, kIndex, kIndex, kIndex>(word);
}

// The entries of four groups of four inputs, gathered. `high` has their ninth bits: bits kBit to kBit + 3
// of every byte; `signs` the sign bytes of two groups of eight from byte kByte on.
template <int kBit, int kByte, bool kNinth>
inline void words_of_loads(const uint32_t* table, Rows index, Rows high, Rows signs, Rows* w) {
  const Rows byte = set_rows(0xff00ff);
  Rows pairs[2] = {and_rows(index, byte), and_rows(shift_right<8>(index), byte)};  // groups 0 and 2, 1 and 3
  if constexpr (kNinth) {
    const Rows ninth = set_rows(0x01000100);
    constexpr int32_t kEven = 1 << kBit | 4 << (kBit + 16);
    pairs[0] = and_or(bits_set(high, set_rows(kEven)), ninth, pairs[0]);
    pairs[1] = and_or(bits_set(high, set_rows(kEven * 2)), ninth, pairs[1]);
  }
  const Rows first = spread_byte<kByte>(signs);
  const Rows second = spread_byte<kByte + 1>(signs);
  const Rows low = set_rows(0x08040201);
  const Rows upper = set_rows(static_cast<int32_t>(0x80402010U));
  Rows magnitudes[4];
  gather_groups(table, pairs[0], pairs[1], magnitudes);
  w[0] = apply_signs(magnitudes[0], first, low);
  w[1] = apply_signs(magnitudes[1], first, upper);
  w[2] = apply_signs(magnitudes[2], second, low);
  w[3] = apply_signs(magnitudes[3], second, upper);
}

struct Iq3s
#ifdef __AVX512VBMI__
    : FourApartOrder
#else
    : NaturalOrder
#endif
{
  static constexpr int64_t kInputs = 256, kBytes = 1760;
  static constexpr int kScales = 1, kAdded = kAddedToSigned;
  static constexpr bool kSigned = true;

  static void weights(const std::byte* unit, int b, const IquantTables& tables, Rows* w, Rows* scales) {
    const Rows high = spread_byte(load_word(unit, 16 + b / 4), b % 4);
    const Rows signs = load_word(unit, 18 + b);
    scales[0] = odd_scale(load_word(unit, 26), 4 * b);
#ifdef __AVX512VBMI__
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows index = load_word(unit, 2 * b + j);
      const __mmask64 bit7 = _mm512_movepi8_mask(index);
      const __mmask64 bit8 = _mm512_test_epi8_mask(high, set_rows(static_cast<int32_t>(0x08040201U << (4 * j))));
      words_of_halves<false>(
          lookup_512(tables.iq3s_halves[0], index, bit7, bit8), lookup_512(tables.iq3s_halves[1], index, bit7, bit8),
          j == 0 ? shuffle_in_words<0, 0, 1, 1>(signs) : shuffle_in_words<2, 2, 3, 3>(signs), w + 4 * j);
    }
#else
    words_of_loads<0, 0, true>(tables.iq3s, load_word(unit, 2 * b), high, signs, w);
    words_of_loads<4, 2, true>(tables.iq3s, load_word(unit, 2 * b + 1), high, signs, w + 4);
#endif
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) { return load_scale(unit, 27, row, 0); }
};

struct Iq3xxs
#ifdef __AVX512VBMI__
    : FourApartOrder
#else
    : NaturalOrder
#endif
{
  static constexpr int64_t kInputs = 256, kBytes = 1568;
  static constexpr int kScales = 1, kAdded = kAddedToSigned;
  static constexpr bool kSigned = true;

  static void weights(const std::byte* unit, int b, const IquantTables& tables, Rows* w, Rows* scales) {
    const Rows word = load_word(unit, 16 + b);
    const Rows signs = with_parity(spread_sevens(word));
    scales[0] = odd_scale(word, 28);
#ifdef __AVX512VBMI__
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows index = load_word(unit, 2 * b + j);
      const __mmask64 bit7 = _mm512_movepi8_mask(index);
      words_of_halves<true>(
          lookup_256(tables.iq3xxs_halves[0], index, bit7), lookup_256(tables.iq3xxs_halves[1], index, bit7),
          j == 0 ? shuffle_in_words<0, 0, 1, 1>(signs) : shuffle_in_words<2, 2, 3, 3>(signs), w + 4 * j);
    }
#else
    words_of_loads<0, 0, false>(tables.iq3xxs, load_word(unit, 2 * b), word, signs, w);
    words_of_loads<4, 2, false>(tables.iq3xxs, load_word(unit, 2 * b + 1), word, signs, w + 4);
#endif
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) {
    return multiply(load_scale(unit, 24, row, 0), set_row_floats(0.25F));
  }
};

struct Iq2s
#ifdef __AVX512VBMI__
    : EightApartOrder
#else
    : NaturalOrder
#endif
{
  static constexpr int64_t kInputs = 256, kBytes = 1312;
  static constexpr int kScales = 2, kAdded = kAddedToSigned;
  static constexpr bool kSigned = true;

  static void weights(const std::byte* unit, int b, const IquantTables& tables, Rows* w, Rows* scales) {
    const Rows entries = load_word(unit, b);
    const Rows signs = load_word(unit, 8 + b);
    const Rows high = spread_byte(load_word(unit, 16 + b / 4), b % 4);
    const Rows both = load_word(unit, 18 + b / 4);
    scales[0] = odd_scale(both, 8 * (b % 4));
    scales[1] = odd_scale(both, 8 * (b % 4) + 4);
#ifdef __AVX512VBMI__
    // A half of an entry has four codes of two bits; a nibble has two of them. 128 + 8, 25 and 43.
    alignas(16) static constexpr int8_t kLower[16] = {-120, -103, -85, 0, -120, -103, -85, 0,
                                                      -120, -103, -85, 0, -120, -103, -85, 0};
    alignas(16) static constexpr int8_t kUpper[16] = {-120, -120, -120, -120, -103, -103, -103, -103,
                                                      -85,  -85,  -85,  -85,  0,    0,    0,    0};
    const __mmask64 bit7 = _mm512_movepi8_mask(entries);
    const __mmask64 bit8 = _mm512_test_epi8_mask(high, set_rows(0x40100401));
    const __mmask64 bit9 = _mm512_test_epi8_mask(high, set_rows(static_cast<int32_t>(0x80200802U)));
    const Rows first = lookup_1024(tables.iq2s_halves[0], entries, bit7, bit8, bit9);
    const Rows second = lookup_1024(tables.iq2s_halves[1], entries, bit7, bit8, bit9);
    const Rows lower = set_rows(0xffff);
    const Rows sixteens[2] = {and_or(first, lower, shift_left<16>(second)),
                              and_or(second, shift_left<16>(lower), shift_right<16>(first))};
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows sign = j == 0 ? shuffle_in_words<0, 1, 0, 1>(signs) : shuffle_in_words<2, 3, 2, 3>(signs);
      const Rows low = low_nibbles(sixteens[j]);
      const Rows upper = high_nibbles(sixteens[j]);
      const Rows magnitudes[4] = {lookup_bytes(kLower, low), lookup_bytes(kUpper, low), lookup_bytes(kLower, upper),
                                  lookup_bytes(kUpper, upper)};
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) w[4 * j + k] = apply_signs(magnitudes[k], sign, set_rows(0x10100101 << k));
    }
#else
    const Rows byte = set_rows(255);
    const Rows two_bits = set_rows(0x300);
    const Rows low = set_rows(0x08040201);
    const Rows upper = set_rows(static_cast<int32_t>(0x80402010U));
    const Rows sign[4] = {spread_byte<0>(signs), spread_byte<1>(signs), spread_byte<2>(signs), spread_byte<3>(signs)};
    const Rows bits[4] = {shift_left<8>(high), shift_left<6>(high), shift_left<4>(high), shift_left<2>(high)};
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const Rows entry = and_or(bits[g], two_bits, and_rows(shift_right(entries, 8 * g), byte));
      Rows words[2];
      gather_pairs(tables.iq2s, entry, words);
      w[2 * g] = apply_signs(words[0], sign[g], low);
      w[2 * g + 1] = apply_signs(words[1], sign[g], upper);
    }
#endif
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) {
    return multiply(load_scale(unit, 20, row, 0), set_row_floats(0.125F));
  }
};

// Four words of nibbles, each a step of IQ4_NL.
inline void words_of_steps(const std::byte* unit, int word, Rows* w) {
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
    w[i] = lookup_bytes(kSteps, low_nibbles(codes));
    w[4 + i] = lookup_bytes(kSteps, high_nibbles(codes));
  }
}

struct Iq4nl : NaturalOrder {
  static constexpr int64_t kInputs = 64, kBytes = 576;
  static constexpr int kScales = 0, kAdded = kAddedToSigned;
  static constexpr bool kSigned = true;

  static void weights(const std::byte* unit, int b, const IquantTables&, Rows* w, Rows*) {
    words_of_steps(unit, 4 * b, w);
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int b) { return load_scale(unit, 8, row, b); }
};

struct Iq4xs : NaturalOrder {
  static constexpr int64_t kInputs = 256, kBytes = 2176;
  static constexpr int kScales = 1, kAdded = kAddedToSigned;
  static constexpr bool kSigned = true;

  static void weights(const std::byte* unit, int b, const IquantTables&, Rows* w, Rows* scales) {
    const Rows low = and_rows(shift_right(load_word(unit, 1), 4 * b), set_rows(15));
    const Rows high = and_rows(shift_right(load_word(unit, 0), 16 + 2 * b), set_rows(3));
    scales[0] = add_rows(or_rows(low, shift_left<4>(high)), set_rows(-32));
    words_of_steps(unit, 2 + 4 * b, w);
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) { return low_halves(load_rows(unit + row * 4)); }
};

struct Q2_0 : FourApartOrder {
  static constexpr int64_t kInputs = 128, kBytes = 576;
  static constexpr int kScales = 0, kAdded = 1;  // the codes are 1 + the weight
  static constexpr bool kSigned = false;

  static void weights(const std::byte* unit, int b, const IquantTables&, Rows* w, Rows*) {
    const Rows two_bits = set_rows(0x03030303);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows codes = load_word(unit, 2 * b + j);
      w[4 * j] = and_rows(codes, two_bits);
      w[4 * j + 1] = and_rows(shift_right<2>(codes), two_bits);
      w[4 * j + 2] = and_rows(shift_right<4>(codes), two_bits);
      w[4 * j + 3] = and_rows(shift_right<6>(codes), two_bits);
    }
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int b) { return load_scale(unit, 8, row, b / 2); }
};

}  // namespace tandem::ops::host::TANDEM_ISA
