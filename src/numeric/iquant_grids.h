// The codebooks of the i-quant formats: each entry holds the magnitudes of 4 or 8 consecutive weights, one a byte, the
// first weight in the lowest byte. They are constants of ggml (MIT, NOTICE) that no published rule gives; SHA-256 sums
// of the tables are in tests/numeric/iquant_grids_test.cpp.
//
// The tables are constants of the program, aligned to 64 bytes, so that vector kernels can gather from them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tandem::numeric {

const std::array<uint64_t, 512>& iq2xs_grid();   // magnitudes 8, 25, 43
const std::array<uint64_t, 1024>& iq2s_grid();   // magnitudes 8, 25, 43
const std::array<uint32_t, 256>& iq3xxs_grid();  // magnitudes 4, 12, 20, 28, 36, 44, 52, 62
const std::array<uint32_t, 512>& iq3s_grid();    // odd magnitudes 1 to 15

// Eight sign bits from the seven that IQ2_XS and IQ3_XXS store: the eighth makes the number of negative weights even.
constexpr uint32_t iquant_signs(uint32_t seven) {
  return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1u) << 7;
}

// Eight weights: out[i] = step * magnitude i, negative where bit i of `signs` is set.
inline void iquant_decode_8(uint64_t magnitudes, uint32_t signs, float step, float* out) {
  for (int i = 0; i < 8; ++i) {
    const float value = step * static_cast<float>((magnitudes >> (8 * i)) & 255u);
    out[i] = (signs >> i & 1u) != 0 ? -value : value;
  }
}

}  // namespace tandem::numeric
