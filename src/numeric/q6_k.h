// Q6_K of GGUF files: 256 weights in 210 bytes, 6.5625 bits a weight. 16 weights share an 8-bit scale s.
//
//   w = d * s * (code - 32), code 0 .. 63
//
// Decoding is exact: 11 bits of d, 7 of the scale and 5 of the code, beside powers of two. A block is invalid where d
// is not finite.
#pragma once

#include "numeric/ggml_bits.h"

namespace tandem::numeric {

struct Q6kBlock {
  static constexpr int64_t kElements = 256;

  // Each half holds 128 weights as four runs of 32.
  uint8_t ql[2][2][32];  // low 4 bits: run k of half h in nibble k / 2 of ql[h][k % 2]
  uint8_t qh[2][32];     // upper 2 bits: run k of half h in bits 2k and 2k + 1
  int8_t scales[16];     // of weights 16t .. 16t+15
  StoredF16 d;

  // code - 32 of weight i of run k of half h.
  int32_t code(int h, int k, int i) const {
    const uint32_t low = nibble(ql[h][k & 1][i], k / 2);
    return static_cast<int32_t>(low | (static_cast<uint32_t>(qh[h][i] >> (2 * k)) & 3u) << 4) - 32;
  }
  bool valid() const { return stored_f16_finite(d); }

  // out [256].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int t = 0; t < 16; ++t, out += 16) {
      const float step = factor * static_cast<float>(scales[t]);
      for (int i = 0; i < 16; ++i) out[i] = step * static_cast<float>(code(t / 8, (t / 2) & 3, 16 * (t & 1) + i));
    }
  }
};
static_assert(sizeof(Q6kBlock) == 210);

}  // namespace tandem::numeric
