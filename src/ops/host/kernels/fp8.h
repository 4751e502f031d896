// FP8 weights with 128 x 128 block scales, decoded row by row.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

inline void decode_fp8_row(const uint8_t* codes, const uint16_t* scales, int64_t inputs, float* out) {
  for (int64_t i = 0; i < inputs; ++i) {
    const uint32_t code = codes[i];
    const uint32_t exponent = (code >> 3) & 15U;
    const uint32_t mantissa = code & 7U;
    const int32_t magnitude =
        exponent == 0 ? static_cast<int32_t>(mantissa) : static_cast<int32_t>((8U + mantissa) << (exponent - 1));
    const uint32_t bits = static_cast<uint32_t>(scales[i / 128]) << 16;
    float block_scale = 0;
    std::memcpy(&block_scale, &bits, 4);
    const float value = static_cast<float>((code & 0x80U) != 0 ? -magnitude : magnitude) * 0x1p-9F;
    out[i] = value * block_scale;
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
