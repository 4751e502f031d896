// Brings matrices into the order in which products of few columns read them.
#include "numeric/nvfp4_lanes.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_decode.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 128;

// A unit of 128 inputs a thread.
__global__ void __launch_bounds__(kThreads) arrange_kernel(uint4* units, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  union Unit {
    uint4 fours[4];
    uint32_t words[numeric::kLaneUnitWords];
  };
  Unit from;
  Unit to;
#pragma unroll
  for (int j = 0; j < 4; ++j) from.fours[j] = units[4 * i + j];
#pragma unroll
  for (int j = 0; j < numeric::kLaneUnitWords; ++j) to.words[j] = 0;
#pragma unroll
  for (int j = 0; j < numeric::kLaneUnitInputs; ++j) {
    numeric::put_lane_code(to.words, j, from.words[j / 8] >> j % 8 * 4 & 15);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) units[4 * i + j] = to.fours[j];
}

}  // namespace

bool can_arrange(const Weight& w) {
  return w.format == WeightFormat::kNvfp4 && !w.lane_order && w.inputs % numeric::kLaneUnitInputs == 0 &&
         dense::aligned_to(w.data, 16);
}

void arrange(const Context& context, const Weight& w) {
  const int64_t units = w.rows * w.inputs / numeric::kLaneUnitInputs;
  if (units == 0) return;
  // The memory is the caller's, as the interface says.
  auto* data = static_cast<uint4*>(const_cast<void*>(w.data));
  arrange_kernel<<<static_cast<unsigned>((units + kThreads - 1) / kThreads), kThreads, 0, context.stream>>>(data,
                                                                                                            units);
  TANDEM_CUDA_LAUNCHED("arrange");
}

}  // namespace tandem::ops::cuda
