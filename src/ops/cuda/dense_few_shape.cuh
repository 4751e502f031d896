// How a product of few columns is cut (dense_few.cu), and what its kernel is told.
#pragma once

#include "ops/cuda/dense_paths.h"
#include "ops/ops.h"

namespace tandem::ops::cuda::dense {

inline constexpr int kUnit = 128;      // inputs
inline constexpr int kWarpUnits = 2;   // of a warp in one pass
inline constexpr int kMostWarps = 10;  // of a block
inline constexpr int kTileRows = 16;
inline constexpr int kMostTiles = 128;  // of a block
inline constexpr int kUsualTiles = 20;  // for which a card's blocks are counted
inline constexpr int kUnitProducts = kUnit / 16;
inline constexpr int kMostProducts = 4;  // of one launch: of the same inputs, format and cut

// `tiles` are of 16 rows of a matrix. Of a pair of matrices (Product::paired) they alternate: rows of the first, the
// same rows of the second.
struct Cut {
  int splits = 2;  // blocks of a cluster; the first half of them has the lower half of the inputs
  int split_bits = 1;
  int lower_units = 0;  // units in the lower half
  int units = 0;
  int units_each = 0;  // of a block
  int passes = 1;
  int warps = 1;
  int tiles = 0;       // of the product
  int tiles_each = 0;  // of a cluster, at most
  // Tiles of rows (of a pair, two) of each cluster, and how many of them, the first, have one more.
  int least = 0;
  int larger = 0;
};

struct Arguments {
  Product product;
  Cut cut;
  int first_cluster = 0;  // of the launch
  uint32_t row_bytes = 0;
  uint32_t row_scales = 0;  // bytes of the scales of a row (FP8 blocks: of 128 rows)
  int group_shift = 0;      // a group of integers has 1 << group_shift of the parts that have a scale in a slot
  // From a tile to the next, behind an even one and behind an odd one: bytes of codes, of scales.
  int64_t code_steps[2] = {};
  int64_t scale_steps[2] = {};
};

struct Group {
  Arguments products[kMostProducts];
  int count = 1;
  int slots = 0;  // of a block's ring of tiles
};

// Columns rounded up to a power of two, as its logarithm: sums in shared memory have so many.
__host__ __device__ inline int column_bits(int64_t tokens) {
  return tokens <= 1 ? 0 : tokens <= 2 ? 1 : tokens <= 4 ? 2 : 3;
}

// The block's share of a product's inputs and tiles.
struct Share {
  int first_unit = 0, end_unit = 0;
  int64_t first_row = 0;
  int tiles = 0;
  int rows = 0;  // of each matrix: those that there are
};

__device__ inline Share share_of(const Arguments& p, int cluster_index) {
  const Cut& cut = p.cut;
  const int half_bits = cut.split_bits - 1;
  const int split = static_cast<int>(blockIdx.x) & ((1 << cut.split_bits) - 1);
  const int half = split >> half_bits;
  const int half_end = half == 0 ? cut.lower_units : cut.units;
  Share share;
  share.first_unit = (half == 0 ? 0 : cut.lower_units) + (split & ((1 << half_bits) - 1)) * cut.units_each;
  share.end_unit = share.first_unit + cut.units_each < half_end ? share.first_unit + cut.units_each : half_end;
  const int index = cluster_index - p.first_cluster;
  const int first_tile = index * cut.least + (index < cut.larger ? index : cut.larger);
  const int row_tiles = cut.least + (index < cut.larger ? 1 : 0);
  share.tiles = p.product.paired ? 2 * row_tiles : row_tiles;
  share.first_row = static_cast<int64_t>(first_tile) * kTileRows;
  const int most = row_tiles * kTileRows;
  share.rows = p.product.w.rows - share.first_row < most ? static_cast<int>(p.product.w.rows - share.first_row) : most;
  return share;
}

// Tiles' sums that a block may get from the others of its cluster: those of its tiles, from each.
__host__ __device__ inline int arrived_tiles(const Cut& cut) {
  const int most = (cut.tiles_each + 2 * cut.splits - 1) >> cut.split_bits;  // a pair's second tile too
  return (most + 1) / 2 * 2 * cut.splits;
}

}  // namespace tandem::ops::cuda::dense
