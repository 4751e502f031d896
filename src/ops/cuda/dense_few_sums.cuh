// How the sums of a product of few columns come together (dense_few.cu): those of a block's warps, then those of a
// cluster's blocks in the one of them that writes a tile's results.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/byte_barrier.cuh"
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

constexpr uint32_t kPlaces = 4;  // for sums of groups of tiles
constexpr int kBarrierBytes = 16 * (kPlaces + 1);
constexpr int kWarpFloats = 8 * kTileRows;  // of a group: of eight tiles and a column, or of one and eight

__host__ __device__ constexpr int meeting_bytes(int warps) {
  return kBarrierBytes + static_cast<int>(kPlaces * sizeof(float)) * warps * kWarpFloats;
}

// How many of the cluster's tiles of rows the block writes the results of.
__device__ inline int owned_tiles(const Arguments& p, const Share& share) {
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int tiles = p.product.paired ? share.tiles / 2 : share.tiles;
  return tiles > rank ? (tiles - rank + p.cut.splits - 1) >> p.cut.split_bits : 0;
}

// Where the sums of a block's warps meet. Tiles come in groups of as many as have a quadruple of sums for each lane of
// a warp (eight of one column, one of eight columns). All warps leave their sums of a group in one of a few places; one
// warp, another for each group, adds them once it has left its own of the next group. So no warp waits for all others.
// kBits: the logarithm of the columns where a kernel knows it, else negative.
template <int kBits>
class Meeting {
 public:
  // `shared` has meeting_bytes(warps); `arrived` and `sums` are as add() says.
  __device__ Meeting(const Arguments& p, const Share& share, int warp, int lane, uint8_t* shared, float4* arrived,
                     float4* sums)
      : p_(p),
        share_(share),
        warp_(warp),
        lane_(lane),
        bits_(kBits >= 0 ? kBits : column_bits(p.product.tokens)),
        barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        parts_(reinterpret_cast<float*>(shared + kBarrierBytes)),
        arrived_(arrived),
        sums_(sums) {}
  // By one thread, before all of the block's meet at a barrier.
  __device__ void prepare() const {
    for (uint32_t i = 0; i < kPlaces; ++i) {
      set_up_barrier(left_at(i), p_.cut.warps);
      set_up_barrier(free_at(i), 1);
    }
    set_up_barrier(arrival(), 1);
    announce_barriers();
    const int tiles = owned_tiles(p_, share_) * (p_.product.paired ? 2 : 1) * p_.cut.splits;
    expect_bytes(arrival(), tiles * kTileRows * static_cast<int>(sizeof(float)) << bits());
  }

  // Until all sums of the block's tiles are there, from all blocks of the cluster. Nothing is written to its shared
  // memory later, so that it may end.
  __device__ void await_arrival() const { await_bytes_of_cluster(arrival()); }

  __device__ void begin_pass(int pass) {
    pass_ = pass;
    before_ = static_cast<uint32_t>(pass * ((share_.tiles - 1 >> group_bits()) + 1));
    until_own_ = warp_;
  }
  // Where the warp's sums of a tile go, [16 rows, columns]; asked for tile by tile.
  __device__ float* place_of(int tile) {
    if ((tile & (1 << group_bits()) - 1) == 0) {
      const uint32_t number = number_of(tile >> group_bits());
      await(free_at(number), number / kPlaces + 1);
      place_ = parts_of(number) + (warp_ * kTileRows << bits());
    } else {
      place_ += p_.cut.warps * kTileRows << bits();
    }
    return place_;
  }
  // The warp's sums of a tile are there.
  __device__ void leave(int tile) {
    const bool last = tile + 1 == share_.tiles;
    if (!last && (tile + 1 & (1 << group_bits()) - 1) != 0) return;
    const int group = tile >> group_bits();
    __syncwarp();
    if (lane_ == 0) arrive(left_at(number_of(group)));
    const int until = last && !kLastApart ? group : group - 1;  // the last group's sums are waited for at once
#pragma unroll 1
    for (int next = group > 0 ? group - 1 : group; next <= until; ++next) {
      if (until_own_-- > 0) continue;
      until_own_ = p_.cut.warps - 1;
      add_group<2>(next);
    }
  }
  // Behind the tiles of a pass.
  __device__ void end_pass() const {
    if (kLastApart && warp_ == 0) add_group<5>(share_.tiles - 1 >> group_bits());
  }

 private:
  // The last group is added behind the loop over tiles where that has no registers to spare.
  static constexpr bool kLastApart = kBits >= 2;

  __device__ int bits() const { return kBits >= 0 ? kBits : bits_; }
  __device__ int group_bits() const { return 3 - bits(); }
  __device__ uint32_t number_of(int group) const { return before_ + static_cast<uint32_t>(group); }  // of all passes
  __device__ uint32_t left_at(uint32_t number) const { return barriers_ + 16 * (number % kPlaces); }
  __device__ uint32_t free_at(uint32_t number) const { return left_at(number) + 8; }
  __device__ uint32_t arrival() const { return barriers_ + 16 * kPlaces; }
  __device__ float* parts_of(uint32_t number) const {
    return parts_ + static_cast<int>(number % kPlaces) * p_.cut.warps * kWarpFloats;
  }
  __device__ static void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
  }
  __device__ static void await(uint32_t barrier, uint32_t turn) {
    asm volatile(
        "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again;}" ::"r"(
            barrier),
        "r"(turn & 1)
        : "memory");
  }

  // kAhead: the sums of so many warps are read at once.
  template <int kAhead>
  __device__ void add_group(int group) const {
    const uint32_t number = number_of(group);
    await(left_at(number), number / kPlaces);
    add<kAhead>(group, reinterpret_cast<const float4*>(parts_of(number)));
    __syncwarp();
    if (lane_ == 0) arrive(free_at(number));
  }

  // Adds the warps' sums of a group, in order of the inputs: into `sums` while passes follow, else on their way to the
  // tiles' owners, [tiles of the owner, splits, 16 rows, columns].
  template <int kAhead>
  __device__ void add(int group, const float4* parts) const {
    const int quads = 2 + bits();  // the logarithm of a tile's quadruples
    const int in_group = lane_ >> quads;
    const int tile = (group << group_bits()) + in_group;
    if (tile >= share_.tiles) return;
    const int place = lane_ & ((1 << quads) - 1);
    const int warps = p_.cut.warps;
    const float4* from = parts + (in_group * warps << quads) + place;
    float4* own = sums_ + (tile << quads) + place;
    float4 sum = pass_ == 0 ? make_float4(0, 0, 0, 0) : *own;
#pragma unroll(kAhead)
    for (int warp = 0; warp < warps; ++warp) {
      const float4 part = from[warp << quads];
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    if (pass_ + 1 < p_.cut.passes) {
      *own = sum;
    } else {
      const Owner owner(tile, p_.cut.split_bits, p_.product.paired);
      const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
      const float4* to = arrived_ + (((owner.place << p_.cut.split_bits) + rank << quads) + place);
      send(static_cast<uint32_t>(__cvta_generic_to_shared(to)), owner.rank, sum);
    }
  }

  // To the same place in another block of the cluster, which learns of it by its barrier: no fence is needed.
  __device__ void send(uint32_t to, int rank, const float4& sum) const {
    asm volatile(
        "{.reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 barrier, %1, %2; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [barrier];}" ::"r"(to),
        "r"(arrival()), "r"(rank), "f"(sum.x), "f"(sum.y), "f"(sum.z), "f"(sum.w)
        : "memory");
  }

  const Arguments& p_;
  const Share& share_;
  int warp_, lane_, bits_;
  uint32_t barriers_;
  float* parts_;  // [kPlaces][tiles of a group, warps, 16 rows, columns]
  float4* arrived_;
  float4* sums_;
  int pass_ = 0;
  uint32_t before_ = 0;  // groups of earlier passes
  int until_own_ = 0;    // groups that other warps add before this warp's next one
  float* place_ = nullptr;
};

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
// block waits that gets any.
template <int kBits>
__device__ inline void finish_tiles(const Arguments& p, const Share& share, const Meeting<kBits>& meeting,
                                    const float* arrived, float unit) {
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
    meeting.await_arrival();
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
