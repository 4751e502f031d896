// Q2_0 of GGUF files, with 64 weights in 18 bytes, 2.25 bits a weight. A fork wrote groups of 128 weights in 34 bytes
// under the same type id; the two can be told apart by a tensor's size alone (checkpoint/gguf.h).
//
//   w = d * (code - 1), code 0 .. 3
//
// Decoding is exact. A block is invalid where d is not finite.
#pragma once

#include "numeric/ggml_bits.h"

namespace tandem::numeric {

struct Q2_0Block {
  static constexpr int64_t kElements = 64;

  StoredF16 d;
  uint8_t qs[16];  // four consecutive weights a byte, the first in the lowest bits

  bool valid() const { return stored_f16_finite(d); }

  // out [64].
  void decode(float* out) const {
    const float factor = stored_f16(d);
    for (int i = 0; i < 64; ++i) {
      out[i] = static_cast<float>(static_cast<int32_t>((qs[i / 4] >> (2 * (i & 3))) & 3) - 1) * factor;
    }
  }
};
static_assert(sizeof(Q2_0Block) == 18);

}  // namespace tandem::numeric
