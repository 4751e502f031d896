// How the sums of a block's warps come together in a product of few columns whose warps fetch for themselves
// (dense_few_rows.cu).
#pragma once

#include "ops/cuda/dense_few_sums.cuh"

namespace tandem::ops::cuda::dense {

constexpr uint32_t kPlaces = 4;  // for sums of groups of tiles
constexpr int kMeetingBarriers = 16 * (kPlaces + 1);
constexpr int kWarpFloats = 8 * kTileRows;  // of a group: of eight tiles and a column, or of one and eight

__host__ __device__ constexpr int meeting_bytes(int warps) {
  return kMeetingBarriers + static_cast<int>(kPlaces * sizeof(float)) * warps * kWarpFloats;
}

// Where the sums of a block's warps meet. Tiles come in groups of as many as have a quadruple of sums for each lane of
// a warp (eight of one column, one of eight columns). All warps leave their sums of a group in one of a few places; one
// warp, another for each group, adds them once it has left its own of the next group. So no warp waits for all others.
class Meeting {
 public:
  // `shared` has meeting_bytes(warps); `arrived` and `sums` are as add() says.
  __device__ Meeting(const Arguments& p, const Share& share, int warp, int lane, uint8_t* shared, float4* arrived,
                     float4* sums)
      : p_(p),
        share_(share),
        warp_(warp),
        lane_(lane),
        bits_(column_bits(p.product.tokens)),
        barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        parts_(reinterpret_cast<float*>(shared + kMeetingBarriers)),
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
    expect_bytes(arrival(), arriving_bytes(p_, share_));
  }

  // Of the sums of the block's tiles from all blocks of the cluster.
  __device__ uint32_t arrival() const { return barriers_ + 16 * kPlaces; }

  __device__ void begin_pass(int pass) {
    pass_ = pass;
    before_ = static_cast<uint32_t>(pass * ((share_.tiles - 1 >> group_bits()) + 1));
    until_own_ = warp_;
  }
  // Where the warp's sums of a tile go, [16 rows, columns]; asked for tile by tile.
  __device__ float* place_of(int tile) {
    if ((tile & (1 << group_bits()) - 1) == 0) {
      const uint32_t number = number_of(tile >> group_bits());
      await_turn(free_at(number), number / kPlaces + 1 & 1);
      place_ = parts_of(number) + (warp_ * kTileRows << bits_);
    } else {
      place_ += p_.cut.warps * kTileRows << bits_;
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
    const int until = last ? group : group - 1;  // the last group's sums are waited for at once
#pragma unroll 1
    for (int next = group > 0 ? group - 1 : group; next <= until; ++next) {
      if (until_own_-- > 0) continue;
      until_own_ = p_.cut.warps - 1;
      add_group(next);
    }
  }

 private:
  __device__ int group_bits() const { return 3 - bits_; }
  __device__ uint32_t number_of(int group) const { return before_ + static_cast<uint32_t>(group); }  // of all passes
  __device__ uint32_t left_at(uint32_t number) const { return barriers_ + 16 * (number % kPlaces); }
  __device__ uint32_t free_at(uint32_t number) const { return left_at(number) + 8; }
  __device__ float* parts_of(uint32_t number) const {
    return parts_ + static_cast<int>(number % kPlaces) * p_.cut.warps * kWarpFloats;
  }

  __device__ void add_group(int group) const {
    const uint32_t number = number_of(group);
    await_turn(left_at(number), number / kPlaces & 1);
    add(group, reinterpret_cast<const float4*>(parts_of(number)));
    __syncwarp();
    if (lane_ == 0) arrive(free_at(number));
  }

  // Adds the warps' sums of a group, in order of the inputs: into `sums` while passes follow, else on their way to the
  // tiles' owners, [tiles of the owner, splits, 16 rows, columns].
  __device__ void add(int group, const float4* parts) const {
    const int quads = 2 + bits_;  // the logarithm of a tile's quadruples
    const int in_group = lane_ >> quads;
    const int tile = (group << group_bits()) + in_group;
    if (tile >= share_.tiles) return;
    const int place = lane_ & ((1 << quads) - 1);
    const int warps = p_.cut.warps;
    const float4* from = parts + (in_group * warps << quads) + place;
    float4* own = sums_ + (tile << quads) + place;
    float4 sum = pass_ == 0 ? make_float4(0, 0, 0, 0) : *own;
#pragma unroll 2
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
      send_sums(p_, tile, quads, place, arrived_, arrival(), sum);
    }
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

}  // namespace tandem::ops::cuda::dense
