// What the block formats of GGUF files (iq2_s.h, q4_k.h and so on) share. A block is a struct of bytes, so it has no
// alignment, no padding and the file's own byte order, and any place of a file's data can be copied into it.
//
// Values are those of ggml's dequantize_row_*, bit for bit, signs of zeros included: the same products in the same
// order (tests/numeric/ggml compares them). Where a header says that decoding is exact, every product has at most 24
// significant bits, so nothing is rounded and any order would give the same bits.
#pragma once

#include <cstdint>

#include "numeric/f16.h"

namespace tandem::numeric {

// A binary16 stored in two bytes, as all block scales are.
using StoredF16 = uint8_t[2];

constexpr uint16_t stored_f16_bits(const StoredF16& bytes) {
  return static_cast<uint16_t>(bytes[0] | (bytes[1] << 8));
}
constexpr float stored_f16(const StoredF16& bytes) {
  return f16_to_float(stored_f16_bits(bytes));
}
// Neither an infinity nor a NaN.
constexpr bool stored_f16_finite(const StoredF16& bytes) {
  return (bytes[1] & 0x7Cu) != 0x7Cu;
}

// Nibble 0 is the low one.
constexpr uint32_t nibble(uint8_t byte, int index) {
  return (byte >> (4 * index)) & 15u;
}

}  // namespace tandem::numeric
