// How the sums of a product of few columns come together (dense_few.cu): those of a block's warps, then those of a
// cluster's blocks in the one of them that writes a tile's results.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_few_shape.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda::dense {

// Columns rounded up to a power of two, as its logarithm: sums in shared memory have so many.
__host__ __device__ inline int column_bits(int64_t tokens) {
  return tokens <= 1 ? 0 : tokens <= 2 ? 1 : tokens <= 4 ? 2 : 3;
}

// Which block of the cluster writes the results of a tile, and the how manieth of its tiles that is. A pair's tiles
// stay together.
struct Owner {
  int rank, place;
  __device__ Owner(int tile, int split_bits, bool paired) {
    const int rows = paired ? tile / 2 : tile;
    rank = rows & ((1 << split_bits) - 1);
    place = paired ? (rows >> split_bits) * 2 + tile % 2 : rows >> split_bits;
  }
};

// Adds the warps' sums of `tiles` tiles, in order of the inputs: into `sums` while passes follow, else on their way to
// the tiles' owners, [tiles of the owner, splits, 16 rows, columns].
__device__ inline void add_warps(const Arguments& p, const float4* parts, int first, int tiles, int pass, float4* sums,
                                 float4* arrived) {
  const auto cluster = cooperative_groups::this_cluster();
  const int bits = 2 + column_bits(p.product.tokens);  // of the quadruples of a tile
  const int warps = p.cut.warps;
  for (int i = static_cast<int>(threadIdx.x); i < tiles << bits; i += static_cast<int>(blockDim.x)) {
    const int tile = i >> bits;
    const int place = i - (tile << bits);
    const float4* from = parts + (tile * warps << bits) + place;
    float4* own = sums + (first + tile << bits) + place;
    float4 sum = pass == 0 ? make_float4(0, 0, 0, 0) : *own;
    for (int warp = 0; warp < warps; ++warp) {
      const float4 part = from[warp << bits];
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    if (pass + 1 < p.cut.passes) {
      *own = sum;
    } else {
      const Owner owner(first + tile, p.cut.split_bits, p.product.paired);
      const int rank = static_cast<int>(cluster.block_rank());
      float4* there = cluster.map_shared_rank(arrived, owner.rank);
      there[((owner.place << p.cut.split_bits) + rank << bits) + place] = sum;
    }
  }
}

// What the halves of the inputs give.
__device__ inline float2 add_splits(const float* arrived, int splits, int each, float unit) {
  float lower = 0;
  float upper = 0;
  for (int split = 0; split < splits / 2; ++split) {
    lower += arrived[split * each];
    upper += arrived[(split + splits / 2) * each];
  }
  return make_float2(lower * unit, upper * unit);
}

// Writes the results of this block's tiles of the cluster's.
__device__ inline void finish_tiles(const Arguments& p, const Share& share, const float* arrived, float unit) {
  const Product& product = p.product;
  const int bits = column_bits(product.tokens);
  const int each = kTileRows << bits;
  const int splits = p.cut.splits;
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int tiles = product.paired ? share.tiles / 2 : share.tiles;  // of rows
  const int mine = tiles > rank ? (tiles - rank + splits - 1) >> p.cut.split_bits : 0;
  for (int i = static_cast<int>(threadIdx.x); i < mine * each; i += static_cast<int>(blockDim.x)) {
    const int tile = i >> (4 + bits);
    const int column = i / kTileRows & ((1 << bits) - 1);
    const int in_tile = i % kTileRows;
    const int64_t row = share.first_row + ((tile << p.cut.split_bits) + rank) * kTileRows + in_tile;
    if (row >= product.w.rows || column >= product.tokens) continue;
    const float* from = arrived + tile * splits * each * (product.paired ? 2 : 1) + (in_tile << bits) + column;
    const float2 half = add_splits(from, splits, each, unit);
    const int64_t to = column * product.w.rows + row;
    if (product.paired) {
      const float2 up = add_splits(from + splits * each, splits, each, unit);
      product.y[to] = silu(finish_sum(product.w, row, half.x + half.y)) * finish_sum(product.up, row, up.x + up.y);
    } else if (product.add_halves) {
      product.y[to] = finish_sum(product.w, row, half.x) + finish_sum(product.w, row, half.y);
    } else if (product.upper == nullptr) {
      product.y[to] = finish_sum(product.w, row, half.x + half.y);
    } else {
      product.y[to] = finish_sum(product.w, row, half.x);
      product.upper[to] = finish_sum(product.w, row, half.y);
    }
  }
}

}  // namespace tandem::ops::cuda::dense
