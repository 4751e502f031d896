// Experts in FP8 with a multiplier to each block of 128 x 128: how their codes lie in a record (docs/artifact.md).
//
// A matrix [rows, inputs] is stored as units of 16 rows x 32 inputs, row tile by row tile and within a tile by
// ascending inputs. A unit is
//   u32 codes[8][16]   byte i of word codes[w][r], from the lowest, is the code of input 4w + i of row r
// so a vector register holds one word of 16 rows, and a fragment of a matrix product one word of a row. This is a
// permutation of the codes. The multipliers stay as published, BF16 [ceil(rows / 128), ceil(inputs / 128)] row-major:
// the 16 rows of a tile share one to 128 inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::numeric {

inline constexpr int64_t kFp8UnitRows = 16;
inline constexpr int64_t kFp8UnitInputs = 32;
inline constexpr int64_t kFp8UnitBytes = kFp8UnitRows * kFp8UnitInputs;

// Codes [rows, inputs] row-major to units, and back: exact inverses. Throw base::Error{kInternal} with the figures
// unless rows % 16 == 0, inputs % 32 == 0, both are positive, and both spans have rows * inputs bytes.
void pack_fp8_units(std::span<const uint8_t> codes, int64_t rows, int64_t inputs, std::span<std::byte> units);
void unpack_fp8_units(std::span<const std::byte> units, int64_t rows, int64_t inputs, std::span<uint8_t> codes);

// Decodes row `row` (0 to 15) of a tile, out [inputs]: E4M3 * multiplier, exact unless it is subnormal. `scales` are
// the tile's BF16 multipliers, one to 128 inputs.
void decode_fp8_row(const std::byte* tile, int64_t row, const uint16_t* scales, std::span<float> out);

}  // namespace tandem::numeric
