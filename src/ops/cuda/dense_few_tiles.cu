// Products of few columns (dense_few.cu) with weights in lanes' order: NVFP4 and integers of three and four bits. One
// warp of a block fetches for all others (dense_few_tile_ring.cuh), so that these have nothing to do but to decode and
// to multiply; the same warp adds the sums that the others leave of a tile where its codes were, and sends them to the
// tile's owner. Few slots are asked for at a time, a further one when one has arrived: small requests, for inputs and
// sums, wait behind what is under way.
#include <cooperative_groups.h>

#include "ops/cuda/dense_few_inputs.cuh"
#include "ops/cuda/dense_few_launch.cuh"
#include "ops/cuda/dense_few_sums.cuh"
#include "ops/cuda/dense_few_tile_ring.cuh"

namespace tandem::ops::cuda::dense {

namespace {

// What a block's warps share.
struct Shared {
  uint8_t* ring;
  uint32_t barriers;  // of each slot two, then that of sums from other blocks
  float4* arrived;    // [tiles of the block, splits, 16 rows, columns]
  float4* sums;       // [tiles, 16 rows, columns], while passes follow

  __device__ uint32_t filled(int slot) const { return barriers + kSlotBarrierBytes * slot; }
  __device__ uint32_t left(int slot) const { return filled(slot) + 8; }
  __device__ uint32_t arrival() const { return filled(kMostSlots); }
};

// Of all warps of a block, wherever they come to it.
__device__ inline void meet_all() {
  asm volatile("barrier.sync 0;" ::: "memory");
}
// Asynchronous copies may write where ordinary instructions wrote or read before.
__device__ inline void give_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Zeros for the scales of units that the block has not: codes of these stay any numbers. Some may come yet, in a pass
// before the last.
template <typename R>
__device__ inline void clear_scales(const Arguments& p, const Share& share, const Shared& shared, int slots, int lane) {
  const int warps = p.cut.warps;
  if (share.end_unit - share.first_unit >= p.cut.passes * warps * kWarpUnits) return;
  for (int slot = 0; slot < slots; ++slot) {
    uint8_t* scales = shared.ring + slot * R::slot_bytes(warps) + R::codes_bytes(warps);
#pragma unroll 1
    for (int i = 16 * lane; i < R::scales_bytes(warps); i += 16 * 32) {
      *reinterpret_cast<uint4*>(scales + i) = make_uint4(0, 0, 0, 0);
    }
  }
  __syncwarp();
  give_to_copies();
}

// The warp that fills the ring.
template <WeightFormat kFormat, int kScales, int kBytes>
class Filler {
  using R = TileRing<kFormat, kScales, kBytes>;

 public:
  __device__ Filler(const Arguments& p, const Share& share, const Shared& shared, int slots)
      : p_(p),
        share_(share),
        shared_(shared),
        slots_(slots),
        lane_(lane_number()),
        source_(p, share, lane_),
        ring_(static_cast<uint32_t>(__cvta_generic_to_shared(shared.ring))) {}

  // The first slot is asked for before all else, as the memory is idle; until then the other warps wait.
  __device__ void begin() {
    if (lane_ == 0) {
      set_up(0);
      announce_barriers();
    }
    clear_scales<R>(p_, share_, shared_, slots_, lane_);
    __syncwarp();
    copy(0);
    if (lane_ == 0) {
#pragma unroll 1
      for (int slot = 1; slot < slots_; ++slot) set_up(slot);
      set_up_barrier(shared_.arrival(), 1);
      announce_barriers();
      expect_bytes(shared_.arrival(), arriving_bytes(p_, share_));
    }
    __syncwarp();
    meet_all();
    // All blocks of the cluster are there before one writes to another. Nothing but the barriers was written, which
    // have a fence of their own.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#pragma unroll 1
    for (int slot = 1; slot < slots_ && !source_.ends(); ++slot) {
      await_turn(shared_.filled(slot - 1), 0);
      copy(slot);
    }
  }

  // Until the other warps have left all tiles.
  __device__ void serve() {
    const int quads = 2 + column_bits(p_.product.tokens);  // the logarithm of a tile's quadruples
    const bool adds = lane_ < 1 << quads;
    int slot = 0;
    uint32_t parity = 0;
    for (int pass = 0; pass < p_.cut.passes; ++pass) {
#pragma unroll 1
      for (int tile = 0; tile < share_.tiles; ++tile) {
        await_turn(shared_.left(slot), parity);
        float4 parts[kMostWarps];
        if (adds) read_parts(slot, parts);
        __syncwarp();
        give_to_copies();
        if (!source_.ends()) copy(slot);
        if (++slot == slots_) {
          slot = 0;
          parity ^= 1;
        }
        if (adds) add(pass, tile, quads, parts);
      }
    }
  }

 private:
  __device__ void set_up(int slot) const {
    set_up_barrier(shared_.filled(slot), 1);
    set_up_barrier(shared_.left(slot), p_.cut.warps);
  }
  __device__ void copy(int slot) { source_.copy(ring_ + slot * R::slot_bytes(p_.cut.warps), shared_.filled(slot)); }

  // The lane's quadruple of each warp's sums.
  __device__ void read_parts(int slot, float4 (&parts)[kMostWarps]) const {
    const uint8_t* from = shared_.ring + slot * R::slot_bytes(p_.cut.warps) + 16 * lane_;
#pragma unroll
    for (int warp = 0; warp < kMostWarps; ++warp) {
      if (warp < p_.cut.warps) parts[warp] = *reinterpret_cast<const float4*>(from + warp * R::kWarpCodes);
    }
  }
  // In order of the warps.
  __device__ void add(int pass, int tile, int quads, const float4 (&parts)[kMostWarps]) const {
    float4* own = shared_.sums + (tile << quads) + lane_;
    float4 sum = pass == 0 ? make_float4(0, 0, 0, 0) : *own;
#pragma unroll
    for (int warp = 0; warp < kMostWarps; ++warp) {
      if (warp >= p_.cut.warps) break;
      sum.x += parts[warp].x;
      sum.y += parts[warp].y;
      sum.z += parts[warp].z;
      sum.w += parts[warp].w;
    }
    if (pass + 1 < p_.cut.passes) {
      *own = sum;
    } else {
      send_sums(p_, tile, quads, lane_, shared_.arrived, shared_.arrival(), sum);
    }
  }

  const Arguments& p_;
  const Share& share_;
  const Shared& shared_;
  int slots_, lane_;
  TileSource<kFormat, kScales, kBytes> source_;
  uint32_t ring_;
};

// A warp that multiplies.
template <WeightFormat kFormat, int kScales, int kBytes>
__device__ inline void multiply_tiles(const Arguments& p, const Share& share, const Shared& shared, int slots,
                                      int warp) {
  using R = TileRing<kFormat, kScales, kBytes>;
  using F = typename R::F;
  const int lane = lane_number();
  const int warps = p.cut.warps;
  const int bits = column_bits(p.product.tokens);
  const int slot_bytes = R::slot_bytes(warps);
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  const int own_sums = warp * R::kWarpCodes + 4 * F::Sums::first(lane, bits);
  uint8_t* filled = shared.ring;
  uint32_t barrier = shared.filled(0);
  uint32_t parity = 0;
  await_previous();
  let_next_start();  // as in dense_few_rows.cu
  for (int pass = 0; pass < p.cut.passes; ++pass) {
    const int first = share.first_unit + pass * kWarpUnits * warps;
    const int unit = first + warp * kWarpUnits;
    uint2 inputs[kWarpUnits * kUnitProducts];
    gather_inputs<F>(p.product, lane, unit, share.end_unit - unit, inputs);
    typename F::Offsets offsets;
    F::prepare(inputs, offsets);
    if (pass == 0) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    const TileReader<kFormat, kScales, kBytes> reader(p, warp, lane, first, unit);
#pragma unroll 1
    for (int tile = 0; tile < share.tiles; ++tile) {
      await_turn(barrier, parity);
      typename F::Step units[kWarpUnits];
#pragma unroll
      for (int i = 0; i < kWarpUnits; ++i) reader.read(filled, i, units[i]);
      typename F::Sums sums;
      multiply_tile<kFormat, kScales, kBytes>(p, units, inputs, offsets, sums);
      __syncwarp();  // all lanes have read the codes
      sums.store(lane, bits, reinterpret_cast<float*>(filled + own_sums));
      __syncwarp();
      if (lane == 0) arrive(barrier + 8);
      filled += slot_bytes;
      barrier += kSlotBarrierBytes;
      if (barrier == shared.filled(slots)) {
        filled = shared.ring;
        barrier = shared.filled(0);
        parity ^= 1;
      }
    }
  }
}

template <WeightFormat kFormat, int kScales, int kBytes>
__global__ void __launch_bounds__(32 * (kMostWarps + 1), 2) tiles_kernel(const __grid_constant__ Group group) {
  using R = TileRing<kFormat, kScales, kBytes>;
  const int cluster_index = static_cast<int>(blockIdx.x) >> group.products[0].cut.split_bits;
  int which = 0;
  while (which + 1 < group.count && cluster_index >= group.products[which + 1].first_cluster) ++which;
  const Arguments& p = group.products[which];
  const int warp =
      __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the same in all lanes
  const bool fills = warp == p.cut.warps;
  if (!fills) meet_all();
  const Share share = share_of(p, cluster_index);
  extern __shared__ __align__(128) uint8_t memory[];
  Shared shared;
  shared.barriers = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  shared.ring = memory + kRingBarriers;
  shared.arrived = reinterpret_cast<float4*>(shared.ring + group.slots * R::slot_bytes(p.cut.warps));
  shared.sums = shared.arrived + (arrived_tiles(p.cut) * kTileRows / 4 << column_bits(p.product.tokens));
  if (fills) {
    Filler<kFormat, kScales, kBytes> filler(p, share, shared, group.slots);
    filler.begin();
    filler.serve();
  } else {
    multiply_tiles<kFormat, kScales, kBytes>(p, share, shared, group.slots, warp);
  }
  finish_tiles(p, share, shared.arrival(), reinterpret_cast<const float*>(shared.arrived), R::F::kUnit);
}

template <WeightFormat kFormat, int kScales, int kBytes>
void launch_format(const Context& context, Group group) {
  const Cut& cut = group.products[0].cut;
  const int64_t tokens = group.products[0].product.tokens;
  const int slot_bytes = TileRing<kFormat, kScales, kBytes>::slot_bytes(cut.warps);
  const int blocks = 2 * (kMostWarps + 1) / (cut.warps + 1);  // of a multiprocessor
  const SharedBounds bounds(blocks);
  // Few slots rather than many waves; and of eight columns fewer, as the inputs are longer on their way.
  int tiles = 0;
  for (int i = 0; i < group.count; ++i) tiles += group.products[i].cut.tiles;
  const int each = ceil_div(int64_t{tiles} * cut.splits, int64_t{context.multiprocessors} * blocks);
  const int sums = sums_bytes(cut, std::clamp(each, kUsualTiles, kMostTiles), tokens);
  group.slots = tokens > 4 ? kMostSlots - 1 : kMostSlots;
  while (group.slots > 2 && kRingBarriers + group.slots * slot_bytes + sums > bounds.most) --group.slots;
  launch_few(context, tiles_kernel<kFormat, kScales, kBytes>, group, cut.warps + 1,
             kRingBarriers + group.slots * slot_bytes, bounds);
}

void launch_nvfp4(const Context& context, const Group& group) {
  switch (column_bits(group.products[0].product.tokens)) {
    case 0:
      return launch_format<WeightFormat::kNvfp4, 0, 2>(context, group);
    case 1:
      return launch_format<WeightFormat::kNvfp4, 1, 2>(context, group);
    case 2:
      return launch_format<WeightFormat::kNvfp4, 2, 2>(context, group);
    default:
      return launch_format<WeightFormat::kNvfp4, 3, 2>(context, group);
  }
}

template <WeightFormat kFormat, int kScales>
void launch_with_scales(const Context& context, const Group& group) {
  if (group.products[0].product.w.scale_type == ScaleType::kF32) {
    launch_format<kFormat, kScales, 4>(context, group);
  } else {
    launch_format<kFormat, kScales, 2>(context, group);
  }
}

template <WeightFormat kFormat>
void launch_groups(const Context& context, const Group& group) {
  if (group.products[0].product.w.group >= kUnit) {
    launch_with_scales<kFormat, 1>(context, group);
  } else {
    launch_with_scales<kFormat, 4>(context, group);
  }
}

}  // namespace

void launch_tiles(const Context& context, const Group& group) {
  switch (group.products[0].product.w.format) {
    case WeightFormat::kNvfp4:
      return launch_nvfp4(context, group);
    case WeightFormat::kInt3:
      return launch_groups<WeightFormat::kInt3>(context, group);
    case WeightFormat::kInt4:
      return launch_groups<WeightFormat::kInt4>(context, group);
    default:
      return;
  }
}

}  // namespace tandem::ops::cuda::dense
