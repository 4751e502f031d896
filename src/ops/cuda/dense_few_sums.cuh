// How the sums of a cluster's blocks come together in a product of few columns (dense_few.cu): in the one block that
// writes a tile's results.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/byte_barrier.cuh"
#include "ops/cuda/dense_decode.cuh"
#include "ops/cuda/dense_few_shape.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda::dense {

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

// How many of the cluster's tiles of rows the block writes the results of.
__device__ inline int owned_tiles(const Arguments& p, const Share& share) {
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int tiles = p.product.paired ? share.tiles / 2 : share.tiles;
  return tiles > rank ? (tiles - rank + p.cut.splits - 1) >> p.cut.split_bits : 0;
}

// Bytes of the sums of the block's tiles, from all blocks of the cluster.
__device__ inline int arriving_bytes(const Arguments& p, const Share& share) {
  const int tiles = owned_tiles(p, share) * (p.product.paired ? 2 : 1) * p.cut.splits;
  return tiles * kTileRows * static_cast<int>(sizeof(float)) << column_bits(p.product.tokens);
}

// Until a barrier's turn ends that has this parity.
__device__ inline void await_turn(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again;}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A quadruple of a tile's sums of this block on its way to the tile's owner, [tiles of the owner, splits, 16 rows,
// columns], whose barrier learns of it: no fence is needed. `quads` is the logarithm of a tile's quadruples.
__device__ inline void send_sums(const Arguments& p, int tile, int quads, int place, const float4* arrived,
                                 uint32_t barrier, const float4& sum) {
  const Owner owner(tile, p.cut.split_bits, p.product.paired);
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const float4* to = arrived + (((owner.place << p.cut.split_bits) + rank << quads) + place);
  asm volatile(
      "{.reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 barrier, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [barrier];}" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "r"(barrier), "r"(owner.rank), "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w)
      : "memory");
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

// Writes the results of this block's tiles of the cluster's once their sums are there, for which a thread of every
// block waits that gets any. Nothing is written to the block's shared memory later, so that it may end.
__device__ inline void finish_tiles(const Arguments& p, const Share& share, uint32_t arrival, const float* arrived,
                                    float unit) {
  const Product& product = p.product;
  const int bits = column_bits(product.tokens);
  const int each = kTileRows << bits;
  const int splits = p.cut.splits;
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int mine = owned_tiles(p, share);
  for (int i = static_cast<int>(threadIdx.x); i < mine * each; i += static_cast<int>(blockDim.x)) {
    const int tile = i >> (4 + bits);
    const int column = i / kTileRows & ((1 << bits) - 1);
    const int in_tile = i % kTileRows;
    const int64_t row = share.first_row + ((tile << p.cut.split_bits) + rank) * kTileRows + in_tile;
    if (row >= product.w.rows || column >= product.tokens) continue;
    const float* from = arrived + tile * splits * each * (product.paired ? 2 : 1) + (in_tile << bits) + column;
    const int64_t to = column * product.w.rows + row;
    const RowScale scale(product.w, row);
    const RowScale up_scale(product.paired ? product.up : product.w, row);
    await_bytes_of_cluster(arrival);
    const float2 half = add_splits(from, splits, each, unit);
    if (product.paired) {
      const float2 up = add_splits(from + splits * each, splits, each, unit);
      product.y[to] = silu(scale.finish(half.x + half.y)) * up_scale.finish(up.x + up.y);
    } else if (product.add_halves) {
      product.y[to] = scale.finish(half.x) + scale.finish(half.y);
    } else if (product.upper == nullptr) {
      product.y[to] = scale.finish(half.x + half.y);
    } else {
      product.y[to] = scale.finish(half.x);
      product.upper[to] = scale.finish(half.y);
    }
  }
}

}  // namespace tandem::ops::cuda::dense
