// IQ4_XS of GGUF files: 256 weights in 136 bytes, 4.25 bits a weight. A 4-bit code chooses one of the steps of IQ4_NL;
// 32 weights share a 6-bit scale.
//
//   w = d * (s - 32) * step
//
// Decoding is exact: 11 bits of d, 5 of the scale (-32 .. 31) and 7 of the step. A block is invalid where d is not
// finite.
#pragma once

#include "numeric/iq4_nl.h"

namespace tandem::numeric {

struct Iq4xsBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  uint8_t scales_high[2];  // little-endian: bits 2b and 2b+1 are bits 4 and 5 of the s of weights 32b .. 32b+31
  uint8_t scales_low[4];   // bits 0 to 3 of s in nibble b
  uint8_t qs[8][16];       // as Iq4nlBlock::qs, for weights 32b .. 32b+31

  // s - 32.
  int32_t scale(int b) const {
    const auto high = static_cast<uint32_t>(scales_high[b / 4] >> (2 * (b & 3))) & 3u;
    return static_cast<int32_t>(nibble(scales_low[b / 2], b & 1) | high << 4) - 32;
  }
  bool valid() const { return stored_f16_finite(d); }

  // out [256].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int b = 0; b < 8; ++b, out += 32) {
      const float step = factor * static_cast<float>(scale(b));
      for (int i = 0; i < 16; ++i) {
        out[i] = step * static_cast<float>(kIq4Steps[nibble(qs[b][i], 0)]);
        out[16 + i] = step * static_cast<float>(kIq4Steps[nibble(qs[b][i], 1)]);
      }
    }
  }
};
static_assert(sizeof(Iq4xsBlock) == 136);

}  // namespace tandem::numeric
