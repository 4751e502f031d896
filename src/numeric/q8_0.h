// Q8_0 of GGUF files: 32 weights in 34 bytes, 8.5 bits a weight.
//
//   w = d * code, code -128 .. 127
//
// Decoding is exact: 11 bits of d and 8 of the code. A block is invalid where d is not finite.
#pragma once

#include "numeric/ggml_bits.h"

namespace tandem::numeric {

struct Q8_0Block {
  static constexpr int64_t kElements = 32;

  StoredF16 d;
  int8_t qs[32];

  bool valid() const { return stored_f16_finite(d); }

  // out [32].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(qs[i]) * factor;
  }
};
static_assert(sizeof(Q8_0Block) == 34);

}  // namespace tandem::numeric
