// NVFP4: E2M1 codes, one unsigned E4M3 scale to 16 consecutive inputs of a row, one FP32 scale to the tensor.
//
// A matrix [rows, inputs] is published as
//   codes   [rows, inputs / 2]   bytes, row-major; the low nibble is the even input
//   scales  [rows, inputs / 16]  E4M3 bytes with bit 7 clear, row-major
// and its tensor scale in one of two directions, which a name does not tell (Nvfp4Scale).
//
// Exactness: code * scale has at most 6 significant bits and is exact in FP32, so a decoded weight is rounded once.
// Codes and scales are never re-encoded: pack_units and unpack_units are a permutation of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "numeric/e2m1.h"
#include "numeric/e4m3.h"

namespace tandem::numeric {

inline constexpr int64_t kNvfp4Block = 16;           // inputs to a block scale
inline constexpr float kNvfp4Range = 6.0f * 448.0f;  // largest magnitude before the tensor scale, 2688
// Bounds of a tensor scale: inside them neither a block's step nor the product of two scales is subnormal or infinite.
inline constexpr float kNvfp4LeastScale = 0x1p-60f;
inline constexpr float kNvfp4GreatestScale = 0x1p60f;

// The FP32 scale of a tensor, with the bits that the checkpoint stores: 1/x is not exactly invertible, so the direction
// is kept beside the value instead of converting it.
struct Nvfp4Scale {
  enum class Direction : uint8_t {
    kMultiplier,  // ModelOpt weight_scale_2 and input_scale: amax / 2688
    kDivisor,     // compressed-tensors weight_global_scale and input_global_scale: 2688 / amax
  };
  float stored = 1.0f;
  Direction direction = Direction::kMultiplier;

  // `value` scaled, rounded once.
  float apply(float value) const { return direction == Direction::kMultiplier ? value * stored : value / stored; }
  // The multiplier that the canonical arithmetic uses: the stored bits, or the reciprocal of a divisor, rounded once.
  float multiplier() const { return direction == Direction::kMultiplier ? stored : 1.0f / stored; }
  // Finite, positive and between kNvfp4LeastScale and kNvfp4GreatestScale.
  bool valid() const { return stored >= kNvfp4LeastScale && stored <= kNvfp4GreatestScale; }
  // Whether a weight's scale fits its direction: weights are far below 2688, so multipliers are below 1 and divisors
  // above. False means that the direction was most likely mistaken.
  bool plausible_for_weights() const {
    return valid() && (direction == Direction::kMultiplier ? stored < 1 : stored > 1);
  }
};

// Bytes of the two planes; inputs must be a multiple of 16.
constexpr int64_t nvfp4_code_bytes(int64_t rows, int64_t inputs) {
  return rows * (inputs / 2);
}
constexpr int64_t nvfp4_scale_bytes(int64_t rows, int64_t inputs) {
  return rows * (inputs / kNvfp4Block);
}

// 16 values of one block from its 8 code bytes.
void nvfp4_decode_block(const uint8_t* codes, uint8_t scale, Nvfp4Scale tensor_scale, float* out);
// The matrix, row-major. Throws base::Error{kInternal} where a span has another size than the shape asks for.
void nvfp4_decode(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t rows, int64_t inputs,
                  Nvfp4Scale tensor_scale, std::span<float> out);

// The tensor scale that nvfp4_encode gives the matrix: amax / 2688.
float nvfp4_tensor_scale(std::span<const float> weights);

// Quantises by ModelOpt's rule: tensor scale = amax / 2688; block scale = E4M3 of clamp(amax16 / (6 * tensor scale),
// 2^-9, 448), 1 for a block of zeros; code = E2M1 of w / (block scale * tensor scale). Returns the tensor scale, a
// multiplier (0 for a matrix of zeros). Throws base::Error{kBadInput} at a non-finite weight, with its position.
float nvfp4_encode(std::span<const float> weights, int64_t rows, int64_t inputs, std::span<uint8_t> codes,
                   std::span<uint8_t> scales);

// Refuses NaN scales and scales with bit 7 set, which hardware would ignore: throws base::Error{kBadInput} with
// `tensor` as its source, the row, the block and the byte. `blocks_per_row` = inputs / 16.
void nvfp4_check_scales(std::span<const uint8_t> scales, int64_t blocks_per_row, const std::string& tensor);

// ---- The record layout -------------------------------------------------------------------------------------------
// A matrix is stored as units of 16 rows x 64 inputs, row tile by row tile, and within a row tile input tile by input
// tile. A vector register holds one word of 16 rows; a matrix fragment reads the same words.
inline constexpr int64_t kNvfp4UnitRows = 16;
inline constexpr int64_t kNvfp4UnitInputs = 64;

struct Nvfp4Unit {
  // codes[w][r]: inputs 8w .. 8w+7 of row r of the tile; nibble i (0 the lowest) is input 8w + i. On a little-endian
  // machine these are the source's four bytes as they are.
  uint32_t codes[8][kNvfp4UnitRows];
  // scales[r][b]: inputs 16b .. 16b+15 of row r.
  uint8_t scales[kNvfp4UnitRows][4];
};
static_assert(sizeof(Nvfp4Unit) == 576);

// Bytes of a matrix in units. Throws base::Error{kBadInput} with the figures unless rows % 16 == 0 and
// inputs % 64 == 0 and both are positive. A Flash-Next expert: 3 matrices, 4,800 units, 2,764,800 bytes.
int64_t nvfp4_record_bytes(int64_t rows, int64_t inputs);

// Published planes to units, and back: exact inverses. `units` has nvfp4_record_bytes(rows, inputs) bytes, of any
// alignment. Throws as nvfp4_record_bytes, and base::Error{kInternal} where a span has another size.
void pack_units(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t rows, int64_t inputs,
                std::span<std::byte> units);
void unpack_units(std::span<const std::byte> units, int64_t rows, int64_t inputs, std::span<uint8_t> codes,
                  std::span<uint8_t> scales);

}  // namespace tandem::numeric
