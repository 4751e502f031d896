// Decoders of quantised weights: sixteen consecutive inputs of one row in FP32 at a time.
//
// A decoder stands at one row. begin(u) prepares the unit of 128 inputs u, get<J>() gives its inputs 16 J … 16 J + 15
// with the scales of their block or group; finish() applies to a sum what scales the whole row or tensor. Codes are
// turned into numbers by a table in a register or by the bits of a half, never by arithmetic that rounds. A decoder may
// give its lanes in an order of its own: arrange() brings inputs into it, restore() lanes back into that of the inputs.
// Where kDirect is false, decoding takes too long to be done for a few columns at a time.
#pragma once

#include "ops/host/kernels/simd.h"
#include "ops/weight.h"

namespace tandem::ops::host::TANDEM_ISA {

inline constexpr int64_t kDecodeUnit = 128;
inline constexpr int64_t kLanes = 16;

// E4M3 codes as halves: sign, exponent and mantissa moved to their places make code * 2^-8, subnormals too.
inline constexpr float kFp8Unit = 256.0F;
inline __m256i e4m3_halves(const uint8_t* codes) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
}

inline __m256i e4m3_halves_part(const uint8_t* codes, int64_t count) {
  uint8_t lanes[kLanes] = {};
  std::memcpy(lanes, codes, static_cast<size_t>(count));
  return e4m3_halves(lanes);
}

#ifdef __AVX512F__

inline f32x16 widen_halves(__m256i halves) {
  return {_mm512_cvtph_ps(halves)};
}
// Sixteen 32-bit words that a table is looked up by.
struct Words {
  __m512i v;
};
template <int N>
inline Words shift_words(Words a) {
  return {_mm512_srli_epi32(a.v, N)};
}
// The sixteen nibbles of 64 bits, nibble j in lane 2 j and nibble 8 + j in lane 2 j + 1: one shift of 64-bit lanes.
inline Words spread_nibbles(const uint8_t* codes) {
  int64_t bits;
  std::memcpy(&bits, codes, 8);
  return {_mm512_srlv_epi64(_mm512_set1_epi64(bits), _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28))};
}
inline f32x16 to_nibble_order(f32x16 a) {
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15), a.v)};
}
inline f32x16 from_nibble_order(f32x16 a) {
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), a.v)};
}
inline Words load_words24(const uint8_t* p) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i high = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 32)));
  return {_mm512_or_si512(low, _mm512_slli_epi32(high, 16))};
}
inline Words load_words32(const uint8_t* p) {
  return {_mm512_loadu_si512(p)};
}
// Entries 0 to 7 and 8 to 15 of a table; the lowest four bits of a word choose.
struct Table16 {
  __m512 all;
};
inline Table16 table16(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline Table16 operator*(Table16 a, f32x16 b) {
  return {_mm512_mul_ps(a.all, b.v)};
}
inline f32x16 look_up(Table16 t, Words w) {
  return {_mm512_permutexvar_ps(w.v, t.all)};
}
// Eight entries, the lowest three bits choose.
struct Table8 {
  __m512 twice;
};
inline Table8 table8(const float* p) {
  const __m256 half = _mm256_loadu_ps(p);
  return {
      _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(half)), _mm256_castps_pd(half), 1))};
}
inline Table8 operator*(Table8 a, f32x16 b) {
  return {_mm512_mul_ps(a.twice, b.v)};
}
inline f32x16 look_up(Table8 t, Words w) {
  return {_mm512_permutexvar_ps(w.v, t.twice)};
}
inline f32x16 bytes_to_float(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

#else

inline f32x16 widen_halves(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
struct Words {
  __m256i lo, hi;
};
template <int N>
inline Words shift_words(Words a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
inline Words spread_nibbles(const uint8_t* codes) {
  int32_t first;
  int32_t second;
  std::memcpy(&first, codes, 4);
  std::memcpy(&second, codes + 4, 4);
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  return {_mm256_srlv_epi32(_mm256_set1_epi32(first), shifts), _mm256_srlv_epi32(_mm256_set1_epi32(second), shifts)};
}
inline f32x16 to_nibble_order(f32x16 a) {
  return a;
}
inline f32x16 from_nibble_order(f32x16 a) {
  return a;
}
inline __m256i load_words24_half(const uint8_t* low, const uint8_t* high) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
  const __m256i top = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)));
  return _mm256_or_si256(bits, _mm256_slli_epi32(top, 16));
}
inline Words load_words24(const uint8_t* p) {
  return {load_words24_half(p, p + 32), load_words24_half(p + 16, p + 40)};
}
inline Words load_words32(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
struct Table16 {
  __m256 low, high;
};
inline Table16 table16(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline Table16 operator*(Table16 a, f32x16 b) {
  return {_mm256_mul_ps(a.low, b.lo), _mm256_mul_ps(a.high, b.lo)};  // all lanes of b are the same
}
inline __m256 look_up_half(Table16 t, __m256i w) {
  const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(w, 28));  // bit 3 becomes the sign that blendv reads
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, w), _mm256_permutevar8x32_ps(t.high, w), upper);
}
inline f32x16 look_up(Table16 t, Words w) {
  return {look_up_half(t, w.lo), look_up_half(t, w.hi)};
}
struct Table8 {
  __m256 all;
};
inline Table8 table8(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline Table8 operator*(Table8 a, f32x16 b) {
  return {_mm256_mul_ps(a.all, b.lo)};
}
inline f32x16 look_up(Table8 t, Words w) {
  return {_mm256_permutevar8x32_ps(t.all, w.lo), _mm256_permutevar8x32_ps(t.all, w.hi)};
}
inline __m256 bytes_to_float_half(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline f32x16 bytes_to_float(const uint8_t* p) {
  return {bytes_to_float_half(p), bytes_to_float_half(p + 8)};
}

#endif

inline float half_to_float(uint16_t bits) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
inline float load_scale(const void* scales, ScaleType type, int64_t index) {
  if (type == ScaleType::kF32) return static_cast<const float*>(scales)[index];
  const uint16_t bits = static_cast<const uint16_t*>(scales)[index];
  if (type == ScaleType::kF16) return half_to_float(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Lanes in the order of the inputs.
struct InOrder {
  static constexpr bool kDirect = true;
  static f32x16 arrange(f32x16 inputs) { return inputs; }
  static f32x16 restore(f32x16 lanes) { return lanes; }
};

class F16Row : public InOrder {
 public:
  F16Row() = default;
  F16Row(const Weight& w, int64_t row) : row_(static_cast<const uint16_t*>(w.data) + row * w.inputs) {}
  [[gnu::always_inline]] void begin(int64_t unit) { unit_ = row_ + unit * kDecodeUnit; }
  template <int J>
  [[gnu::always_inline]] f32x16 get() const {
    return widen_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit_ + kLanes * J)));
  }
  template <int J>
  f32x16 get_part(int64_t count) const {
    uint16_t lanes[kLanes] = {};
    std::memcpy(lanes, unit_ + kLanes * J, static_cast<size_t>(count) * 2);
    return widen_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes)));
  }
  static float finish(float sum) { return sum; }

 private:
  const uint16_t* row_ = nullptr;
  const uint16_t* unit_ = nullptr;
};

// FP8 with one scale to the row or the tensor: the sum takes it.
class Fp8Row : public InOrder {
 public:
  Fp8Row() = default;
  Fp8Row(const Weight& w, int64_t row)
      : row_(static_cast<const uint8_t*>(w.data) + row * w.inputs),
        scale_(w.format == WeightFormat::kFp8Row ? load_scale(w.scales, w.scale_type, row) : w.scale) {}
  [[gnu::always_inline]] void begin(int64_t unit) { unit_ = row_ + unit * kDecodeUnit; }
  template <int J>
  [[gnu::always_inline]] f32x16 get() const {
    return widen_halves(e4m3_halves(unit_ + kLanes * J));
  }
  template <int J>
  f32x16 get_part(int64_t count) const {
    return widen_halves(e4m3_halves_part(unit_ + kLanes * J, count));
  }
  float finish(float sum) const { return sum * kFp8Unit * scale_; }

 private:
  const uint8_t* row_ = nullptr;
  const uint8_t* unit_ = nullptr;
  float scale_ = 1;
};

class Fp8BlockRow : public InOrder {
 public:
  Fp8BlockRow() = default;
  Fp8BlockRow(const Weight& w, int64_t row)
      : row_(static_cast<const uint8_t*>(w.data) + row * w.inputs),
        scales_(w.scales),
        type_(w.scale_type),
        first_scale_(row / kDecodeUnit * ((w.inputs + kDecodeUnit - 1) / kDecodeUnit)) {}
  [[gnu::always_inline]] void begin(int64_t unit) {
    unit_ = row_ + unit * kDecodeUnit;
    scale_ = set1(load_scale(scales_, type_, first_scale_ + unit) * kFp8Unit);
  }
  template <int J>
  [[gnu::always_inline]] f32x16 get() const {
    return widen_halves(e4m3_halves(unit_ + kLanes * J)) * scale_;
  }
  template <int J>
  f32x16 get_part(int64_t count) const {
    return widen_halves(e4m3_halves_part(unit_ + kLanes * J, count)) * scale_;
  }
  static float finish(float sum) { return sum; }

 private:
  const uint8_t* row_ = nullptr;
  const uint8_t* unit_ = nullptr;
  const void* scales_ = nullptr;
  ScaleType type_ = ScaleType::kF32;
  int64_t first_scale_ = 0;
  f32x16 scale_;
};

// The values of E4M3 codes: a block scale is then loaded into all lanes by one instruction.
struct E4m3Values {
  float at[256];
};
constexpr E4m3Values make_e4m3_values() {
  E4m3Values values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    float value = static_cast<float>((code & 7) + (exponent > 0 ? 8 : 0));
    for (int i = 10; i > (exponent > 0 ? exponent : 1); --i) value *= 0.5F;
    for (int i = 10; i < exponent; ++i) value *= 2.0F;
    values.at[code] = code < 128 ? value : -value;
  }
  return values;
}
inline const E4m3Values& e4m3_values() {
  static constexpr E4m3Values kAll = make_e4m3_values();
  return kAll;
}

class Nvfp4Row {
 public:
  static constexpr bool kDirect = true;
  static f32x16 arrange(f32x16 inputs) { return to_nibble_order(inputs); }
  static f32x16 restore(f32x16 lanes) { return from_nibble_order(lanes); }

  Nvfp4Row() = default;
  Nvfp4Row(const Weight& w, int64_t row)
      : codes_(static_cast<const uint8_t*>(w.data) + row * (w.inputs / 2)),
        scales_(static_cast<const uint8_t*>(w.scales) + row * (w.inputs / 16)),
        scale_(w.scale),
        divides_(w.divides) {
    static constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                          -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
    table_ = table16(kValues);
  }
  [[gnu::always_inline]] void begin(int64_t unit) {
    unit_ = codes_ + unit * (kDecodeUnit / 2);
    unit_scales_ = scales_ + unit * (kDecodeUnit / 16);
  }
  template <int J>
  [[gnu::always_inline]] f32x16 get() const {
    return look_up(table_, spread_nibbles(unit_ + 8 * J)) * set1(e4m3_values().at[unit_scales_[J]]);
  }
  template <int J>
  f32x16 get_part(int64_t /*count*/) const {
    return get<J>();  // never asked for: inputs are whole blocks
  }
  float finish(float sum) const { return divides_ ? sum / scale_ : sum * scale_; }

 private:
  const uint8_t* codes_ = nullptr;
  const uint8_t* scales_ = nullptr;
  const uint8_t* unit_ = nullptr;
  const uint8_t* unit_scales_ = nullptr;
  float scale_ = 1;
  bool divides_ = false;
  Table16 table_;
};

// The scale of the group that an input belongs to. kType is that of the scales; with kWhole all units are within one
// group.
template <ScaleType kType, bool kWhole>
class GroupScales {
 public:
  GroupScales() = default;
  GroupScales(const Weight& w, int64_t row)
      : scales_(w.scales), group_(w.group), groups_(w.inputs / w.group), first_(row * groups_) {}
  [[gnu::always_inline]] f32x16 of(int64_t unit, int64_t offset) const {
    int64_t index = group_ == kDecodeUnit ? unit : (unit * kDecodeUnit + offset) / group_;
    // Behind the last input the codes are nobody's: any scale of the row will do.
    if (!kWhole && index >= groups_) index = groups_ - 1;
    return set1(load_scale(scales_, kType, first_ + index));
  }

 private:
  const void* scales_ = nullptr;
  int64_t group_ = kDecodeUnit;
  int64_t groups_ = 0;
  int64_t first_ = 0;
};

template <int Bits>
struct IntTable;
template <>
struct IntTable<3> {
  using Type = Table8;
  static Type values() {
    static constexpr float kValues[8] = {-4, -3, -2, -1, 0, 1, 2, 3};
    return table8(kValues);
  }
  static Words load(const uint8_t* p) { return load_words24(p); }
};
template <>
struct IntTable<4> {
  using Type = Table16;
  static Type values() {
    static constexpr float kValues[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return table16(kValues);
  }
  static Words load(const uint8_t* p) { return load_words32(p); }
};

// Codes of 3 and 4 bits: the table holds code * scale, so a weight is a shift and a look-up.
template <int Bits, ScaleType kType, bool kWhole>
class IntRow : public InOrder {
 public:
  static constexpr bool kDirect = kWhole;
  IntRow() = default;
  IntRow(const Weight& w, int64_t row)
      : row_(static_cast<const uint8_t*>(w.data) + row * ((w.inputs + kDecodeUnit - 1) / kDecodeUnit) * kUnitBytes),
        scales_(w, row) {}
  [[gnu::always_inline]] void begin(int64_t unit) {
    words_ = IntTable<Bits>::load(row_ + unit * kUnitBytes);
    unit_ = unit;
    table_ = IntTable<Bits>::values() * scales_.of(unit, 0);
  }
  template <int J>
  [[gnu::always_inline]] f32x16 get() {
    if (J > 0 && !kWhole) table_ = IntTable<Bits>::values() * scales_.of(unit_, kLanes * J);
    return look_up(table_, shift_words<Bits * J>(words_));
  }
  template <int J>
  f32x16 get_part(int64_t /*count*/) {
    return get<J>();  // units are filled up
  }
  static float finish(float sum) { return sum; }

 private:
  static constexpr int64_t kUnitBytes = kDecodeUnit / 8 * Bits;

  const uint8_t* row_ = nullptr;
  GroupScales<kType, kWhole> scales_;
  int64_t unit_ = 0;
  Words words_;
  typename IntTable<Bits>::Type table_;
};

template <ScaleType kType, bool kWhole>
class Int8Row : public InOrder {
 public:
  static constexpr bool kDirect = kWhole;
  Int8Row() = default;
  Int8Row(const Weight& w, int64_t row)
      : row_(static_cast<const uint8_t*>(w.data) + row * ((w.inputs + kDecodeUnit - 1) / kDecodeUnit) * kDecodeUnit),
        scales_(w, row) {}
  [[gnu::always_inline]] void begin(int64_t unit) {
    unit_ = unit;
    scale_ = scales_.of(unit, 0);
  }
  template <int J>
  [[gnu::always_inline]] f32x16 get() {
    if (J > 0 && !kWhole) scale_ = scales_.of(unit_, kLanes * J);
    return (bytes_to_float(row_ + unit_ * kDecodeUnit + kLanes * J) - set1(128.0F)) * scale_;
  }
  template <int J>
  f32x16 get_part(int64_t /*count*/) {
    return get<J>();  // units are filled up
  }
  static float finish(float sum) { return sum; }

 private:
  const uint8_t* row_ = nullptr;
  GroupScales<kType, kWhole> scales_;
  int64_t unit_ = 0;
  f32x16 scale_;
};

}  // namespace tandem::ops::host::TANDEM_ISA
