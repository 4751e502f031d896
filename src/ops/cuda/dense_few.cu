// Products of at most eight columns with BF16 inputs: bound by reading the weights once.
//
// Work is cut three ways. A cluster of `splits` blocks has the same rows, each block a part of the inputs; a block's
// warps have two units of 128 inputs each (several times over where the inputs are very many); a warp goes over the
// block's rows in tiles of 16. So the inputs of all columns, rounded to BF16, stay in a warp's registers in the order
// of the tensor cores' operand, and what a warp does again and again is: fetching codes into its ring of shared memory,
// two slots ahead (dense_few_ring.cuh); decoding; 16 products of 16 rows x 8 columns x 16 inputs. Warps' sums meet in
// shared memory, blocks' sums through the cluster's; both are added in order of the inputs (dense_few_sums.cuh).
//
// Cost: bytes at the card's rate of reading, where instructions do not bound it: a warp has about 300 for a tile (of
// eight columns of NVFP4 400), half of which decode its 128 weights a lane of NVFP4, three or four bits; the first
// slots are fetched while the kernels before end. 20 warps of a multiprocessor leave 96 registers to a lane, and what
// does not fit there is fetched back from memory in every tile: lane-dependent values are made anew where that is
// cheap.
//
// The cuts follow from rows and inputs alone, and missing columns are zeros: a column's bits do not depend on the
// number of columns.
#include <algorithm>
#include <array>
#include <bit>
#include <cooperative_groups.h>
#include <map>
#include <mutex>

#include "ops/cuda/dense_few_ring.cuh"
#include "ops/cuda/dense_few_sums.cuh"
#include "ops/cuda/dense_paths.h"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda::dense {

namespace {

__device__ inline float4 load_inputs(const float* from) {  // which an earlier kernel wrote
  float4 out;
  asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "l"(from)
               : "memory");
  return out;
}

// The inputs of a warp's units, all columns, as operands of the tensor cores: lane 4 g + l has those of column g, or,
// where columns have slots, of slot g / columns of column g % columns; zeros for the products of other slots.
template <typename F>
__device__ inline void gather_inputs(const Product& p, int lane, int unit, int units,
                                     uint2 (&inputs)[kWarpUnits * kUnitProducts]) {
  constexpr int kColumns = 8 / F::kSlots;
  constexpr int kOwn = kUnitProducts / F::kSlots;  // products of a unit that the lane has inputs for
  const int column = lane / 4 % kColumns;
  const int slot = lane / 4 / kColumns;
  float4 loaded[kWarpUnits][kOwn] = {};
  if (column < p.tokens) {
    const float* x = p.x + column * p.w.inputs + static_cast<int64_t>(unit) * kUnit + F::input(lane % 4, 0, 0);
    if constexpr (F::kSlots > 1) x += slot * (kUnit / F::kSlots);
#pragma unroll
    for (int i = 0; i < kWarpUnits; ++i) {
      if (i >= units) break;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) loaded[i][j] = load_inputs(x + (i * kUnit + F::input(0, j / 2, j % 2)));
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpUnits; ++i) {
    uint2 own[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) own[j] = F::pack(loaded[i][j], j);
#pragma unroll
    for (int j = 0; j < kUnitProducts; ++j) {
      uint2& to = inputs[i * kUnitProducts + j];
      to = own[j % kOwn];
      if constexpr (F::kSlots > 1) {
        if (j / kOwn != slot) to = make_uint2(0, 0);
        asm volatile("" : "+r"(to.x), "+r"(to.y));  // chosen here, not again and again where it is used
      }
    }
  }
}

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

// Asks for the first slots of a warp.
template <WeightFormat kFormat, int kScales, int kBytes>
__device__ inline void copy_ahead(const Arguments& p, const Share& share, int lane, int unit, int units,
                                  uint32_t ring_address) {
  using R = Ring<kFormat, kScales, kBytes>;
  static_assert(kRingSlots == 3);
  Source<kFormat, kScales, kBytes> source(p, share, lane, unit, units);
  source.copy(0, ring_address);
  commit_copies();
  if constexpr (R::kTileSlots == 1) source.go_to(1);
  source.copy(1 % R::kTileSlots, ring_address + R::kSlotBytes);
  commit_copies();
}

template <WeightFormat kFormat, int kScales, int kBytes>
__global__ void __launch_bounds__(32 * kMostWarps, 2) few_columns(const __grid_constant__ Group group) {
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
  Meeting<kFormat == WeightFormat::kNvfp4 ? kScales : -1> meeting(
      p, share, warp, lane, behind, arrived, arrived + (arrived_tiles(p.cut) * kTileRows / 4 << bits));
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
    if constexpr (R::kTileSlots == 1) source.go_to(1);
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
            row = share.first_row + tile / (p.product.paired ? 2 : 1) * kTileRows;
          }
          read_part<kFormat, kScales, kBytes>(p, lane, filled, slot, part, row, unit, step);
          multiply_part<kFormat, kScales, kBytes>(p, lane, slot * 2 + part, step, inputs, offsets, sums_of_tile);
        }
      }
      sums_of_tile.store(lane, bits, meeting.place_of(tile));
      meeting.leave(tile);
    }
    meeting.end_pass();
  }
  finish_tiles(p, share, meeting, reinterpret_cast<const float*>(arrived), F::kUnit);
}

int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

// From the shape alone; how many tiles a cluster takes comes later, and no sum depends on it.
Cut cut_of(const Weight& w) {
  constexpr int kMostSplits = 8;  // blocks of a cluster on every card
  constexpr int kBlockUnits = kMostWarps * kWarpUnits;
  constexpr int kEnoughBlocks = 264;
  Cut cut;
  cut.units = static_cast<int>(w.inputs / kUnit);
  cut.lower_units = ceil_div(cut.units, 2);
  cut.tiles = ceil_div(w.rows, kTileRows);
  while (cut.splits < kMostSplits) {
    const int each = ceil_div(cut.lower_units, cut.splits / 2);
    const bool too_few = static_cast<int64_t>(cut.tiles) * cut.splits < kEnoughBlocks && each > kWarpUnits;
    if (each <= kBlockUnits && !too_few) break;
    cut.splits *= 2;
  }
  cut.split_bits = std::countr_zero(static_cast<unsigned>(cut.splits));
  cut.units_each = ceil_div(cut.lower_units, cut.splits / 2);
  cut.passes = ceil_div(cut.units_each, kBlockUnits);
  cut.warps = ceil_div(ceil_div(cut.units_each, cut.passes), kWarpUnits);
  return cut;
}

// All clusters' blocks should be on the card at once, else in as few waves as do, with as equally many tiles as can be.
// A cluster's tiles are of one product, and a pair's rows stay together. Returns how many clusters there are.
int share_tiles(Group& group, int clusters, int most) {
  const int tile = group.products[0].product.paired ? 2 : 1;
  most /= tile;
  int tiles = 0;
  for (int i = 0; i < group.count; ++i) tiles += group.products[i].cut.tiles / tile;
  clusters *= ceil_div(tiles, int64_t{clusters} * most);
  int taken[kMostProducts] = {};
  const auto take = [&](int each) {
    int sum = 0;
    for (int i = 0; i < group.count; ++i) sum += taken[i] = ceil_div(group.products[i].cut.tiles / tile, each);
    return sum;
  };
  int each = ceil_div(tiles, clusters);
  while (take(each) > clusters && each < most) ++each;
  const int left = std::max(0, clusters - take(each));
  int first = 0;
  int largest = 0;
  for (int i = 0; i < group.count; ++i) {
    Arguments& p = group.products[i];
    const int own = p.cut.tiles / tile;
    const int count = std::min(own, taken[i] + (group.count == 1 ? left : 0));
    p.first_cluster = first;
    if (count == 0) continue;
    p.cut.least = own / count;
    p.cut.larger = own % count;
    first += count;
    largest = std::max(largest, ceil_div(own, count) * tile);
  }
  for (int i = 0; i < group.count; ++i) group.products[i].cut.tiles_each = largest;
  return first;
}

// How many clusters a card holds at once, of each kernel and size: asked once.
int resident_clusters(const void* kernel, const cudaLaunchConfig_t& config) {
  static std::mutex mutex;
  static std::map<std::array<uint64_t, 5>, int> known;
  const std::scoped_lock lock(mutex);
  int device = 0;
  TANDEM_CUDA_CHECK(cudaGetDevice(&device));
  const auto [entry, fresh] =
      known.try_emplace({reinterpret_cast<uint64_t>(kernel), config.blockDim.x, config.attrs->val.clusterDim.x,
                         config.dynamicSmemBytes, static_cast<uint64_t>(device)},
                        0);
  if (fresh) TANDEM_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&entry->second, kernel, &config));
  return entry->second < 1 ? 1 : entry->second;
}

int shared_bytes(const Cut& cut, int slot_bytes, int64_t tokens) {
  const int tiles = arrived_tiles(cut) + (cut.passes > 1 ? cut.tiles_each : 0);
  return cut.warps * kRingSlots * slot_bytes + meeting_bytes(cut.warps) +
         (tiles * kTileRows * static_cast<int>(sizeof(float)) << column_bits(tokens));
}

// So that two blocks fit on a multiprocessor, where more than one does.
int most_shared_of_block() {
  constexpr int kEveryCards = 99 * 1024;
  constexpr int kReserved = 1024;  // of each block
  int device = 0;
  int bytes = 0;
  TANDEM_CUDA_CHECK(cudaGetDevice(&device));
  TANDEM_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  return std::max(kEveryCards, bytes / 2 - kReserved);
}

template <WeightFormat kFormat, int kScales, int kBytes>
void launch_few(const Context& context, Group group) {
  constexpr int kSlotBytes = Ring<kFormat, kScales, kBytes>::kSlotBytes;
  const auto kernel = few_columns<kFormat, kScales, kBytes>;
  const Cut& cut = group.products[0].cut;  // products of a launch differ in their tiles alone
  const auto shared = [&](int tiles) {
    Cut with = cut;
    with.tiles_each = tiles;
    return shared_bytes(with, kSlotBytes, group.products[0].product.tokens);
  };
  const int most_shared = most_shared_of_block();
  int most_tiles = kMostTiles;
  while (most_tiles > 2 && shared(most_tiles) > most_shared) most_tiles -= 2;
  allow_shared(kernel, most_shared);
  const dim3 cluster(static_cast<unsigned>(cut.splits));
  const dim3 block(static_cast<unsigned>(32 * cut.warps));
  cudaLaunchAttribute clusters_of = {};
  clusters_of.id = cudaLaunchAttributeClusterDimension;
  clusters_of.val.clusterDim = {cluster.x, 1, 1};
  cudaLaunchConfig_t one = {};
  one.gridDim = cluster;
  one.blockDim = block;
  one.dynamicSmemBytes = static_cast<size_t>(shared(std::min(most_tiles, kUsualTiles)));
  one.attrs = &clusters_of;
  one.numAttrs = 1;
  const int clusters = share_tiles(group, resident_clusters(reinterpret_cast<const void*>(kernel), one), most_tiles);
  const dim3 grid(static_cast<unsigned>(clusters * cut.splits));
  launch_following_clusters(context, cluster, kernel, grid, block, static_cast<size_t>(shared(cut.tiles_each)), group);
}

template <WeightFormat kFormat, int kScales>
void launch_with_scales(const Context& context, const Group& group) {
  if (group.products[0].product.w.scale_type == ScaleType::kF32) {
    launch_few<kFormat, kScales, 4>(context, group);
  } else {
    launch_few<kFormat, kScales, 2>(context, group);
  }
}

void launch_nvfp4(const Context& context, const Group& group) {
  switch (column_bits(group.products[0].product.tokens)) {
    case 0:
      return launch_few<WeightFormat::kNvfp4, 0, 2>(context, group);
    case 1:
      return launch_few<WeightFormat::kNvfp4, 1, 2>(context, group);
    case 2:
      return launch_few<WeightFormat::kNvfp4, 2, 2>(context, group);
    default:
      return launch_few<WeightFormat::kNvfp4, 3, 2>(context, group);
  }
}

int log2_of(int64_t power) {
  int log = 0;
  while (power > 1) {
    power /= 2;
    ++log;
  }
  return log;
}

template <WeightFormat kFormat>
void launch_groups(const Context& context, const Group& group) {
  if (group.products[0].product.w.group >= kUnit) {
    launch_with_scales<kFormat, 1>(context, group);
  } else {
    launch_with_scales<kFormat, 4>(context, group);
  }
}

// Where the rows of codes and scales lie.
void place_rows(Arguments& p) {
  const Weight& w = p.product.w;
  const int scale = w.scale_type == ScaleType::kF32 ? 4 : 2;
  const auto bytes = [](int64_t count) { return static_cast<uint32_t>(count); };
  switch (w.format) {
    case WeightFormat::kBF16:
      p.row_bytes = bytes(2 * w.inputs);
      break;
    case WeightFormat::kFp8Block:
      p.row_bytes = bytes(w.inputs);
      p.row_scales = bytes(w.inputs / kUnit * scale);
      break;
    case WeightFormat::kNvfp4:
      p.row_bytes = bytes(w.inputs / 2);
      p.row_scales = bytes(w.inputs / 16);
      break;
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
      p.row_bytes = bytes(w.format == WeightFormat::kInt3 ? w.inputs / 8 * 3 : w.inputs / 2);
      p.row_scales = bytes(w.inputs / w.group * scale);
      p.group_shift = log2_of(w.group >= kUnit ? w.group / kUnit : w.group / 32);
      break;
    case WeightFormat::kInt8:
      p.row_bytes = bytes(w.inputs);
      p.row_scales = bytes(w.inputs / w.group * scale);
      p.group_shift = log2_of(w.group / 64);
      break;
    default:
      p.row_bytes = bytes(w.inputs);
      break;
  }
}

// From a tile to the next: 16 rows on, or to the other matrix of a pair and back.
void place_steps(Arguments& p) {
  const Weight& w = p.product.w;
  const int64_t codes = int64_t{kTileRows} * p.row_bytes;
  const int64_t scales = w.format == WeightFormat::kFp8Block ? 0 : int64_t{kTileRows} * p.row_scales;
  const auto between = [](const void* from, const void* to) {
    return from == nullptr ? 0 : static_cast<const uint8_t*>(to) - static_cast<const uint8_t*>(from);
  };
  const int64_t to_codes = p.product.paired ? between(w.data, p.product.up.data) : codes;
  const int64_t to_scales = p.product.paired ? between(w.scales, p.product.up.scales) : scales;
  p.code_steps[0] = to_codes;
  p.code_steps[1] = p.product.paired ? codes - to_codes : codes;
  p.scale_steps[0] = to_scales;
  p.scale_steps[1] = p.product.paired ? scales - to_scales : scales;
}

// Groups are counted by shifts.
bool group_serves(int64_t group, int64_t least) {
  return group >= least && (group & (group - 1)) == 0;
}

}  // namespace

bool few_columns_serve(const Product& p) {
  const Weight& w = p.w;
  if (w.inputs % kUnit != 0 || w.inputs > int64_t{kUnit} << 24 || w.rows > int64_t{1} << 30) return false;
  if ((p.upper != nullptr || p.add_halves) && w.inputs % (2 * kUnit) != 0) return false;
  if (!aligned_to(w.data, 16) || !aligned_to(p.x, 16)) return false;
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
      return false;
    case WeightFormat::kNvfp4:
      return w.lane_order && aligned_to(w.scales, 8);
    case WeightFormat::kFp8Block:
      return aligned_to(w.scales, 4);
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
      return w.lane_order && aligned_to(w.scales, 4) && group_serves(w.group, 32);
    case WeightFormat::kInt8:
      return aligned_to(w.scales, 4) && group_serves(w.group, 64);
    default:
      return true;
  }
}

bool few_columns_share(std::span<const Product> products) {
  if (products.size() > kMostProducts) return false;
  const Weight& first = products[0].w;
  return std::all_of(products.begin(), products.end(), [&](const Product& product) {
    const Weight& w = product.w;
    return few_columns_serve(product) && w.format == first.format && w.inputs == first.inputs &&
           w.group == first.group && w.scale_type == first.scale_type;
  });
}

void few_columns_linear(const Context& context, std::span<const Product> products) {
  if (context.plans()) return;
  Group group;
  group.count = static_cast<int>(products.size());
  // All are cut as the largest is.
  const auto largest = std::max_element(products.begin(), products.end(),
                                        [](const Product& a, const Product& b) { return a.w.rows < b.w.rows; });
  const Cut cut = cut_of(largest->w);
  for (size_t i = 0; i < products.size(); ++i) {
    Arguments& p = group.products[i];
    p.product = products[i];
    p.cut = cut;
    p.cut.tiles = ceil_div(p.product.w.rows, kTileRows) * (p.product.paired ? 2 : 1);
    place_rows(p);
    place_steps(p);
  }
  switch (products[0].w.format) {
    case WeightFormat::kBF16:
      return launch_few<WeightFormat::kBF16, 0, 2>(context, group);
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp8Tensor:
      return launch_few<WeightFormat::kFp8Row, 0, 2>(context, group);
    case WeightFormat::kFp8Block:
      return launch_with_scales<WeightFormat::kFp8Block, 1>(context, group);
    case WeightFormat::kNvfp4:
      return launch_nvfp4(context, group);
    case WeightFormat::kInt3:
      return launch_groups<WeightFormat::kInt3>(context, group);
    case WeightFormat::kInt4:
      return launch_groups<WeightFormat::kInt4>(context, group);
    case WeightFormat::kInt8:
      return launch_with_scales<WeightFormat::kInt8, 1>(context, group);
    default:
      return;
  }
}

}  // namespace tandem::ops::cuda::dense
