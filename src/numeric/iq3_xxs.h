// IQ3_XXS of GGUF files: 256 weights in 98 bytes, 3.0625 bits a weight. Four weights are an entry of iq3xxs_grid(),
// chosen by 8 bits. A word for 32 weights holds 7 sign bits for each eight, to which an eighth makes their number even,
// and a 4-bit scale.
//
//   w = d * (1/2 + s) / 2 * grid * sign
//
// Decoding is exact: 11 bits of d, 5 of the scale and 5 of the grid. A block is invalid where d is not finite.
#pragma once

#include "numeric/ggml_bits.h"
#include "numeric/iquant_grids.h"

namespace tandem::numeric {

struct Iq3xxsBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  uint8_t qs[64];       // entry of weights 4q .. 4q+3
  uint8_t words[8][4];  // little-endian, for weights 32b .. 32b+31: four times 7 signs, then s in the upper 4 bits

  uint32_t word(int b) const {
    return words[b][0] | words[b][1] << 8 | words[b][2] << 16 | static_cast<uint32_t>(words[b][3]) << 24;
  }
  uint32_t signs(int g) const { return iquant_signs((word(g / 4) >> (7 * (g & 3))) & 127u); }
  uint32_t scale(int b) const { return words[b][3] >> 4; }
  bool valid() const { return stored_f16_finite(d); }

  // out [256].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int g = 0; g < 32; ++g) {
      const float step = factor * (0.5f + static_cast<float>(scale(g / 4))) * 0.5f;
      const uint64_t low = iq3xxs_grid()[qs[2 * g]];
      const uint64_t high = iq3xxs_grid()[qs[2 * g + 1]];
      iquant_decode_8(low | high << 32, signs(g), step, out + 8 * g);
    }
  }
};
static_assert(sizeof(Iq3xxsBlock) == 98);

}  // namespace tandem::numeric
