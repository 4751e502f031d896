// IQ2_XS of GGUF files: 256 weights in 74 bytes, 2.3125 bits a weight. Eight weights are an entry of iq2xs_grid(),
// chosen by 9 bits, with 7 sign bits and an eighth that makes their number even; 16 weights share a 4-bit scale.
//
//   w = d * (1/2 + s) / 4 * grid * sign
//
// Decoding is exact (iq2_s.h). A block is invalid where d is not finite.
#pragma once

#include "numeric/ggml_bits.h"
#include "numeric/iquant_grids.h"

namespace tandem::numeric {

struct Iq2xsBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  uint8_t qs[32][2];  // little-endian: entry of weights 8g .. 8g+7 in the low 9 bits, their signs in the upper 7
  uint8_t scales[8];  // s of weights 32b .. 32b+15 in the low nibble, of 32b+16 .. 32b+31 in the high one

  uint32_t entry(int g) const { return qs[g][0] | (qs[g][1] & 1u) << 8; }
  uint32_t signs(int g) const { return iquant_signs(qs[g][1] >> 1); }
  uint32_t scale(int g) const { return nibble(scales[g / 4], (g & 3) / 2); }
  bool valid() const { return stored_f16_finite(d); }

  // out [256].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int g = 0; g < 32; ++g) {
      const float step = factor * (0.5f + static_cast<float>(scale(g))) * 0.25f;
      iquant_decode_8(iq2xs_grid()[entry(g)], signs(g), step, out + 8 * g);
    }
  }
};
static_assert(sizeof(Iq2xsBlock) == 74);

}  // namespace tandem::numeric
