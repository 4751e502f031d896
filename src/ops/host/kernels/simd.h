// Sixteen FP32 lanes on AVX-512 (one register) or AVX2 (two), with the same results bit for bit.
//
// Every host kernel is written once against these lanes and compiled for both instruction sets. Only element-wise
// operations and the fixed tree of reduce_add() exist here, so the two builds cannot round differently. These files are
// compiled with wider instruction sets than the rest of the program: they may include nothing that the linker could
// share with it (no standard templates), and everything in them lies in the namespace TANDEM_ISA.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace tandem::ops::host::TANDEM_ISA {

#ifdef __AVX512F__

struct f32x16 {
  __m512 v;
};
inline f32x16 zero() {
  return {_mm512_setzero_ps()};
}
inline f32x16 set1(float x) {
  return {_mm512_set1_ps(x)};
}
inline f32x16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, f32x16 a) {
  _mm512_storeu_ps(p, a.v);
}
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline f32x16 operator+(f32x16 a, f32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline f32x16 operator-(f32x16 a, f32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline f32x16 operator*(f32x16 a, f32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline f32x16 operator/(f32x16 a, f32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline f32x16 max(f32x16 a, f32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline f32x16 min(f32x16 a, f32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
// p * 2^n in two factors, n the difference of the bits of `shifted` and `origin` (numeric/exp.h).
inline f32x16 scale_by_shift(f32x16 p, f32x16 shifted, f32x16 origin) {
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(shifted.v), _mm512_castps_si512(origin.v));
  const __m512i half = _mm512_srai_epi32(n, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
  const __m512i rest = _mm512_sub_epi32(n, half);
  const __m512 second = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23));
  return {_mm512_mul_ps(_mm512_mul_ps(p.v, first), second)};
}
inline f32x16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// The BF16 bits of finite values, to nearest even.
inline void store_bf16(uint16_t* p, f32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
struct f32x8 {
  __m256 v;
};
inline f32x8 fold(f32x16 a) {
  return {
      _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)))};
}

#else

struct f32x16 {
  __m256 lo, hi;
};
inline f32x16 zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline f32x16 set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline f32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline f32x16 operator+(f32x16 a, f32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline f32x16 operator-(f32x16 a, f32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline f32x16 operator*(f32x16 a, f32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline f32x16 operator/(f32x16 a, f32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline f32x16 max(f32x16 a, f32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline f32x16 min(f32x16 a, f32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline __m256 scale_by_shift8(__m256 p, __m256 shifted, __m256 origin) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(origin));
  const __m256i half = _mm256_srai_epi32(n, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256i rest = _mm256_sub_epi32(n, half);
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, first), second);
}
inline f32x16 scale_by_shift(f32x16 p, f32x16 shifted, f32x16 origin) {
  return {scale_by_shift8(p.lo, shifted.lo, origin.lo), scale_by_shift8(p.hi, shifted.hi, origin.hi)};
}
inline __m256 widen_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline f32x16 load_bf16(const uint16_t* p) {
  return {widen_bf16(p), widen_bf16(p + 8)};
}
inline __m128i narrow_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i high = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
inline void store_bf16(uint16_t* p, f32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(a.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrow_bf16(a.hi));
}
struct f32x8 {
  __m256 v;
};
inline f32x8 fold(f32x16 a) {
  return {_mm256_add_ps(a.lo, a.hi)};
}

#endif

// Sum of the lanes in a fixed tree: 16 to 8 to 4 to 2 to 1, each lane with the one half the width away.
inline float reduce_add(f32x16 a) {
  const f32x8 half = fold(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half.v), _mm256_extractf128_ps(half.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// The first `count` (1 to 15) elements; the other lanes are zero.
inline f32x16 load_part(const float* p, int64_t count) {
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(float));
  return load(lanes);
}
inline f32x16 load_part_bf16(const uint16_t* p, int64_t count) {
  uint16_t lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_bf16(lanes);
}

// One element type a weight or a cached key may have, FP32 or BF16.
inline f32x16 load_any(const float* p) {
  return load(p);
}
inline f32x16 load_any(const uint16_t* p) {
  return load_bf16(p);
}
inline f32x16 load_any_part(const float* p, int64_t count) {
  return load_part(p, count);
}
inline f32x16 load_any_part(const uint16_t* p, int64_t count) {
  return load_part_bf16(p, count);
}

// The same operations as numeric::exp_f32, lane by lane, so the same bits.
inline f32x16 exp(f32x16 x) {
  x = min(set1(89.0F), max(set1(-104.0F), x));  // in this order of operands a NaN stays one
  const f32x16 origin = set1(0x1.8p23F);
  const f32x16 shifted = fma(x, set1(0x1.715476p0F), origin);
  const f32x16 whole = shifted - origin;
  f32x16 f = fma(whole, set1(-0x1.62e4p-1F), x);
  f = fma(whole, set1(-0x1.7f7d1cp-20F), f);
  f32x16 p = set1(0x1.6d113cp-10F);
  p = fma(p, f, set1(0x1.120ba2p-7F));
  p = fma(p, f, set1(0x1.55551ap-5F));
  p = fma(p, f, set1(0x1.5554dcp-3F));
  p = fma(p, f, set1(0.5F));
  p = fma(p, f, set1(1.0F));
  p = fma(p, f, set1(1.0F));
  return scale_by_shift(p, shifted, origin);
}

inline f32x16 sigmoid(f32x16 x) {
  return set1(1.0F) / (set1(1.0F) + exp(zero() - x));
}
inline f32x16 silu(f32x16 x) {
  return x / (set1(1.0F) + exp(zero() - x));
}

}  // namespace tandem::ops::host::TANDEM_ISA
