// A register of 32-bit lanes, one lane a row of a tile: 16 rows with AVX-512, 8 with AVX2, where a tile takes two
// passes. Integers are exact and FP32 lanes never meet, so both instruction sets give the same bits.
#pragma once

#include <cstddef>

#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

// Byte `place` of a word's order in the given word of four; -1, which makes a zero, stays.
constexpr int8_t in_word(int place, int word) {
  return static_cast<int8_t>(place < 0 ? -1 : place + 4 * word);
}
template <int a, int b, int c, int d>
inline __m128i in_words_order() {
  return _mm_setr_epi8(in_word(a, 0), in_word(b, 0), in_word(c, 0), in_word(d, 0), in_word(a, 1), in_word(b, 1),
                       in_word(c, 1), in_word(d, 1), in_word(a, 2), in_word(b, 2), in_word(c, 2), in_word(d, 2),
                       in_word(a, 3), in_word(b, 3), in_word(c, 3), in_word(d, 3));
}

#ifdef __AVX512F__

inline constexpr int64_t kRowLanes = 16;
using Rows = __m512i;
using RowFloats = __m512;
struct RowSums {
  __m512i even, odd;  // 64-bit sums of rows 0, 2, … and 1, 3, …
};

inline Rows load_rows(const void* p) {
  return _mm512_loadu_si512(p);
}
inline Rows set_rows(int32_t x) {
  return _mm512_set1_epi32(x);
}
inline Rows and_rows(Rows a, Rows b) {
  return _mm512_and_si512(a, b);
}
inline Rows or_rows(Rows a, Rows b) {
  return _mm512_or_si512(a, b);
}
inline Rows add_rows(Rows a, Rows b) {
  return _mm512_add_epi32(a, b);
}
inline Rows multiply_rows(Rows a, Rows b) {
  return _mm512_mullo_epi32(a, b);
}
template <int kBits>
inline Rows shift_right(Rows a) {
  return _mm512_srli_epi32(a, kBits);
}
inline Rows shift_left(Rows a, Rows bits) {
  return _mm512_sllv_epi32(a, bits);
}
inline Rows shift_right(Rows a, Rows bits) {
  return _mm512_srlv_epi32(a, bits);
}
// Bits of `a` where `mask` has ones, else those of `b`.
inline Rows select_bits(Rows a, Rows mask, Rows b) {
  return _mm512_ternarylogic_epi32(a, mask, b, 0xE2);
}
// Each byte of `nibbles` (0 to 15) replaced by the table's.
inline Rows lookup_bytes(const int8_t* table, Rows nibbles) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table))), nibbles);
}
// Each byte replaced by the table's entry of its lower four bits.
inline Rows lookup_nibbles(const int8_t* table, Rows bytes) {
#ifdef __AVX512VBMI__
  // Four times the table: six bits of an index count.
  return _mm512_permutexvar_epi8(bytes,
                                 _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table))));
#else
  return lookup_bytes(table, and_rows(bytes, set_rows(0x0f0f0f0f)));
#endif
}
// Each 32-bit word's bytes in the order a, b, c, d; a zero for -1.
template <int a, int b, int c, int d>
inline Rows shuffle_in_words(Rows x) {
  return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(in_words_order<a, b, c, d>()));
}
template <int kBits>
inline Rows rotate_right(Rows a) {
  return _mm512_ror_epi32(a, kBits);
}
// (a & b) | c
inline Rows and_or(Rows a, Rows b, Rows c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0xEA);
}
template <int kBits>
inline Rows shift_left(Rows a) {
  return _mm512_slli_epi32(a, kBits);
}
inline Rows xor_rows(Rows a, Rows b) {
  return _mm512_xor_si512(a, b);
}
inline RowFloats load_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
// The binary16 in the lower half of each lane.
inline RowFloats low_halves(Rows a) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}
// dots + the four products of each lane's bytes: unsigned weights with the signed bytes of one word for all rows.
// Written as the instruction with its broadcast operand, which the compilers do not combine: a fourth fewer
// instructions in all.
inline Rows add_dots(Rows dots, Rows weights, const int32_t& x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(dots) : "v"(weights), "m"(x));
  return dots;
}
inline RowSums no_sums() {
  return {_mm512_setzero_si512(), _mm512_setzero_si512()};
}
// sums + a * b in 64 bits, b the same in all rows.
inline RowSums add_products(RowSums sums, Rows a, int32_t b) {
  const __m512i factor = _mm512_set1_epi32(b);
  return {_mm512_add_epi64(sums.even, _mm512_mul_epi32(a, factor)),
          _mm512_add_epi64(sums.odd, _mm512_mul_epi32(_mm512_srli_epi64(a, 32), factor))};
}
inline RowFloats to_float(RowSums a) {  // each rounded once
  const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  const __m512d even = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtepi64_ps(a.even)));
  const __m256d odd = _mm256_castps_pd(_mm512_cvtepi64_ps(a.odd));
  return _mm512_permutexvar_ps(order, _mm512_castpd_ps(_mm512_insertf64x4(even, odd, 1)));
}
inline RowFloats to_float(Rows a) {
  return _mm512_cvtepi32_ps(a);
}
inline RowFloats set_row_floats(float x) {
  return _mm512_set1_ps(x);
}
inline RowFloats multiply(RowFloats a, RowFloats b) {
  return _mm512_mul_ps(a, b);
}
inline RowFloats multiply_add(RowFloats a, RowFloats b, RowFloats c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline void store_rows(float* p, RowFloats a) {
  _mm512_storeu_ps(p, a);
}
// C = 2 * E2M1 of the lowest nibble of each lane.
inline Rows e2m1_doubled(Rows codes) {
  const __m512i table = _mm512_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  return _mm512_permutexvar_epi32(codes, table);
}

#else

inline constexpr int64_t kRowLanes = 8;
using Rows = __m256i;
using RowFloats = __m256;
struct RowSums {
  __m256i even, odd;
};

inline Rows load_rows(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Rows set_rows(int32_t x) {
  return _mm256_set1_epi32(x);
}
inline Rows and_rows(Rows a, Rows b) {
  return _mm256_and_si256(a, b);
}
inline Rows or_rows(Rows a, Rows b) {
  return _mm256_or_si256(a, b);
}
inline Rows add_rows(Rows a, Rows b) {
  return _mm256_add_epi32(a, b);
}
inline Rows multiply_rows(Rows a, Rows b) {
  return _mm256_mullo_epi32(a, b);
}
template <int kBits>
inline Rows shift_right(Rows a) {
  return _mm256_srli_epi32(a, kBits);
}
inline Rows shift_left(Rows a, Rows bits) {
  return _mm256_sllv_epi32(a, bits);
}
inline Rows shift_right(Rows a, Rows bits) {
  return _mm256_srlv_epi32(a, bits);
}
inline Rows lookup_bytes(const int8_t* table, Rows nibbles) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table))),
                             nibbles);
}
inline Rows lookup_nibbles(const int8_t* table, Rows bytes) {
  return lookup_bytes(table, and_rows(bytes, set_rows(0x0f0f0f0f)));
}
template <int a, int b, int c, int d>
inline Rows shuffle_in_words(Rows x) {
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(in_words_order<a, b, c, d>()));
}
inline Rows and_or(Rows a, Rows b, Rows c) {
  return _mm256_or_si256(_mm256_and_si256(a, b), c);
}
template <int kBits>
inline Rows shift_left(Rows a) {
  return _mm256_slli_epi32(a, kBits);
}
inline Rows xor_rows(Rows a, Rows b) {
  return _mm256_xor_si256(a, b);
}
inline RowFloats load_halves(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline RowFloats low_halves(Rows a) {
  const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline RowSums no_sums() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
inline RowSums add_products(RowSums sums, Rows a, int32_t b) {
  const __m256i factor = _mm256_set1_epi32(b);
  return {_mm256_add_epi64(sums.even, _mm256_mul_epi32(a, factor)),
          _mm256_add_epi64(sums.odd, _mm256_mul_epi32(_mm256_srli_epi64(a, 32), factor))};
}
inline RowFloats to_float(RowSums a) {  // AVX2 has no packed conversion from 64 bits
  alignas(32) int64_t even[4];
  alignas(32) int64_t odd[4];
  alignas(32) float out[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(even), a.even);
  _mm256_store_si256(reinterpret_cast<__m256i*>(odd), a.odd);
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = static_cast<float>(even[i]);
    out[2 * i + 1] = static_cast<float>(odd[i]);
  }
  return _mm256_load_ps(out);
}
inline RowFloats to_float(Rows a) {
  return _mm256_cvtepi32_ps(a);
}
inline RowFloats set_row_floats(float x) {
  return _mm256_set1_ps(x);
}
inline RowFloats multiply(RowFloats a, RowFloats b) {
  return _mm256_mul_ps(a, b);
}
inline RowFloats multiply_add(RowFloats a, RowFloats b, RowFloats c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline void store_rows(float* p, RowFloats a) {
  _mm256_storeu_ps(p, a);
}
inline Rows e2m1_doubled(Rows codes) {
  const __m256i magnitudes = _mm256_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12);
  const __m256i magnitude = _mm256_permutevar8x32_epi32(magnitudes, codes);  // reads the lowest 3 bits
  const __m256i sign = _mm256_srai_epi32(_mm256_slli_epi32(codes, 28), 31);
  return _mm256_sub_epi32(_mm256_xor_si256(magnitude, sign), sign);
}

#endif

// Fetches what the stream of weights reads after `at`, which is in a tile that ends at `end`: first to the second-level
// cache, whose own reading ahead begins anew at every page, then to the first. Always inlined: GCC takes a function
// that only prefetches for one without effects, and drops the call.
[[gnu::always_inline]] inline void prefetch_ahead(const std::byte* at, int64_t bytes, const std::byte* end,
                                                  const std::byte* next) {
  const std::byte* near = at + kExpertPrefetchNear;
  if (near >= end) near = next + (near - end);
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(near + line), _MM_HINT_T0);
  }
  const std::byte* far = at + kExpertPrefetchFar;
  if (far >= end) far = next + (far - end);
  for (int64_t line = 0; line < bytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(far + line), _MM_HINT_T1);
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
