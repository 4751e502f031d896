// Q5_K of GGUF files: 256 weights in 176 bytes, 5.5 bits a weight. As Q4_K (q4_k.h), with a fifth bit of the code.
//
//   w = d * s * code - dmin * m, code 0 .. 31
//
// Both products are exact, so decoding rounds once, in the subtraction. A block is invalid where d or dmin is not
// finite.
#pragma once

#include "numeric/q4_k.h"

namespace tandem::numeric {

struct Q5kBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  StoredF16 dmin;
  KScales scales;
  uint8_t qh[32];     // bit b of qh[i] is bit 4 of the code of weight 32b + i
  uint8_t qs[4][32];  // as Q4kBlock::qs

  uint32_t code(int b, int i) const {
    return nibble(qs[b / 2][i], b & 1) | (static_cast<uint32_t>(qh[i] >> b) & 1u) << 4;
  }
  bool valid() const { return stored_f16_finite(d) && stored_f16_finite(dmin); }

  // out [256].
  void decode(float* out) const {
    for (int b = 0; b < 8; ++b, out += 32) {
      const float step = stored_f16(d) * static_cast<float>(scales.scale(b));
      const float low = stored_f16(dmin) * static_cast<float>(scales.minimum(b));
      for (int i = 0; i < 32; ++i) out[i] = step * static_cast<float>(code(b, i)) - low;
    }
  }
};
static_assert(sizeof(Q5kBlock) == 176);

}  // namespace tandem::numeric
