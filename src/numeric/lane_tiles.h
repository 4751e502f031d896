// How the units of a matrix in lanes' order (numeric/nvfp4_lanes.h, numeric/int_lanes.h) lie in memory: in tiles of 16
// rows, which products of few columns read as one run of bytes. Tiles stand row after row of tiles; in one, units of
// 128 inputs follow each other, each with its 16 rows. Scales lie likewise: of NVFP4 a unit's eight, of integers those
// of a group.
#pragma once

#include <cstdint>

namespace tandem::numeric {

inline constexpr int kLaneTileRows = 16;  // divides the rows of a matrix in lanes' order

// The place of a row's unit, or group, of `count` in each row.
constexpr int64_t lane_tile_place(int64_t row, int64_t unit, int64_t count) {
  return (row / kLaneTileRows * count + unit) * kLaneTileRows + row % kLaneTileRows;
}

}  // namespace tandem::numeric
