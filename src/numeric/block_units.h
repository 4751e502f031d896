// Experts in GGUF's block formats: how they lie in a record, and the exact arithmetic of their products with 8-bit
// activations (docs/architecture.md, "Numbers"). The scalar forms here are the definitions.
//
// A block of a format is, as the file has it, a binary16 scale d and whole 32-bit words. A matrix is stored as units of
// 16 rows, row tile by row tile and within a tile by ascending inputs. A unit is
//   u32 words[W][16]   word w of the block(s) of row r, then
//   f16 d[B][16]       their scales
// with one block of each row (B = 1) in the formats of 256 weights, two (B = 2, the first block's words first) in those
// of 32 and 64. In IQ4_XS d is the lower half of the block's first word and has no place of its own (B = 0). The words
// of IQ2_S and IQ3_S are those of numeric/iquant_codes.h, which have the file's bits in another order; all others are
// the file's. A matrix has as many bytes as in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "numeric/ggml_types.h"

namespace tandem::numeric {

inline constexpr int64_t kBlockUnitRows = 16;

struct BlockUnit {
  GgmlType type;
  int64_t inputs;  // of a unit: 256, or two blocks
  int64_t words;   // W
  int64_t scales;  // B
  int64_t bytes;   // of a unit: 16 * (4 W + 2 B)
  constexpr int64_t row_bytes() const { return bytes / kBlockUnitRows; }
};

// The formats that experts may have: IQ2_S, IQ3_XXS, IQ3_S, IQ4_XS, IQ4_NL, Q2_0. Null for every other type.
const BlockUnit* find_block_unit(GgmlType type);

// Bytes of a matrix in units, the same as in the file. Throws base::Error{kBadInput} with the figures unless
// rows % 16 == 0 and inputs is a multiple of the unit's, and both are positive.
int64_t block_unit_bytes(const BlockUnit& unit, int64_t rows, int64_t inputs);

// A matrix as a file has it (row-major, the blocks of a row one behind the other) to units, and back: exact inverses.
// Throws as block_unit_bytes, and base::Error{kInternal} where a span has another size.
void pack_block_units(const BlockUnit& unit, std::span<const std::byte> rows_of_blocks, int64_t rows, int64_t inputs,
                      std::span<std::byte> units);
void unpack_block_units(const BlockUnit& unit, std::span<const std::byte> units, int64_t rows, int64_t inputs,
                        std::span<std::byte> rows_of_blocks);

// Decodes row `row` (0 to 15) of a tile of `inputs` inputs, out [inputs], with the values of ggml_decode.
void decode_block_row(const BlockUnit& unit, const std::byte* tile, int64_t row, std::span<float> out);

// 32 consecutive weights of a row as integers: weight = factor * w, exactly.
struct IntegerWeights {
  int32_t w[32];
  float factor;  // d, times a power of two
};
// Block b of 32 weights of a row of blocks.
IntegerWeights integer_weights(GgmlType type, std::span<const std::byte> row, int64_t b);

// y = sum over blocks of 32 inputs in ascending order, y starting at +0: fma(float(I), factor * s, y), where
// I = sum of w * q, exact in int32 and in FP32 (below 2^24). q [inputs], s [inputs / 32].
float int8_row_product(GgmlType type, std::span<const std::byte> row, std::span<const int8_t> q,
                       std::span<const float> s);

// One projection, rows of blocks as in the file.
struct BlockMatrix {
  GgmlType type;
  std::span<const std::byte> data;
  int64_t rows = 0;
  int64_t inputs = 0;
};
// y [hidden] = down * (silu(gate * x) * (up * x)). Returns false, the column's fault, at a non-finite value.
[[nodiscard]] bool int8_expert(const BlockMatrix& gate, const BlockMatrix& up, const BlockMatrix& down,
                               std::span<const float> x, std::span<float> y);

}  // namespace tandem::numeric
