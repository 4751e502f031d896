// IQ2_S of GGUF files: 256 weights in 82 bytes, 2.5625 bits a weight. Eight weights are an entry of iq2s_grid(), chosen
// by 10 bits, with a sign bit each; 16 weights share a 4-bit scale.
//
//   w = d * (1/2 + s) / 4 * grid * sign
//
// Decoding is exact: 11 bits of d, 5 of the scale and 6 of the grid. A block is invalid where d is not finite.
#pragma once

#include "numeric/ggml_bits.h"
#include "numeric/iquant_grids.h"

namespace tandem::numeric {

struct Iq2sBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  uint8_t qs[32];     // low 8 bits of the entry of weights 8g .. 8g+7
  uint8_t signs[32];  // bit i of signs[g]: weight 8g + i is negative
  uint8_t qh[8];      // the entries' upper two bits, four entries a byte
  uint8_t scales[8];  // s of weights 32b .. 32b+15 in the low nibble, of 32b+16 .. 32b+31 in the high one

  uint32_t entry(int g) const { return qs[g] | (static_cast<uint32_t>(qh[g / 4] >> (2 * (g & 3))) & 3u) << 8; }
  uint32_t scale(int g) const { return nibble(scales[g / 4], (g & 3) / 2); }
  bool valid() const { return stored_f16_finite(d); }

  // out [256].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int g = 0; g < 32; ++g) {
      const float step = factor * (0.5f + static_cast<float>(scale(g))) * 0.25f;
      iquant_decode_8(iq2s_grid()[entry(g)], signs[g], step, out + 8 * g);
    }
  }
};
static_assert(sizeof(Iq2sBlock) == 82);

}  // namespace tandem::numeric
