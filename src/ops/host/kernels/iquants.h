// IQ2_S, IQ3_XXS and IQ3_S: how the kernels look their codebooks up (numeric/iquant_codes.h has the numbering of the
// entries in units).
//
// With VBMI codebooks lie in registers: one instruction looks up 64 bytes in 64 entries, by six bits of the index; more
// bits choose between such look-ups. A codebook is looked up in two parts of a bit or two a weight, and the numbering
// lets entries share the second part, which then needs few bits. Signs join the codes, and a last look-up makes a
// weight of both. Without VBMI whole entries are read from the first cache. The two forms meet the inputs in another
// order.
#pragma once

#include "ops/host/kernels/block_formats.h"

namespace tandem::ops::host::TANDEM_ISA {

#ifdef __AVX512VBMI__

// The bytes at `index`, of a table of 64 times the number of blends and one. Bits that are not asked for are ignored.
inline Rows lookup_64(const uint8_t* table, Rows index) {
  return _mm512_permutexvar_epi8(index, _mm512_load_si512(table));
}
inline Rows lookup_128(const uint8_t* table, Rows index, __mmask64 bit6) {
  return _mm512_mask_permutexvar_epi8(lookup_64(table, index), bit6, index, _mm512_load_si512(table + 64));
}
inline Rows lookup_256(const uint8_t* table, Rows index, __mmask64 bit6, __mmask64 bit7) {
  return _mm512_mask_blend_epi8(bit7, lookup_128(table, index, bit6), lookup_128(table + 128, index, bit6));
}
inline Rows lookup_512(const uint8_t* table, Rows index, __mmask64 bit6, __mmask64 bit7, __mmask64 bit8) {
  return _mm512_mask_blend_epi8(bit8, lookup_256(table, index, bit6, bit7), lookup_256(table + 256, index, bit6, bit7));
}
inline Rows lookup_1024(const uint8_t* table, Rows index, __mmask64 bit6, __mmask64 bit7, __mmask64 bit8,
                        __mmask64 bit9) {
  return _mm512_mask_blend_epi8(bit9, lookup_512(table, index, bit6, bit7, bit8),
                                lookup_512(table + 512, index, bit6, bit7, bit8));
}
// Which bytes have bit i.
inline __mmask64 bytes_with(Rows a, int i) {
  return _mm512_test_epi8_mask(a, set_rows(static_cast<int32_t>(kBitOfBytes[i])));
}

#else

// Words of entries of four inputs, of four groups. An index has 16 bits: groups 0 and 2 in the lower and upper halves
// of the lanes of `even`, 1 and 3 in those of `odd`.
inline void gather_groups(const uint32_t* table, Rows even, Rows odd, Rows (&out)[4]) {
  const Rows half = set_rows(0xffff);
  const Rows index[4] = {and_rows(even, half), and_rows(odd, half), shift_right<16>(even), shift_right<16>(odd)};
#ifdef __AVX512F__
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) out[g] = _mm512_i32gather_epi32(index[g], table, 4);
#else
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) out[g] = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index[g], 4);
#endif
}

#ifdef __AVX512F__
// Both words of entries of eight inputs, with indices as above: group 2j from the lower half of even, and so on.
template <typename Two>
[[gnu::always_inline]] inline void gather_pairs(const uint32_t (*table)[2], Rows even, Rows odd, const Two& two) {
  const Rows half = set_rows(0xffff);
  const Rows index[4] = {and_rows(even, half), and_rows(odd, half), shift_right<16>(even), shift_right<16>(odd)};
  const Rows first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const Rows second = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const Rows low = _mm512_i32gather_epi64(_mm512_castsi512_si256(index[g]), table, 8);
    const Rows high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index[g], 1), table, 8);
    two(g, _mm512_permutex2var_epi32(low, first, high), _mm512_permutex2var_epi32(low, second, high));
  }
}
#else
template <typename Two>
[[gnu::always_inline]] inline void gather_pairs(const uint32_t (*table)[2], Rows even, Rows odd, const Two& two) {
  alignas(32) uint16_t index[2][16];  // of groups 0 and 2, 1 and 3 in turns
  _mm256_store_si256(reinterpret_cast<__m256i*>(index[0]), even);
  _mm256_store_si256(reinterpret_cast<__m256i*>(index[1]), odd);
  asm("" : "+m"(index));  // compilers otherwise take the numbers out of the registers, by two operations each
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const uint16_t* of = index[g % 2] + g / 2;
    const auto entry = [&](int row) { return reinterpret_cast<const double*>(table[of[2 * row]]); };
    // Of rows a, b, c and d; blends are cheaper than shuffles.
    const auto four = [&](int a, int b, int c, int d) {
      const __m256d low = _mm256_castpd128_pd256(_mm_loadh_pd(_mm_load_sd(entry(a)), entry(b)));
      const __m256d high = _mm256_blend_pd(_mm256_broadcast_sd(entry(c)), _mm256_broadcast_sd(entry(d)), 0b1000);
      return _mm256_castpd_ps(_mm256_blend_pd(low, high, 0b1100));
    };
    const __m256 a = four(0, 1, 4, 5);
    const __m256 b = four(2, 3, 6, 7);
    two(g, _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
  }
}
#endif

#endif

template <int kIndex>
inline Rows spread_byte(Rows word) {
  return shuffle_in_words<kIndex, kIndex, kIndex, kIndex>(word);
}

struct Iq2sOrder {
  // Word k has inputs k, 8 + k, 4 + k, 12 + k of the first sixteen, word 4 + k 4 + k, 12 + k, k, 8 + k of the second.
  static constexpr uint8_t kOrder[32] = {0,  8,  4,  12, 1,  9,  5,  13, 2,  10, 6,  14, 3,  11, 7,  15,
                                         20, 28, 16, 24, 21, 29, 17, 25, 22, 30, 18, 26, 23, 31, 19, 27};
};

struct Iq2s
#ifdef __AVX512VBMI__
    : Iq2sOrder
#else
    : NaturalOrder
#endif
{
  static constexpr int64_t kInputs = 256, kBytes = 1312;
  static constexpr int kScales = 2, kAdded = kAddedToSigned, kLargest = 43;
  static constexpr bool kSigned = true;

  template <typename Take>
  [[gnu::always_inline]] static void weights(const std::byte* unit, int b, const IquantTables& tables,
                                             const Take& take) {
    const Rows entries = load_word(unit, b);
    const Rows signs = load_word(unit, 8 + b);
    const Rows high = load_word(unit, 16 + b / 4);
    const int bit = b % 4 * 2;
#ifdef __AVX512VBMI__
    const Rows own = lookup_1024(tables.iq2s_own, entries, bytes_with(entries, 6), _mm512_movepi8_mask(entries),
                                 bytes_with(high, bit), bytes_with(high, bit + 1));
    const Rows shared = lookup_64(tables.iq2s_shared, entries);
    // Codes of two bits a weight: the first and the second halves of the four groups.
    const Rows first = select_bits(own, set_rows(0x55555555), shared);
    const Rows second = rotate_right<16>(select_bits(shared, set_rows(0x55555555), own));
    const Rows lower = set_rows(0xffff);
    const auto sixteen = [&](int begin, Rows codes, Rows sign) __attribute__((always_inline)) {
      const Rows mask = set_rows(0x33333333);
      const Rows even = select_bits(codes, mask, sign);
      const Rows odd = select_bits(shift_right<2>(codes), mask, sign);
      take(begin, lookup_64(tables.iq2s_weights[0], even));
      take(begin + 1, lookup_64(tables.iq2s_weights[1], odd));
      take(begin + 2, lookup_64(tables.iq2s_weights[0], shift_right<4>(even)));
      take(begin + 3, lookup_64(tables.iq2s_weights[1], shift_right<4>(odd)));
    };
    sixteen(0, select_bits(first, lower, second), signs);
    sixteen(4, select_bits(second, lower, first), shift_left<2>(signs));
#else
    const Rows byte = set_rows(0xff00ff);
    const Rows two_bits = set_rows(0x3000300);
    const Rows upper = shift_right_by(high, bit);
    const Rows even = and_or(shift_left<8>(upper), two_bits, and_rows(entries, byte));
    const Rows odd = and_or(upper, two_bits, and_rows(shift_right<8>(entries), byte));
    const Rows bytes[4] = {spread_byte<0>(signs), spread_byte<1>(signs), spread_byte<2>(signs), spread_byte<3>(signs)};
    const Rows bits[2] = {set_rows(static_cast<int32_t>(0x80400804U)), set_rows(0x20100201)};
    gather_pairs(tables.iq2s, even, odd, [&](int g, Rows low, Rows up) __attribute__((always_inline)) {
      take(2 * g, signed_word(low, bytes[g], bits[g / 2]));
      take(2 * g + 1, signed_word(up, bytes[g ^ 2], bits[g / 2]));
    });
#endif
  }
  static void scales(const std::byte* unit, int b, BlockScale* scales) {
    const Rows both = load_word(unit, 18 + b / 4);
    scales[0] = odd_scale(both, 8 * (b % 4));
    scales[1] = odd_scale(both, 8 * (b % 4) + 4);
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) {
    return multiply(load_scale(unit, 20, row, 0), set_row_floats(0.125F));
  }
};

struct Iq3s
#ifdef __AVX512VBMI__
    : FourApartOrder
#else
    : NaturalOrder
#endif
{
  static constexpr int64_t kInputs = 256, kBytes = 1760;
  static constexpr int kScales = 1, kAdded = kAddedToSigned, kLargest = 15;
  static constexpr bool kSigned = true;

  template <typename Take>
  [[gnu::always_inline]] static void weights(const std::byte* unit, int b, const IquantTables& tables,
                                             const Take& take) {
    const Rows high = load_word(unit, 16 + b / 4);
    const Rows signs = load_word(unit, 18 + b);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows entries = load_word(unit, 2 * b + j);
      const int bit = b % 4 * 2 + j;
#ifdef __AVX512VBMI__
      const __mmask64 bit6 = bytes_with(entries, 6);
      const __mmask64 bit7 = _mm512_movepi8_mask(entries);
      const Rows own = lookup_512(tables.iq3s_own, entries, bit6, bit7, bytes_with(high, bit));
      const Rows shared = and_or(j == 0 ? signs : shift_left<1>(signs), set_rows(static_cast<int32_t>(0xaaaaaaaaU)),
                                 lookup_256(tables.iq3s_shared, entries, bit6, bit7));
      const Rows mask = set_rows(0x33333333);
      const Rows even = select_bits(own, mask, shared);
      const Rows odd = select_bits(shift_right<2>(own), mask, shift_left<2>(shared));
      take(4 * j, lookup_64(tables.iq3s_weights[0], even));
      take(4 * j + 1, lookup_64(tables.iq3s_weights[1], odd));
      take(4 * j + 2, lookup_64(tables.iq3s_weights[2], shift_right<4>(even)));
      take(4 * j + 3, lookup_64(tables.iq3s_weights[3], shift_right<4>(odd)));
#else
      const Rows byte = set_rows(0xff00ff);
      const Rows ninth = set_rows(0x1000100);
      const Rows upper = shift_right_by(high, bit);
      const Rows even = and_or(shift_left<8>(upper), ninth, and_rows(entries, byte));
      const Rows odd = and_or(upper, ninth, and_rows(shift_right<8>(entries), byte));
      const Rows bits = set_rows(j == 0 ? 0x20800208 : 0x10400104);
      Rows words[4];
      gather_groups(tables.iq3s, even, odd, words);
      take(4 * j, signed_word(words[0], spread_byte<0>(signs), bits));
      take(4 * j + 1, signed_word(words[1], spread_byte<1>(signs), bits));
      take(4 * j + 2, signed_word(words[2], spread_byte<2>(signs), bits));
      take(4 * j + 3, signed_word(words[3], spread_byte<3>(signs), bits));
#endif
    }
  }
  static void scales(const std::byte* unit, int b, BlockScale* scales) {
    scales[0] = odd_scale(load_word(unit, 26), 4 * b);
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) { return load_scale(unit, 27, row, 0); }
};

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

struct Iq3xxs
#ifdef __AVX512VBMI__
    : FourApartOrder
#else
    : NaturalOrder
#endif
{
  static constexpr int64_t kInputs = 256, kBytes = 1568;
  static constexpr int kScales = 1, kAdded = kAddedToSigned, kLargest = 62;
  static constexpr bool kSigned = true;

  template <typename Take>
  [[gnu::always_inline]] static void weights(const std::byte* unit, int b, const IquantTables& tables,
                                             const Take& take) {
    const Rows signs = with_parity(spread_sevens(load_word(unit, 16 + b)));
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Rows entries = load_word(unit, 2 * b + j);
#ifdef __AVX512VBMI__
      const __mmask64 bit6 = bytes_with(entries, 6);
      const __mmask64 bit7 = _mm512_movepi8_mask(entries);
      const Rows first = lookup_256(tables.iq3xxs_halves[0], entries, bit6, bit7);
      const Rows second = lookup_256(tables.iq3xxs_halves[1], entries, bit6, bit7);
      const Rows sign = j == 0 ? shuffle_in_words<0, 0, 1, 1>(signs) : shuffle_in_words<2, 2, 3, 3>(signs);
      const uint8_t* magnitudes = tables.iq3xxs_magnitudes;
      take(4 * j, negate_where(lookup_64(magnitudes, first), sign, set_rows(0x10011001)));
      take(4 * j + 1, negate_where(lookup_64(magnitudes, shift_right<4>(first)), sign, set_rows(0x20022002)));
      take(4 * j + 2, negate_where(lookup_64(magnitudes, second), sign, set_rows(0x40044004)));
      take(4 * j + 3, negate_where(lookup_64(magnitudes, shift_right<4>(second)), sign,
                                   set_rows(static_cast<int32_t>(0x80088008U))));
#else
      const Rows byte = set_rows(0xff00ff);
      const Rows bits[2] = {set_rows(0x08040201), set_rows(static_cast<int32_t>(0x80402010U))};
      const Rows bytes[2] = {j == 0 ? spread_byte<0>(signs) : spread_byte<2>(signs),
                             j == 0 ? spread_byte<1>(signs) : spread_byte<3>(signs)};
      Rows words[4];
      gather_groups(tables.iq3xxs, and_rows(entries, byte), and_rows(shift_right<8>(entries), byte), words);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) take(4 * j + k, signed_word(words[k], bytes[k / 2], bits[k % 2]));
#endif
    }
  }
  static void scales(const std::byte* unit, int b, BlockScale* scales) {
    scales[0] = odd_scale(load_word(unit, 16 + b), 28);
  }
  static RowFloats factor(const std::byte* unit, int64_t row, int) {
    return multiply(load_scale(unit, 24, row, 0), set_row_floats(0.25F));
  }
};

}  // namespace tandem::ops::host::TANDEM_ISA
