// Brings matrices into the order in which products of few columns read them.
#include "numeric/int_lanes.h"
#include "numeric/lane_tiles.h"
#include "numeric/nvfp4_lanes.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_decode.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kMostEach = 3;  // units of a thread
constexpr int64_t kMostInputs = int64_t{kMostEach} * kThreads / numeric::kLaneTileRows * numeric::kLaneUnitInputs;
constexpr int kLeastGroup = 32;
constexpr int kMostGroups = kMostEach * numeric::kLaneUnitInputs / kLeastGroup;  // of a thread

// A unit of 128 inputs, of kWords words.
template <int kWords>
union Unit {
  uint4 fours[kWords / 4];
  uint32_t words[kWords];
};

struct ArrangeNvfp4 {
  static constexpr int kWords = numeric::kLaneUnitWords;
  __device__ static void put(uint32_t* to, const uint32_t* from, int input) {
    numeric::put_lane_code(to, input, from[input / 8] >> input % 8 * 4 & 15);
  }
};
template <int kBits>
struct ArrangeInts {
  static constexpr int kWords = numeric::kIntLaneWords<kBits>;
  __device__ static void put(uint32_t* to, const uint32_t* from, int input) {
    numeric::put_int_lane_code<kBits>(to, input, numeric::int_stored_code<kBits>(from, input));
  }
};

// A block has 16 rows in its threads' registers: all is read before anything is written.
template <typename Arrange>
__global__ void __launch_bounds__(kThreads) arrange_codes(uint4* codes, int64_t units) {
  constexpr int kFours = Arrange::kWords / 4;
  const int64_t count = units * numeric::kLaneTileRows;
  codes += blockIdx.x * count * kFours;
  Unit<Arrange::kWords> to[kMostEach];
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int64_t unit = threadIdx.x + i * int64_t{kThreads};
    if (unit >= count) break;
    Unit<Arrange::kWords> from;
#pragma unroll
    for (int j = 0; j < kFours; ++j) from.fours[j] = codes[unit * kFours + j];
#pragma unroll
    for (int j = 0; j < Arrange::kWords; ++j) to[i].words[j] = 0;
#pragma unroll
    for (int j = 0; j < numeric::kLaneUnitInputs; ++j) Arrange::put(to[i].words, from.words, j);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int64_t unit = threadIdx.x + i * int64_t{kThreads};
    if (unit >= count) break;
    const int64_t place = numeric::lane_tile_place(unit / units, unit % units, units);
#pragma unroll
    for (int j = 0; j < kFours; ++j) codes[place * kFours + j] = to[i].fours[j];
  }
}

// The scales of units or groups, likewise; kMost of a thread at most.
template <typename T, int kMost>
__global__ void __launch_bounds__(kThreads) arrange_scales(T* scales, int64_t groups) {
  const int64_t count = groups * numeric::kLaneTileRows;
  scales += blockIdx.x * count;
  T own[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t from = threadIdx.x + i * int64_t{kThreads};
    if (from < count) own[i] = scales[from];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t from = threadIdx.x + i * int64_t{kThreads};
    if (from < count) scales[numeric::lane_tile_place(from / groups, from % groups, groups)] = own[i];
  }
}

}  // namespace

bool can_arrange(const Weight& w) {
  const bool ints = w.format == WeightFormat::kInt4 || w.format == WeightFormat::kInt3;
  const bool known = w.format == WeightFormat::kNvfp4 || (ints && w.group >= kLeastGroup);
  return known && !w.lane_order && w.rows % numeric::kLaneTileRows == 0 && w.inputs <= kMostInputs &&
         w.inputs % numeric::kLaneUnitInputs == 0 && dense::aligned_to(w.data, 16) && dense::aligned_to(w.scales, 16);
}

void arrange(const Context& context, const Weight& w) {
  const auto tiles = static_cast<unsigned>(w.rows / numeric::kLaneTileRows);
  const int64_t units = w.inputs / numeric::kLaneUnitInputs;
  if (tiles == 0 || units == 0) return;
  // The memory is the caller's, as the interface says.
  auto* codes = static_cast<uint4*>(const_cast<void*>(w.data));
  auto* scales = const_cast<void*>(w.scales);
  const auto launch = [&]<typename T>(void (*kernel)(T*, int64_t), void* data, int64_t count) {
    kernel<<<tiles, kThreads, 0, context.stream>>>(static_cast<T*>(data), count);
    TANDEM_CUDA_LAUNCHED("arrange");
  };
  if (w.format == WeightFormat::kNvfp4) {
    launch(arrange_codes<ArrangeNvfp4>, codes, units);
    launch(arrange_scales<uint2, kMostEach>, scales, units);
    return;
  }
  launch(w.format == WeightFormat::kInt4 ? arrange_codes<ArrangeInts<4>> : arrange_codes<ArrangeInts<3>>, codes, units);
  if (w.scale_type == ScaleType::kF32) {
    launch(arrange_scales<uint32_t, kMostGroups>, scales, w.inputs / w.group);
  } else {
    launch(arrange_scales<uint16_t, kMostGroups>, scales, w.inputs / w.group);
  }
}

}  // namespace tandem::ops::cuda
