// Integers of 3, 4 or 8 bits with one multiplier to each group of consecutive inputs of a row, symmetric: no zero point
// (compressed-tensors "pack-quantized", in which the GSQ publications come).
//
//   weight = (code - 2^(bits - 1)) * scale[input / group]
//
// Published as int32 words, a row at a time, in one of two packings that bear the same name (IntPacking). Scales
// [rows, inputs / group] are BF16, F16 or FP32.
//
// Exactness: code - 2^(bits - 1) has at most 8 significant bits, so its product with a BF16 or F16 scale is exact in
// FP32; with an FP32 scale it is rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::numeric {

enum class IntPacking : uint8_t {
  kWords,   // floor(32 / bits) codes to a word, the first in the lowest bits; the bits above them are zero
  kStream,  // code k at bits [k * bits, (k + 1) * bits) of the row as one stream, across words
};

constexpr bool int_bits_known(int bits) {
  return bits == 3 || bits == 4 || bits == 8;
}
// Words of a published row.
constexpr int64_t int_packed_words(int64_t inputs, int bits, IntPacking packing) {
  const int64_t per_word = 32 / bits;
  return packing == IntPacking::kStream ? (inputs * bits + 31) / 32 : (inputs + per_word - 1) / per_word;
}

constexpr float int_to_float(uint32_t code, int bits) {
  return static_cast<float>(static_cast<int32_t>(code) - (1 << (bits - 1)));
}
// `out` has `codes.size()` values; `scales` one to each `group` codes of the row.
void int_decode_row(std::span<const uint8_t> codes, int bits, std::span<const float> scales, int64_t group,
                    std::span<float> out);
// One row by scale = amax / 2^(bits - 1), 1 for a group of zeros; code = nearest, clamped.
void int_encode_row(std::span<const float> weights, int bits, int64_t group, std::span<uint8_t> codes,
                    std::span<float> scales);

// A published row to codes, one a byte, and back. unpack returns false where bits that belong to no code are not zero:
// they could not be recovered. Throw base::Error{kInternal} where a span has another size.
[[nodiscard]] bool int_unpack_row(std::span<const uint32_t> words, int bits, IntPacking packing,
                                  std::span<uint8_t> codes);
void int_pack_row(std::span<const uint8_t> codes, int bits, IntPacking packing, std::span<uint32_t> words);

// ---- The stored layout -------------------------------------------------------------------------------------------
// A row is units of 128 inputs, 16 * bits bytes each, the last one filled up with zero codes. Lane i of a unit (0 to
// 15) has its inputs i, 16 + i, … 112 + i, which for 3 and 4 bits is one word: code j (input 16 j + i) at bits [j *
// bits, (j + 1) * bits). A vector register of 16 lanes shifts them out one after the other.
//   3 bits  u16 low[16]: the words' lower 16 bits; then u8 high[16]: their upper 8
//   4 bits  u32 word[16]
//   8 bits  u8 code[128] in the order of the inputs
inline constexpr int64_t kIntUnitInputs = 128;

constexpr int64_t int_unit_bytes(int bits) {
  return kIntUnitInputs * bits / 8;
}
constexpr int64_t int_row_bytes(int64_t inputs, int bits) {
  return (inputs + kIntUnitInputs - 1) / kIntUnitInputs * int_unit_bytes(bits);
}
// Codes, one a byte, to a stored row and back: exact inverses. load returns false where a code behind the last input is
// not zero. Throw base::Error{kInternal} where a span has another size.
void int_store_row(std::span<const uint8_t> codes, int bits, std::span<std::byte> row);
[[nodiscard]] bool int_load_row(std::span<const std::byte> row, int bits, std::span<uint8_t> codes);

}  // namespace tandem::numeric
