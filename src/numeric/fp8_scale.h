// The scales of FP8 tensors, in the type that the checkpoint stores. All of them multiply, whatever their name says
// (weight_scale_inv too).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "numeric/bf16.h"

namespace tandem::numeric {

enum class Fp8ScaleType : uint8_t { kBF16, kF32 };

// A view of scales; the bytes need no alignment.
struct Fp8Scales {
  std::span<const std::byte> bytes;
  Fp8ScaleType type = Fp8ScaleType::kBF16;

  static constexpr size_t element_bytes(Fp8ScaleType type) { return type == Fp8ScaleType::kBF16 ? 2 : 4; }
  size_t size() const { return bytes.size() / element_bytes(type); }
  float operator[](size_t index) const {
    if (type == Fp8ScaleType::kBF16) {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + 2 * index, sizeof bits);
      return bf16_to_float(bits);
    }
    float value;
    std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
    return value;
  }
};

}  // namespace tandem::numeric
