// Down of the shared expert, which the blocks of NVFP4 experts for few columns compute while they wait for each other
// between up and down (experts_few.cu). Eight lanes share a half of a row.
#pragma once

#include "ops/cuda/experts_few.cuh"

namespace tandem::ops::cuda::expert {

inline constexpr int kSharedLanes = 8;
inline constexpr int kSharedSteps = 5;  // of eight inputs a lane
inline constexpr int kMostSharedInputs = 2 * kSharedSteps * kSharedLanes * 8;

// Into the second-level cache, before anything else is there to be read: the block's rows of down, and what all blocks
// need of the experts' scalars.
__device__ inline void expect_around(const FewArgs& a, Share rows) {
  if (a.around.logits != nullptr && threadIdx.x == 0 && rows.at < rows.end) {
    const int bytes = (rows.end - rows.at) * a.around.inputs * 2;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.around.down +
                                                                    static_cast<int64_t>(rows.at) * a.around.inputs),
                 "r"(bytes));
  }
  constexpr int kLine = 32;  // floats
  const auto scalars = static_cast<int>(a.args.table.experts * a.args.table.scalars_each);
  if (threadIdx.x != 32) return;
  for (int i = static_cast<int>(blockIdx.x) * kLine; i < scalars; i += static_cast<int>(gridDim.x) * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.args.table.scalars + i));
  }
}

struct SharedWeights {
  uint4 eight[kSharedSteps];
};
// `task` is a half of a row of the block's.
__device__ inline SharedWeights load_shared(const Around& around, Share rows, int task) {
  SharedWeights out;
  const int middle = around.inputs / 2;
  const int lane = static_cast<int>(threadIdx.x) % kSharedLanes;
  const bool here = task < 2 * (rows.end - rows.at);
  const uint16_t* from =
      around.down + static_cast<int64_t>(rows.at + task / 2) * around.inputs + task % 2 * middle + lane * 8;
#pragma unroll
  for (int step = 0; step < kSharedSteps; ++step) {
    const int at = step * kSharedLanes * 8;
    out.eight[step] =
        here && at + lane * 8 < middle ? __ldg(reinterpret_cast<const uint4*>(from + at)) : uint4{0, 0, 0, 0};
  }
  return out;
}
__device__ inline float add_two(uint32_t w, float first, float second, float sum) {
  sum = fmaf(__uint_as_float(w << 16), first, sum);
  return fmaf(__uint_as_float(w & 0xffff0000U), second, sum);
}
// The sum of a half of a row and a column, in all of its lanes; `x` are the half's inputs.
__device__ inline float sum_shared(const SharedWeights& w, const float* x, int middle) {
  const int lane = static_cast<int>(threadIdx.x) % kSharedLanes;
  float sum = 0;
#pragma unroll
  for (int step = 0; step < kSharedSteps; ++step) {
    const int at = (step * kSharedLanes + lane) * 8;
    if (at >= middle) break;
    const float4 low = load4(x + at);
    const float4 high = load4(x + at + 4);
    sum = add_two(w.eight[step].x, low.x, low.y, sum);
    sum = add_two(w.eight[step].y, low.z, low.w, sum);
    sum = add_two(w.eight[step].z, high.x, high.y, sum);
    sum = add_two(w.eight[step].w, high.z, high.w, sum);
  }
#pragma unroll
  for (int distance = kSharedLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  }
  return sum;
}

// The block's rows of down. `columns` has room for all inputs as floats.
__device__ inline void multiply_shared(const FewArgs& a, Share rows, float* columns) {
  const Around& around = a.around;
  const auto tokens = static_cast<int>(a.args.tokens);
  const int middle = around.inputs / 2;
  const int tasks = static_cast<int>(blockDim.x) / kSharedLanes;
  const int lane = static_cast<int>(threadIdx.x) % kSharedLanes;
  int task = static_cast<int>(threadIdx.x) / kSharedLanes;
  SharedWeights w = load_shared(around, rows, task);
  for (int i = static_cast<int>(threadIdx.x); i < tokens * around.inputs / 4; i += static_cast<int>(blockDim.x)) {
    float4 x = __ldcg(reinterpret_cast<const float4*>(around.inner) + i);
    if (around.round) x = rounded_to_bf16(x);
    store4(columns + 4 * i, x);
  }
  __syncthreads();
  // A warp's lanes go together.
  const int last = 2 * (rows.end - rows.at);
  for (int first = task - task % (32 / kSharedLanes); first < last; first += tasks, task += tasks) {
    for (int token = 0; token < tokens; ++token) {
      const float sum = sum_shared(w, columns + token * around.inputs + task % 2 * middle, middle);
      if (task >= last || lane != token % kSharedLanes) continue;
      float* to = task % 2 == 0 ? around.lower : around.upper;
      to[token * a.args.table.hidden + rows.at + task / 2] = sum;
    }
    if (first + tasks < last) w = load_shared(around, rows, task + tasks);
  }
}

}  // namespace tandem::ops::cuda::expert
