// Products of experts in GGUF's block formats and in FP8 with 8-bit activations (numeric/block_units.h and
// numeric/expert_reference.h have the definitions).
//
// A format turns 32 inputs of all rows into eight registers, one lane a row, four bytes a lane; each register meets one
// word of a column. Blocks are decoded once for up to eight columns. With AVX-512 the weights are made unsigned by
// adding 128, which the column's `start` takes off again, so that one instruction does four products and their sum.
#pragma once

#include <type_traits>

#include "ops/host/kernels/block_formats.h"
#include "ops/host/kernels/expert_columns.h"
#include "ops/host/kernels/fp8_units.h"
#include "ops/host/kernels/iquants.h"

namespace tandem::ops::host::TANDEM_ISA {

// The sums over 32 inputs of one block of each column, times the block's scales, as FP32: whole numbers below 2^24.
#ifdef __AVX512F__
inline constexpr int kInt8Together = 8;

template <typename Format, int C>
[[gnu::always_inline]] inline void block_sums(const std::byte* unit, int b, const IquantTables& tables,
                                              const Int8Block* const* columns, int64_t block, RowFloats (&out)[C]) {
  constexpr int kHalves = Format::kScales == 2 ? 2 : 1;
  Rows dots[kHalves][C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) dots[h][c] = set_rows(columns[c][block].start[h]);
  }
  Format::weights(unit, b, tables, [&](int i, Word word) __attribute__((always_inline)) {
    Rows(&half)[C] = dots[kHalves == 2 ? i / 4 : 0];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) half[c] = add_dots(half[c], word, columns[c][block].values[i]);
  });
  BlockScale scales[Format::kScales == 0 ? 1 : Format::kScales];
  Format::scales(unit, b, scales);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    out[c] = to_float(dots[0][c]);
    if constexpr (Format::kScales >= 1) out[c] = multiply(out[c], scales[0]);
    if constexpr (kHalves == 2) out[c] = multiply_add(to_float(dots[1][c]), scales[1], out[c]);
  }
}
#else
inline constexpr int kInt8Together = 4;

// |w| * (x with w's sign), two products in 16 bits, which hold the sums of as many as kTogether words.
template <typename Format, int C>
[[gnu::always_inline]] inline void block_sums(const std::byte* unit, int b, const IquantTables& tables,
                                              const Int8Block* const* columns, int64_t block, RowFloats (&out)[C]) {
  constexpr int kFit = INT16_MAX / (2 * Format::kLargest * 127);
  constexpr int kTogether = kFit >= 8 && Format::kScales < 2 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  BlockScale scales[Format::kScales == 0 ? 1 : Format::kScales];
  Format::scales(unit, b, scales);
  Rows pairs[C];
  Rows dots[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) dots[c] = set_rows(columns[c][block].start[0]);
  Format::weights(unit, b, tables, [&](int i, Word word) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const Rows x = set_rows(columns[c][block].values[i]);
      const Rows two = _mm256_maddubs_epi16(word.magnitudes, Format::kSigned ? _mm256_sign_epi8(x, word.signs) : x);
      pairs[c] = i % kTogether == 0 ? two : _mm256_add_epi16(pairs[c], two);
      if (i % kTogether == kTogether - 1) {
        const Rows scale = Format::kScales == 0 ? _mm256_set1_epi16(1) : scales[Format::kScales == 2 ? i / 4 : 0];
        dots[c] = add_rows(dots[c], _mm256_madd_epi16(pairs[c], scale));
      }
    }
  });
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) out[c] = to_float(dots[c]);
}
#endif

template <typename Format, int C>
inline void int8_columns(const Tile& tile, int64_t inputs, const Int8Block* const* columns, float* out) {
  const IquantTables& tables = iquant_tables();
  const std::byte* const end = tile.data + inputs / Format::kInputs * Format::kBytes;
  for (int64_t row = 0; row < kExpertTileRows; row += kRowLanes) {
    RowFloats sums[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[c] = set_row_floats(0);
    int64_t block = 0;
    for (const std::byte* unit = tile.data; block < inputs / 32; unit += Format::kBytes) {
      if (row == 0) prefetch_ahead(unit, Format::kBytes, end, tile.next);
      for (int b = 0; b < Format::kInputs / 32; ++b, ++block) {
        RowFloats dots[C];
        RowFloats factor;
        if constexpr (std::is_same_v<Format, Fp8Units>) {
          fp8_sums(unit + row * 4, columns, block, dots);
          factor = fp8_factor(tile.scales[block / 4]);
        } else {
          block_sums<Format>(unit + row * 4, b, tables, columns, block, dots);
          factor = Format::factor(unit, row, b);
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          sums[c] = multiply_add(dots[c], multiply(factor, set_row_floats(columns[c][block].scale)), sums[c]);
        }
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store_rows(out + kExpertTileRows * c + row, sums[c]);
  }
}

// Three columns take the time of four: the last is computed again.
template <typename Format>
inline void int8_format(const Tile& tile, int64_t inputs, const Int8Block* const* columns, int64_t count, float* out) {
  const Int8Block* padded[8];
  alignas(64) float all[8 * kExpertTileRows];
  for (int64_t first = 0; first < count; first += kInt8Together) {
    const int64_t together = count - first < kInt8Together ? count - first : kInt8Together;
    for (int64_t c = 0; c < 8; ++c) padded[c] = columns[first + (c < together ? c : together - 1)];
    if (together == 1) {
      int8_columns<Format, 1>(tile, inputs, padded, all);
    } else if (together == 2) {
      int8_columns<Format, 2>(tile, inputs, padded, all);
    } else if (together <= 4) {
      int8_columns<Format, 4>(tile, inputs, padded, all);
    } else {
      int8_columns<Format, kInt8Together>(tile, inputs, padded, all);
    }
    std::memcpy(out + kExpertTileRows * first, all, static_cast<size_t>(kExpertTileRows * together) * sizeof(float));
  }
}

inline void int8_product(ExpertFormat format, const Tile& tile, int64_t inputs, const Int8Block* const* columns,
                         int64_t count, float* out) {
  switch (format) {
    case ExpertFormat::kFp8Block:
      return int8_format<Fp8Units>(tile, inputs, columns, count, out);
    case ExpertFormat::kIq2s:
      return int8_format<Iq2s>(tile, inputs, columns, count, out);
    case ExpertFormat::kIq3xxs:
      return int8_format<Iq3xxs>(tile, inputs, columns, count, out);
    case ExpertFormat::kIq3s:
      return int8_format<Iq3s>(tile, inputs, columns, count, out);
    case ExpertFormat::kIq4xs:
      return int8_format<Iq4xs>(tile, inputs, columns, count, out);
    case ExpertFormat::kIq4nl:
      return int8_format<Iq4nl>(tile, inputs, columns, count, out);
    case ExpertFormat::kQ2_0:
      return int8_format<Q2_0>(tile, inputs, columns, count, out);
    default:  // not one that takes 8-bit activations
      return;
  }
}

template <typename Format>
inline bool quantise_for(const float* x, int64_t inputs, Int8Block* out) {
  bool finite = true;
  for (int64_t block = 0; block < inputs / 32; ++block) {
    const f32x16 low = load(x + 32 * block);
    const f32x16 high = load(x + 32 * block + 16);
    const uint32_t bits_low = largest_bits(low);
    const uint32_t bits_high = largest_bits(high);
    const uint32_t largest = bits_low > bits_high ? bits_low : bits_high;
    Int8Block& to = out[block];
    finite = finite && largest < kInfinityBits;
    const float scale = largest < kInfinityBits ? float_of(largest) / 127.0F : 0.0F;
    if (scale < 0x1p-126F) {
      to = {};
      continue;
    }
    const f32x16 most = set1(127.0F);
    alignas(32) int8_t natural[32];
    alignas(32) int8_t ordered[32];
    const auto bytes = [&](f32x16 values) {
      return to_bytes(min(most, max(zero() - most, round_even(values / set1(scale)))));
    };
    _mm_store_si128(reinterpret_cast<__m128i*>(natural), bytes(low));
    _mm_store_si128(reinterpret_cast<__m128i*>(natural + 16), bytes(high));
    for (int i = 0; i < 32; ++i) ordered[i] = natural[Format::kOrder[i]];
    std::memcpy(to.values, ordered, sizeof ordered);
    const int32_t first = -Format::kAdded * sum_of_bytes(_mm_load_si128(reinterpret_cast<const __m128i*>(ordered)));
    const int32_t second =
        -Format::kAdded * sum_of_bytes(_mm_load_si128(reinterpret_cast<const __m128i*>(ordered + 16)));
    to.scale = scale;
    to.start[0] = Format::kScales == 2 ? first : first + second;
    to.start[1] = Format::kScales == 2 ? second : 0;
  }
  return finite;
}

inline bool quantise_int8(ExpertFormat format, const float* x, int64_t inputs, Int8Block* out) {
  switch (format) {
    case ExpertFormat::kFp8Block:
      return quantise_for<Fp8Units>(x, inputs, out);
    case ExpertFormat::kIq2s:
      return quantise_for<Iq2s>(x, inputs, out);
    case ExpertFormat::kIq3xxs:
    case ExpertFormat::kIq3s:
      return quantise_for<Iq3s>(x, inputs, out);
    case ExpertFormat::kQ2_0:
      return quantise_for<Q2_0>(x, inputs, out);
    default:
      return quantise_for<Iq4nl>(x, inputs, out);
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
