// What the experts' products consume and give: activations quantised by block, and the sums over experts.
//
// The quantisers perform the operations of numeric/activation.h and numeric/int8_activation.h on sixteen lanes, so they
// give the same integers; the sums those of numeric::ExpertSum.
#pragma once

#include "numeric/expert_limits.h"
#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

#ifdef __AVX512F__

inline f32x16 magnitude(f32x16 a) {
  return {_mm512_abs_ps(a.v)};
}
inline f32x16 with_sign_of(f32x16 a, f32x16 sign) {
  const __m512i mask = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(mask, _mm512_castps_si512(sign.v), _mm512_castps_si512(a.v), 0xCA))};
}
inline f32x16 round_even(f32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a < bound ? x : y
inline f32x16 select_below(f32x16 a, float bound, f32x16 x, f32x16 y) {
  return {_mm512_mask_mov_ps(y.v, _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(bound), _CMP_LT_OQ), x.v)};
}
// Whole numbers of [-128, 127] as bytes.
inline __m128i to_bytes(f32x16 a) {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v));
}
inline __m256i fold_max(f32x16 a) {  // of bits without sign, which order as their values do
  const __m512i bits = _mm512_castps_si512(a.v);
  return _mm256_max_epu32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
}

#else

inline f32x16 magnitude(f32x16 a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline f32x16 with_sign_of(f32x16 a, f32x16 sign) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
  return {_mm256_or_ps(_mm256_andnot_ps(mask, a.lo), _mm256_and_ps(mask, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(mask, a.hi), _mm256_and_ps(mask, sign.hi))};
}
inline f32x16 round_even(f32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline f32x16 select_below(f32x16 a, float bound, f32x16 x, f32x16 y) {
  const __m256 b = _mm256_set1_ps(bound);
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b, _CMP_LT_OQ))};
}
inline __m128i to_bytes(f32x16 a) {
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)), 0b11011000);
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline __m256i fold_max(f32x16 a) {
  return _mm256_max_epu32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
}

#endif

// The bits of the largest magnitude; magnitudes order as their bits do, NaN above infinity.
inline uint32_t largest_bits(f32x16 a) {
  const __m256i eight = fold_max(magnitude(a));
  const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0b01001110));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0b10110001))));
}
inline constexpr uint32_t kInfinityBits = 0x7F800000U;

inline float float_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int32_t sum_of_bytes(__m128i bytes) {
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(INT8_MIN)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

// 512 * E4M3(min(ratio, 448)), to nearest even; ratio >= 0 and finite or infinite.
inline int32_t e4m3_integer(float ratio) {
  const float bounded = ratio < 448.0F ? ratio : 448.0F;
  if (bounded < 0x1p-6F) return _mm_cvtss_si32(_mm_set_ss(bounded * 512.0F));
  uint32_t bits = 0;
  std::memcpy(&bits, &bounded, sizeof bits);
  bits += 0x7FFFFU + ((bits >> 20) & 1U);  // three bits of mantissa stay
  return static_cast<int32_t>(float_of(bits & ~0xFFFFFU) * 512.0F);
}

inline bool quantise_nvfp4(const float* x, int64_t inputs, float input_scale, Nvfp4Block* out) {
  const __m128i even_then_odd = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  bool finite = true;
  for (int64_t block = 0; block < inputs / 16; ++block) {
    const f32x16 values = load(x + 16 * block);
    const uint32_t largest = largest_bits(values);
    Nvfp4Block& to = out[block];
    const int32_t scale = largest < kInfinityBits ? e4m3_integer(float_of(largest) / (6.0F * input_scale)) : 0;
    finite = finite && largest < kInfinityBits;
    if (scale == 0) {
      to = {};
      continue;
    }
    const f32x16 ratio = magnitude(values / set1(static_cast<float>(scale) * 0x1p-9F * input_scale));
    // E2M1 has steps of 1/2 below 2, of 1 below 4, of 2 above; A is twice the value.
    const f32x16 up = select_below(ratio, 2.0F, set1(2.0F), select_below(ratio, 4.0F, set1(1.0F), set1(0.5F)));
    const f32x16 down = select_below(ratio, 2.0F, set1(1.0F), select_below(ratio, 4.0F, set1(2.0F), set1(4.0F)));
    const f32x16 twice = min(round_even(ratio * up) * down, set1(12.0F));
    const __m128i bytes = to_bytes(with_sign_of(twice, values));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.values), _mm_shuffle_epi8(bytes, even_then_odd));
    to.scale = scale;
    to.start = -12 * sum_of_bytes(bytes);
  }
  return finite;
}

// Adds p * y of 16 channels to their sums in units of 2^-32. False where a term is out of range; it adds nothing.
inline bool add_weighted(const float* y, float p, int64_t* sums) {
  bool usable = true;
  float terms[16];
  store(terms, load(y) * set1(p));
#ifdef __AVX512F__
  const __m512 all = _mm512_loadu_ps(terms);
  const __mmask16 fits =
      _mm512_cmp_ps_mask(_mm512_abs_ps(all), _mm512_set1_ps(numeric::kLargestExpertTerm), _CMP_LT_OQ);
  usable = fits == 0xFFFF;
  const __m512d unit = _mm512_set1_pd(0x1p32);
  for (int h = 0; h < 2; ++h) {
    const __m512i fixed = _mm512_cvtpd_epi64(_mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(terms + 8 * h)), unit));
    const auto lanes = static_cast<__mmask8>(fits >> (8 * h));
    const __m512i old = _mm512_loadu_si512(sums + 8 * h);
    _mm512_storeu_si512(sums + 8 * h, _mm512_mask_add_epi64(old, lanes, old, fixed));
  }
#else
  for (int i = 0; i < 16; ++i) {
    const bool fits = terms[i] < numeric::kLargestExpertTerm && terms[i] > -numeric::kLargestExpertTerm;
    usable = usable && fits;
    if (fits) sums[i] += _mm_cvtsd_si64(_mm_set_sd(static_cast<double>(terms[i]) * 0x1p32));
  }
#endif
  return usable;
}

}  // namespace tandem::ops::host::TANDEM_ISA
