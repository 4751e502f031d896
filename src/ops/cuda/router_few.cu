// Products of at most eight columns of FP32 inputs with the few rows of the router and of the shared expert's gate:
// 2.6 MB for Flash-Next, bound by latency. A block takes four rows, and holds its part of them in registers before it
// waits for the columns. A thread adds over the inputs 4 i + 1024 j of its place i, the block's threads in a fixed
// tree, so that a column's sums depend on nothing but the inputs' number.
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router_few.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 4;
constexpr int kSteps = 4;  // of 4 * kThreads inputs

struct FewLogits {
  const float* x;
  int tokens;
  int inputs;
  int experts;
  const uint16_t* router;
  const uint16_t* gate;
  float* logits;
  float* gates;
};

__device__ inline float add_products(uint2 w, float4 x, float sum) {
  sum = fmaf(__uint_as_float(w.x << 16), x.x, sum);
  sum = fmaf(__uint_as_float(w.x & 0xffff0000U), x.y, sum);
  sum = fmaf(__uint_as_float(w.y << 16), x.z, sum);
  return fmaf(__uint_as_float(w.y & 0xffff0000U), x.w, sum);
}

// The sum over the warp of each of kCount values, of value lane / (32 / kCount): the tree of warp_sum, of which a lane
// follows one value's branch alone where it can.
template <int kCount, int kDistance = 16>
__device__ inline float sum_of_warp(float (&values)[kCount]) {
  if constexpr (kDistance == 0) {
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(kWholeWarp, values[0], kDistance);
    return sum_of_warp<1, kDistance / 2>(values);
  } else {
    const bool upper = (threadIdx.x & kDistance) != 0;
    float halves[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float given = upper ? values[i] : values[i + kCount / 2];
      halves[i] = (upper ? values[i + kCount / 2] : values[i]) + __shfl_xor_sync(kWholeWarp, given, kDistance);
    }
    return sum_of_warp<kCount / 2, kDistance / 2>(halves);
  }
}

// The last block has the gate. kMost columns at most.
template <int kMost>
__global__ void __launch_bounds__(kThreads) logits_kernel(const FewLogits args) {
  __shared__ float warp_sums[kWarps][kRows * kMost];
  let_next_start();
  const bool gates = blockIdx.x + 1 == gridDim.x;
  const int first_row = gates ? 0 : static_cast<int>(blockIdx.x) * kRows;
  const int last_row = gates ? 0 : args.experts - 1;
  const uint16_t* w = gates ? args.gate : args.router;
  const int first = 4 * static_cast<int>(threadIdx.x);
  uint2 rows[kRows][kSteps];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = first + step * 4 * kThreads;
      const int64_t from = static_cast<int64_t>(min(first_row + r, last_row)) * args.inputs + at;
      rows[r][step] = at < args.inputs ? __ldg(reinterpret_cast<const uint2*>(w + from)) : uint2{0, 0};
    }
  }
  await_previous();
  float sums[kRows * kMost] = {};
  constexpr int kTogether = kMost < 4 ? kMost : 4;  // columns whose loads are under way at once
#pragma unroll
  for (int begin = 0; begin < kMost; begin += kTogether) {
    float4 x[kTogether][kSteps];
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
      const float* column = args.x + static_cast<int64_t>(min(begin + c, args.tokens - 1)) * args.inputs;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int at = first + step * 4 * kThreads;
        x[c][step] = at < args.inputs ? load4(column + at) : float4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int c = 0; c < kTogether; ++c) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float& sum = sums[(begin + c) * kRows + r];
          sum = add_products(rows[r][step], x[c][step], sum);
        }
      }
    }
  }
  constexpr int kLanes = 32 / (kRows * kMost);  // that have one sum
  const float own = sum_of_warp(sums);
  if (threadIdx.x % kLanes == 0) warp_sums[threadIdx.x / 32][threadIdx.x % 32 / kLanes] = own;
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  const int row = first_row + i % kRows;
  const int column = i / kRows;
  if (column >= min(args.tokens, kMost) || row > last_row) return;
  float sum = warp_sums[0][i];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp][i];
  if (gates) {
    args.gates[column] = sum;
  } else {
    args.logits[column * args.experts + row] = sum;
  }
}

}  // namespace

bool takes_few_logits(const float* x, int64_t tokens, const Weight& router, const Weight& gate) {
  const auto fits = [](const Weight& w) {
    return w.format == WeightFormat::kBF16 && w.inputs <= kSteps * 4 * kThreads && w.inputs % 4 == 0 &&
           reinterpret_cast<uintptr_t>(w.data) % 8 == 0;
  };
  return tokens <= kMostFewColumns && fits(router) && fits(gate) && router.inputs == gate.inputs && gate.rows == 1 &&
         reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

void few_logits(const Context& context, const float* x, int64_t tokens, const Weight& router, const Weight& gate,
                float* logits, float* gates) {
  if (context.plans() || tokens == 0) return;
  const FewLogits args{.x = x,
                       .tokens = static_cast<int>(tokens),
                       .inputs = static_cast<int>(router.inputs),
                       .experts = static_cast<int>(router.rows),
                       .router = static_cast<const uint16_t*>(router.data),
                       .gate = static_cast<const uint16_t*>(gate.data),
                       .logits = logits,
                       .gates = gates};
  const dim3 blocks(static_cast<unsigned>(base::ceil_div(router.rows, kRows)) + 1);
  const auto kernel = tokens == 1 ? logits_kernel<1> : tokens <= 4 ? logits_kernel<4> : logits_kernel<8>;
  launch_following(context, kernel, blocks, kThreads, 0, args);
  TANDEM_CUDA_LAUNCHED("router logits");
}

}  // namespace tandem::ops::cuda
