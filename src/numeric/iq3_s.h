// IQ3_S of GGUF files: 256 weights in 110 bytes, 3.4375 bits a weight. Four weights are an entry of iq3s_grid(), chosen
// by 9 bits, with a sign bit each; 32 weights share a 4-bit scale.
//
//   w = d * (1 + 2 s) * grid * sign
//
// Decoding is exact: 11 bits of d, 5 of the scale and 4 of the grid. A block is invalid where d is not finite.
#pragma once

#include "numeric/ggml_bits.h"
#include "numeric/iquant_grids.h"

namespace tandem::numeric {

struct Iq3sBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  uint8_t qs[64];     // low 8 bits of the entry of weights 4q .. 4q+3
  uint8_t qh[8];      // the entries' ninth bits, eight entries a byte
  uint8_t signs[32];  // bit i of signs[g]: weight 8g + i is negative
  uint8_t scales[4];  // s of weights 32b .. 32b+31 in nibble b

  uint32_t entry(int q) const { return qs[q] | (static_cast<uint32_t>(qh[q / 8] >> (q & 7)) & 1u) << 8; }
  uint32_t scale(int b) const { return nibble(scales[b / 2], b & 1); }
  bool valid() const { return stored_f16_finite(d); }

  // out [256].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int g = 0; g < 32; ++g) {
      const float step = factor * static_cast<float>(1 + 2 * scale(g / 4));
      const uint64_t low = iq3s_grid()[entry(2 * g)];
      const uint64_t high = iq3s_grid()[entry(2 * g + 1)];
      iquant_decode_8(low | high << 32, signs[g], step, out + 8 * g);
    }
  }
};
static_assert(sizeof(Iq3sBlock) == 110);

}  // namespace tandem::numeric
