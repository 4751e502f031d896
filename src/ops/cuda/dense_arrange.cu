// Brings matrices into the order in which products of few columns read them.
#include "numeric/int_lanes.h"
#include "numeric/nvfp4_lanes.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_decode.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 128;

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

// A unit a thread.
template <typename Arrange>
__global__ void __launch_bounds__(kThreads) arrange_kernel(uint4* units, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  constexpr int kFours = Arrange::kWords / 4;
  Unit<Arrange::kWords> from;
  Unit<Arrange::kWords> to;
#pragma unroll
  for (int j = 0; j < kFours; ++j) from.fours[j] = units[kFours * i + j];
#pragma unroll
  for (int j = 0; j < Arrange::kWords; ++j) to.words[j] = 0;
#pragma unroll
  for (int j = 0; j < numeric::kLaneUnitInputs; ++j) Arrange::put(to.words, from.words, j);
#pragma unroll
  for (int j = 0; j < kFours; ++j) units[kFours * i + j] = to.fours[j];
}

}  // namespace

bool can_arrange(const Weight& w) {
  const bool known =
      w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kInt4 || w.format == WeightFormat::kInt3;
  return known && !w.lane_order && w.inputs % numeric::kLaneUnitInputs == 0 && dense::aligned_to(w.data, 16);
}

void arrange(const Context& context, const Weight& w) {
  const int64_t units = w.rows * w.inputs / numeric::kLaneUnitInputs;
  if (units == 0) return;
  // The memory is the caller's, as the interface says.
  auto* data = static_cast<uint4*>(const_cast<void*>(w.data));
  const auto kernel = w.format == WeightFormat::kNvfp4  ? arrange_kernel<ArrangeNvfp4>
                      : w.format == WeightFormat::kInt4 ? arrange_kernel<ArrangeInts<4>>
                                                        : arrange_kernel<ArrangeInts<3>>;
  kernel<<<static_cast<unsigned>((units + kThreads - 1) / kThreads), kThreads, 0, context.stream>>>(data, units);
  TANDEM_CUDA_LAUNCHED("arrange");
}

}  // namespace tandem::ops::cuda
