// Products with NVFP4 expert records: canonical 4-bit activations in integers, and FP32 activations.
//
// A unit is 16 rows x 64 inputs: u32 codes[8][16 rows], then u8 scales[16 rows][4]. One register holds the 8 codes of
// one word for all 16 rows, so lane = row everywhere and no horizontal sum is needed. Bytes: 576 a unit for 1,024
// products; at one column the records' bytes bound it, at many the integer products do.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

inline constexpr int64_t kUnitBytes = 576;
inline constexpr int64_t kUnitInputs = 64;
inline constexpr int64_t kUnitRows = 16;
// C + 12 for each code, C = 2 * E2M1: unsigned, as the byte products want one operand.
inline constexpr int kOffset = 12;

#ifdef __AVX512F__

struct i32x16 {
  __m512i v;
};
inline i32x16 load_i32(const void* p) {
  return {_mm512_loadu_si512(p)};
}
inline i32x16 set_i32(int32_t x) {
  return {_mm512_set1_epi32(x)};
}
inline i32x16 multiply_i32(i32x16 a, i32x16 b) {
  return {_mm512_mullo_epi32(a.v, b.v)};
}
inline i32x16 subtract_i32(i32x16 a, i32x16 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
inline i32x16 low_nibbles(i32x16 a) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(0x0f0f0f0f))};
}
inline i32x16 high_nibbles(i32x16 a) {
  return low_nibbles({_mm512_srli_epi32(a.v, 4)});
}
inline i32x16 lookup_bytes(const int8_t* table, i32x16 nibbles) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), nibbles.v)};
}
// acc + sum over the 4 bytes of each lane of a (unsigned) * b (signed).
inline i32x16 dot_bytes(i32x16 acc, i32x16 a, i32x16 b) {
  return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)};
}
// 512 * E4M3 of the 16 codes without sign.
inline i32x16 widen_scales(const uint8_t* codes) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m512i exponent = _mm512_srli_epi32(code, 3);
  const __m512i mantissa = _mm512_and_si512(code, _mm512_set1_epi32(7));
  const __m512i normal = _mm512_sllv_epi32(_mm512_add_epi32(mantissa, _mm512_set1_epi32(8)),
                                           _mm512_sub_epi32(exponent, _mm512_set1_epi32(1)));
  return {_mm512_mask_mov_epi32(mantissa, _mm512_cmpneq_epi32_mask(exponent, _mm512_setzero_si512()), normal)};
}
struct i64x16 {
  __m512i even, odd;  // rows 0, 2, … and 1, 3, …
};
inline i64x16 zero_i64() {
  return {_mm512_setzero_si512(), _mm512_setzero_si512()};
}
// sum + a * b in 64 bits.
inline i64x16 add_product(i64x16 sum, i32x16 a, i32x16 b) {
  const __m512i odd_a = _mm512_srli_epi64(a.v, 32);
  const __m512i odd_b = _mm512_srli_epi64(b.v, 32);
  return {_mm512_add_epi64(sum.even, _mm512_mul_epi32(a.v, b.v)),
          _mm512_add_epi64(sum.odd, _mm512_mul_epi32(odd_a, odd_b))};
}
inline void store_i64(int64_t* out, i64x16 a) {
  alignas(64) int64_t even[8];
  alignas(64) int64_t odd[8];
  _mm512_store_si512(even, a.even);
  _mm512_store_si512(odd, a.odd);
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = even[i];
    out[2 * i + 1] = odd[i];
  }
}
inline f32x16 to_float(i32x16 a) {
  return {_mm512_cvtepi32_ps(a.v)};
}
inline i32x16 shift_right(i32x16 a, int bits) {
  return {_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(bits))};
}
inline i32x16 nibble_values(i32x16 codes) {  // C of the lowest nibble, sign extended
  const __m512i table = _mm512_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  return {_mm512_permutexvar_epi32(codes.v, table)};
}

#else

struct i32x16 {
  __m256i lo, hi;
};
inline i32x16 load_i32(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline i32x16 set_i32(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline i32x16 multiply_i32(i32x16 a, i32x16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
inline i32x16 subtract_i32(i32x16 a, i32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
inline i32x16 low_nibbles(i32x16 a) {
  const __m256i mask = _mm256_set1_epi32(0x0f0f0f0f);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
inline i32x16 high_nibbles(i32x16 a) {
  return low_nibbles({_mm256_srli_epi32(a.lo, 4), _mm256_srli_epi32(a.hi, 4)});
}
inline i32x16 lookup_bytes(const int8_t* table, i32x16 nibbles) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, nibbles.lo), _mm256_shuffle_epi8(t, nibbles.hi)};
}
// Pairs of products are at most 2 * 24 * 12 and fit 16 bits, so nothing saturates.
inline __m256i dot_bytes8(__m256i acc, __m256i a, __m256i b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
inline i32x16 dot_bytes(i32x16 acc, i32x16 a, i32x16 b) {
  return {dot_bytes8(acc.lo, a.lo, b.lo), dot_bytes8(acc.hi, a.hi, b.hi)};
}
inline __m256i widen_scales8(const uint8_t* codes) {
  const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  const __m256i exponent = _mm256_srli_epi32(code, 3);
  const __m256i mantissa = _mm256_and_si256(code, _mm256_set1_epi32(7));
  const __m256i normal = _mm256_sllv_epi32(_mm256_add_epi32(mantissa, _mm256_set1_epi32(8)),
                                           _mm256_sub_epi32(exponent, _mm256_set1_epi32(1)));
  return _mm256_blendv_epi8(normal, mantissa, _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256()));
}
inline i32x16 widen_scales(const uint8_t* codes) {
  return {widen_scales8(codes), widen_scales8(codes + 8)};
}
struct i64x16 {
  __m256i even[2], odd[2];
};
inline i64x16 zero_i64() {
  const __m256i z = _mm256_setzero_si256();
  return {{z, z}, {z, z}};
}
inline i64x16 add_product(i64x16 sum, i32x16 a, i32x16 b) {
  const __m256i av[2] = {a.lo, a.hi};
  const __m256i bv[2] = {b.lo, b.hi};
  for (int i = 0; i < 2; ++i) {
    sum.even[i] = _mm256_add_epi64(sum.even[i], _mm256_mul_epi32(av[i], bv[i]));
    sum.odd[i] =
        _mm256_add_epi64(sum.odd[i], _mm256_mul_epi32(_mm256_srli_epi64(av[i], 32), _mm256_srli_epi64(bv[i], 32)));
  }
  return sum;
}
inline void store_i64(int64_t* out, i64x16 a) {
  for (int h = 0; h < 2; ++h) {
    alignas(32) int64_t even[4];
    alignas(32) int64_t odd[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(even), a.even[h]);
    _mm256_store_si256(reinterpret_cast<__m256i*>(odd), a.odd[h]);
    for (int i = 0; i < 4; ++i) {
      out[8 * h + 2 * i] = even[i];
      out[8 * h + 2 * i + 1] = odd[i];
    }
  }
}
inline f32x16 to_float(i32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
inline i32x16 shift_right(i32x16 a, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_srl_epi32(a.lo, count), _mm256_srl_epi32(a.hi, count)};
}
inline __m256i nibble_values8(__m256i codes) {
  const __m256i magnitudes = _mm256_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12);
  const __m256i magnitude = _mm256_permutevar8x32_epi32(magnitudes, codes);  // reads the lowest 3 bits
  const __m256i sign = _mm256_srai_epi32(_mm256_slli_epi32(codes, 28), 31);
  return _mm256_sub_epi32(_mm256_xor_si256(magnitude, sign), sign);
}
inline i32x16 nibble_values(i32x16 codes) {
  return {nibble_values8(codes.lo), nibble_values8(codes.hi)};
}

#endif

// The scales of one unit by block: [4][16 rows].
inline void transpose_scales(const uint8_t* unit, uint8_t (&out)[4][16]) {
  const uint8_t* scales = unit + 512;
  for (int r = 0; r < 16; ++r) {
    for (int b = 0; b < 4; ++b) out[b][r] = scales[4 * r + b];
  }
}

// y = float(R) * 2^-20 * scale with R = sum over blocks of D * S * T', D exact in 32 bits and D * S below 2^30.
inline void nvfp4_w4a4(const Nvfp4Matrix& w, int64_t row_begin, int64_t row_end, const QuantisedColumn* columns,
                       int64_t column_count, float scale, float* const* out) {
  static constexpr int8_t kShifted[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  const int64_t unit_columns = w.inputs / kUnitInputs;
  for (int64_t row = row_begin; row < row_end; row += kUnitRows) {
    const uint8_t* units = w.units + row / kUnitRows * unit_columns * kUnitBytes;
    for (int64_t c = 0; c < column_count; ++c) {
      i64x16 sum = zero_i64();
      for (int64_t u = 0; u < unit_columns; ++u) {
        const uint8_t* unit = units + u * kUnitBytes;
        uint8_t scales[4][16];
        transpose_scales(unit, scales);
        for (int b = 0; b < 4; ++b) {
          const int64_t block = 4 * u + b;
          i32x16 dot = set_i32(-kOffset * columns[c].block_sums[block]);
          for (int word = 0; word < 2; ++word) {
            const i32x16 codes = load_i32(unit + (2 * b + word) * 64);
            int32_t even = 0;
            int32_t odd = 0;
            const int8_t* values = columns[c].values + 16 * block + 8 * word;
            std::memcpy(&even, values, 4);
            std::memcpy(&odd, values + 4, 4);
            dot = dot_bytes(dot, lookup_bytes(kShifted, low_nibbles(codes)), set_i32(even));
            dot = dot_bytes(dot, lookup_bytes(kShifted, high_nibbles(codes)), set_i32(odd));
          }
          const i32x16 scaled = multiply_i32(dot, widen_scales(scales[b]));
          sum = add_product(sum, scaled, set_i32(columns[c].scales[block]));
        }
      }
      int64_t rows[16];
      store_i64(rows, sum);
      for (int r = 0; r < 16; ++r) out[c][row + r] = static_cast<float>(rows[r]) * 0x1p-20F * scale;
    }
  }
}

inline void nvfp4_w4a16(const Nvfp4Matrix& w, int64_t row_begin, int64_t row_end, const float* const* x,
                        int64_t column_count, float scale, float* const* out) {
  const int64_t unit_columns = w.inputs / kUnitInputs;
  const f32x16 unit_scale = set1(0x1p-10F);  // undoes 2 * E2M1 and 512 * E4M3, exactly
  for (int64_t row = row_begin; row < row_end; row += kUnitRows) {
    const uint8_t* units = w.units + row / kUnitRows * unit_columns * kUnitBytes;
    for (int64_t c = 0; c < column_count; ++c) {
      f32x16 sum = zero();
      for (int64_t u = 0; u < unit_columns; ++u) {
        const uint8_t* unit = units + u * kUnitBytes;
        uint8_t scales[4][16];
        transpose_scales(unit, scales);
        const float* column = x[c] + u * kUnitInputs;
        for (int word = 0; word < 8; ++word) {
          const i32x16 codes = load_i32(unit + word * 64);
          const f32x16 block_scale = to_float(widen_scales(scales[word / 2])) * unit_scale;
          for (int n = 0; n < 8; ++n) {
            const f32x16 weight = to_float(nibble_values(shift_right(codes, 4 * n))) * block_scale;
            sum = fma(weight, set1(column[8 * word + n]), sum);
          }
        }
      }
      store(out[c] + row, sum * set1(scale));
    }
  }
}

inline void decode_fp8_row(const uint8_t* codes, const uint16_t* scales, int64_t inputs, float* out) {
  for (int64_t i = 0; i < inputs; ++i) {
    const uint32_t code = codes[i];
    const uint32_t exponent = (code >> 3) & 15U;
    const uint32_t mantissa = code & 7U;
    const int32_t magnitude =
        exponent == 0 ? static_cast<int32_t>(mantissa) : static_cast<int32_t>((8U + mantissa) << (exponent - 1));
    const uint32_t bits = static_cast<uint32_t>(scales[i / 128]) << 16;
    float block_scale = 0;
    std::memcpy(&block_scale, &bits, 4);
    const float value = static_cast<float>((code & 0x80U) != 0 ? -magnitude : magnitude) * 0x1p-9F;
    out[i] = value * block_scale;
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
