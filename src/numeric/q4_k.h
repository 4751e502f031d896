// Q4_K of GGUF files: 256 weights in 144 bytes, 4.5 bits a weight. 32 weights share a 6-bit scale s and a 6-bit minimum
// m.
//
//   w = d * s * code - dmin * m, code 0 .. 15
//
// Both products are exact, so decoding rounds once, in the subtraction. A block is invalid where d or dmin is not
// finite.
#pragma once

#include "numeric/ggml_bits.h"

namespace tandem::numeric {

// The scales and minima of Q4_K and Q5_K, eight of each, 6 bits packed in 12 bytes.
struct KScales {
  uint8_t bytes[12];  // 0-3: s 0..3, 4-7: m 0..3, with bits 4 and 5 of s and m 4..7 on top; 8-11: their low bits

  uint32_t scale(int b) const {
    return b < 4 ? bytes[b] & 63u : (bytes[b + 4] & 15u) | static_cast<uint32_t>(bytes[b - 4] >> 6) << 4;
  }
  uint32_t minimum(int b) const {
    return b < 4 ? bytes[b + 4] & 63u
                 : static_cast<uint32_t>(bytes[b + 4] >> 4) | static_cast<uint32_t>(bytes[b] >> 6) << 4;
  }
};

struct Q4kBlock {
  static constexpr int64_t kElements = 256;

  StoredF16 d;
  StoredF16 dmin;
  KScales scales;
  uint8_t qs[4][32];  // weight 64p + i in the low nibble of qs[p][i], weight 64p + 32 + i in the high one

  bool valid() const { return stored_f16_finite(d) && stored_f16_finite(dmin); }

  // out [256].
  void decode(float* out) const {
    for (int b = 0; b < 8; ++b, out += 32) {
      const float step = stored_f16(d) * static_cast<float>(scales.scale(b));
      const float low = stored_f16(dmin) * static_cast<float>(scales.minimum(b));
      for (int i = 0; i < 32; ++i) out[i] = step * static_cast<float>(nibble(qs[b / 2][i], b & 1)) - low;
    }
  }
};
static_assert(sizeof(Q4kBlock) == 144);

}  // namespace tandem::numeric
