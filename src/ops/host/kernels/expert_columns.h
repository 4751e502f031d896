// What the experts' products consume and give: activations quantised by block, and the sums over experts.
//
// The quantisers perform the operations of numeric/activation.h and numeric/int8_activation.h on sixteen lanes, so they
// give the same integers; the sums those of numeric::ExpertSum.
#pragma once

#include "numeric/expert_limits.h"
#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

inline constexpr int32_t kInfinityBits = 0x7F800000;

#ifdef __AVX512F__

inline f32x16 magnitude(f32x16 a) {
  return {_mm512_abs_ps(a.v)};
}
inline f32x16 with_sign_of(f32x16 a, f32x16 sign) {
  const __m512i mask = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(mask, _mm512_castps_si512(sign.v), _mm512_castps_si512(a.v), 0xCA))};
}
// 2^n times the largest power of two that is not above a; a > 0 and not subnormal.
template <int n>
inline f32x16 power_below(f32x16 a) {
  const __m512i power = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(kInfinityBits));
  return {_mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_set1_epi32(n * (1 << 23))))};
}
inline void store_integers(int32_t* p, f32x16 a) {
  _mm512_storeu_si512(p, _mm512_cvtps_epi32(a.v));
}
inline f32x16 round_even(f32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
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
inline __m256 power_below8(__m256 a, int n) {
  const __m256i power = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(kInfinityBits));
  return _mm256_castsi256_ps(_mm256_add_epi32(power, _mm256_set1_epi32(n * (1 << 23))));
}
template <int n>
inline f32x16 power_below(f32x16 a) {
  return {power_below8(a.lo, n), power_below8(a.hi, n)};
}
inline void store_integers(int32_t* p, f32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(a.lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvtps_epi32(a.hi));
}
inline f32x16 round_even(f32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
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

inline float float_of(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int32_t sum_of_bytes(__m128i bytes) {
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(INT8_MIN)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

// a >= 0 to nearest even with kBits bits behind the leading one; below `least`, a power of two, with its steps.
template <int kBits>
inline f32x16 round_mantissa(f32x16 a, float least) {
  const f32x16 whole_steps = power_below<23 - kBits>(max(a, set1(least)));
  return (a + whole_steps) - whole_steps;
}

// The scales of up to 16 blocks, a lane each: T', and half of what one step of E2M1 is worth.
struct Nvfp4Scales {
  alignas(64) int32_t scales[16];
  alignas(64) float half_steps[16];
};
// False where a value is not finite: that block's scale is zero.
inline bool nvfp4_scales(const float* x, int64_t blocks, float input_scale, Nvfp4Scales& to) {
  alignas(64) float largest[16] = {};
  bool finite = true;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint32_t bits = largest_bits(load(x + 16 * block));
    if (bits < kInfinityBits) {
      largest[block] = float_of(bits);
    } else {
      finite = false;
    }
  }
  const f32x16 ratio = min(load(largest) / set1(6.0F * input_scale), set1(448.0F));
  const f32x16 e4m3 = round_mantissa<3>(ratio, 0x1p-6F);
  store_integers(to.scales, e4m3 * set1(512.0F));
  store(to.half_steps, e4m3 * set1(input_scale) * set1(0.5F));
  return finite;
}

inline bool quantise_nvfp4(const float* x, int64_t inputs, float input_scale, Nvfp4Block* out) {
  const __m128i even_then_odd = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  bool finite = true;
  Nvfp4Scales scales;
  for (int64_t block = 0; block < inputs / 16; ++block) {
    if (block % 16 == 0) {
      const int64_t left = inputs / 16 - block;
      finite = nvfp4_scales(x + 16 * block, left < 16 ? left : 16, input_scale, scales) && finite;
    }
    Nvfp4Block& to = out[block];
    to.scale = scales.scales[block % 16];
    if (to.scale == 0) {
      to = {};
      continue;
    }
    const f32x16 values = load(x + 16 * block);
    // A, twice E2M1: steps of 1 below 4, of 2 below 8, then of 4 up to 12.
    const f32x16 twice = min(magnitude(values / set1(scales.half_steps[block % 16])), set1(12.0F));
    const __m128i bytes = to_bytes(with_sign_of(round_mantissa<1>(twice, 2.0F), values));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.values), _mm_shuffle_epi8(bytes, even_then_odd));
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
