// IQ4_NL of GGUF files: 32 weights in 18 bytes, 4.5 bits a weight. A 4-bit code chooses one of 16 uneven steps.
//
//   w = d * step
//
// Decoding is exact: 11 bits of d and 7 of the step. A block is invalid where d is not finite.
#pragma once

#include <array>

#include "numeric/ggml_bits.h"

namespace tandem::numeric {

// The steps of IQ4_NL and IQ4_XS, fitted by ggml's authors (NOTICE).
inline constexpr std::array<int8_t, 16> kIq4Steps = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};

struct Iq4nlBlock {
  static constexpr int64_t kElements = 32;

  StoredF16 d;
  uint8_t qs[16];  // weight i in the low nibble of qs[i], weight 16 + i in the high one

  bool valid() const { return stored_f16_finite(d); }

  // out [32].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int i = 0; i < 16; ++i) {
      out[i] = factor * static_cast<float>(kIq4Steps[nibble(qs[i], 0)]);
      out[16 + i] = factor * static_cast<float>(kIq4Steps[nibble(qs[i], 1)]);
    }
  }
};
static_assert(sizeof(Iq4nlBlock) == 18);

}  // namespace tandem::numeric
