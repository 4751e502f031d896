// Products of few columns (dense_few.cu) with weights whose rows lie one behind the other: BF16, FP8 and integers of
// eight bits. Each warp fetches codes for itself, two slots ahead (dense_few_ring.cuh). 20 warps of a multiprocessor
// leave 96 registers to a lane, and lane-dependent values are made anew where that is cheap.
#include <cooperative_groups.h>

#include "ops/cuda/dense_few_inputs.cuh"
#include "ops/cuda/dense_few_launch.cuh"
#include "ops/cuda/dense_few_meeting.cuh"
#include "ops/cuda/dense_few_ring.cuh"

namespace tandem::ops::cuda::dense {

namespace {

// Asks for the first slots of a warp.
template <WeightFormat kFormat, int kScales, int kBytes>
__device__ inline void copy_ahead(const Arguments& p, const Share& share, int lane, int unit, int units,
                                  uint32_t ring_address) {
  using R = Ring<kFormat, kScales, kBytes>;
  static_assert(kRingSlots == 3 && R::kTileSlots > 1);
  Source<kFormat, kScales, kBytes> source(p, share, lane, unit, units);
  source.copy(0, ring_address);
  commit_copies();
  source.copy(1, ring_address + R::kSlotBytes);
  commit_copies();
}

template <WeightFormat kFormat, int kScales, int kBytes>
__global__ void __launch_bounds__(32 * kMostWarps, 2) rows_kernel(const __grid_constant__ Group group) {
  using R = Ring<kFormat, kScales, kBytes>;
  using F = typename R::F;
  const int cluster_index = static_cast<int>(blockIdx.x) >> group.products[0].cut.split_bits;
  int which = 0;
  while (which + 1 < group.count && cluster_index >= group.products[which + 1].first_cluster) ++which;
  const Arguments& p = group.products[which];
  const int warps = p.cut.warps;
  const int warp =
      __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);  // known to be the same in all lanes
  const int lane = lane_number();
  const Share share = share_of(p, cluster_index);
  extern __shared__ __align__(128) uint8_t shared[];
  uint8_t* ring = shared + warp * (kRingSlots * R::kSlotBytes);
  const int bits = column_bits(p.product.tokens);
  uint8_t* behind = shared + warps * (kRingSlots * R::kSlotBytes);
  auto* arrived = reinterpret_cast<float4*>(behind + meeting_bytes(warps));
  Meeting meeting(p, share, warp, lane, behind, arrived, arrived + (arrived_tiles(p.cut) * kTileRows / 4 << bits));
  if (threadIdx.x == 0) meeting.prepare();
  // All blocks of the cluster are there before one writes to another. Nothing but the barriers was written, which have
  // a fence of their own.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  const auto ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));

  for (int pass = 0; pass < p.cut.passes; ++pass) {
    const int unit = share.first_unit + (pass * warps + warp) * kWarpUnits;
    const int units = share.end_unit - unit;  // this warp has the first two of these
    copy_ahead<kFormat, kScales, kBytes>(p, share, lane, unit, units, ring_address);
    await_previous();  // the first weights are on their way meanwhile
    let_next_start();  // which may read early what this kernel's inputs were made of and from (delta_net.h)
    uint2 inputs[kWarpUnits * kUnitProducts];
    gather_inputs<F>(p.product, lane, unit, units, inputs);
    typename F::Offsets offsets;
    F::prepare(inputs, offsets);
    // Made anew, and of a lane number of its own, so that it does not take registers while the inputs come.
    Source<kFormat, kScales, kBytes> source(p, share, lane_number(), unit, units);
    if (pass == 0) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    meeting.begin_pass(pass);
    int reading = 0;
#pragma unroll 1
    for (int tile = 0; tile < share.tiles; ++tile) {
      typename F::Sums sums_of_tile;
#pragma unroll
      for (int slot = 0; slot < R::kTileSlots; ++slot) {
        await_copies<kRingSlots - 2>();
        __syncwarp();  // all lanes' copies are there, and all have read the slot that is filled now
        const int coming = (slot + kRingSlots - 1) % R::kTileSlots;
        if (coming == 0) source.go_to(tile + (slot + kRingSlots - 1) / R::kTileSlots);
        source.copy(coming, ring_address + (reading == 0 ? (kRingSlots - 1) * R::kSlotBytes : reading - R::kSlotBytes));
        commit_copies();
        const uint8_t* filled = ring + reading;
        reading = reading == (kRingSlots - 1) * R::kSlotBytes ? 0 : reading + R::kSlotBytes;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          typename F::Step step;
          int64_t row = 0;
          if constexpr (kFormat == WeightFormat::kFp8Block) {
            row = share.first_row + (p.product.paired ? tile / 2 : tile) * kTileRows;
          }
          read_part<kFormat, kScales, kBytes>(p, lane, filled, slot, part, row, unit, step);
          multiply_part<kFormat, kScales, kBytes>(p, slot * 2 + part, step, inputs, offsets, sums_of_tile);
        }
      }
      sums_of_tile.store(lane, bits, meeting.place_of(tile) + F::Sums::first(lane, bits));
      meeting.leave(tile);
    }
  }
  finish_tiles(p, share, meeting.arrival(), reinterpret_cast<const float*>(arrived), F::kUnit);
}

template <WeightFormat kFormat, int kScales, int kBytes>
void launch_format(const Context& context, const Group& group) {
  const int warps = group.products[0].cut.warps;
  const int fixed = warps * kRingSlots * Ring<kFormat, kScales, kBytes>::kSlotBytes + meeting_bytes(warps);
  launch_few(context, rows_kernel<kFormat, kScales, kBytes>, group, warps, fixed, SharedBounds(2 * kMostWarps / warps));
}

template <WeightFormat kFormat>
void launch_with_scales(const Context& context, const Group& group) {
  if (group.products[0].product.w.scale_type == ScaleType::kF32) {
    launch_format<kFormat, 1, 4>(context, group);
  } else {
    launch_format<kFormat, 1, 2>(context, group);
  }
}

}  // namespace

void launch_rows(const Context& context, const Group& group) {
  switch (group.products[0].product.w.format) {
    case WeightFormat::kBF16:
      return launch_format<WeightFormat::kBF16, 0, 2>(context, group);
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp8Tensor:
      return launch_format<WeightFormat::kFp8Row, 0, 2>(context, group);
    case WeightFormat::kFp8Block:
      return launch_with_scales<WeightFormat::kFp8Block>(context, group);
    case WeightFormat::kInt8:
      return launch_with_scales<WeightFormat::kInt8>(context, group);
    default:
      return;
  }
}

}  // namespace tandem::ops::cuda::dense
