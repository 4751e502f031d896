// Products of at most eight columns with the few rows of the router and of the shared expert's gate, whose inputs are
// FP32: 2.6 MB for Flash-Next, bound by latency. What reads the same columns joins them: the shared expert's gate and
// up, 6.5 MB. A block takes four rows, and holds its part of them in registers before it waits for the columns. A
// thread adds over the inputs 4 i + 1024 j of its place i, the block's threads in a fixed tree, so that a column's sums
// depend on nothing but the inputs' number.
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router_few.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 4;
constexpr int kMostSteps = 4;  // of 4 * kThreads inputs

struct FewLogits {
  const float* x = nullptr;
  int tokens = 0;
  int inputs = 0;
  int experts = 0;
  const uint16_t* router = nullptr;
  const uint16_t* gate = nullptr;
  float* logits = nullptr;
  float* gates = nullptr;
  // Of the shared expert: silu(gate x) * up x [tokens, inner].
  const uint16_t* inner_gate = nullptr;
  const uint16_t* inner_up = nullptr;
  int inner = 0;  // 0: without it
  bool round = false;
  float* inner_out = nullptr;
  uint4* zeros = nullptr;
  int zero_count = 0;
};

// What a block does: four rows of the router; the shared expert's gate, by itself; or two rows of the gate and of the
// up of the shared expert.
struct Part {
  bool gates, inner;
  int first_row;
  int last_row;  // of the matrix: what lies behind repeats it
  __device__ explicit Part(const FewLogits& args) {
    const auto block = static_cast<int>(blockIdx.x);
    const int routers = (args.experts + kRows - 1) / kRows;
    gates = block == routers;
    inner = block > routers;
    first_row = gates ? 0 : inner ? (block - routers - 1) * (kRows / 2) : block * kRows;
    last_row = (gates ? 1 : inner ? args.inner : args.experts) - 1;
  }
  __device__ const uint16_t* row(const FewLogits& args, int r) const {
    const uint16_t* matrix = gates ? args.gate : !inner ? args.router : r < kRows / 2 ? args.inner_gate : args.inner_up;
    return matrix + static_cast<int64_t>(min(first_row + (inner ? r % (kRows / 2) : r), last_row)) * args.inputs;
  }
};

__device__ inline float add_products(uint2 w, float4 x, float sum) {
  sum = fmaf(__uint_as_float(w.x << 16), x.x, sum);
  sum = fmaf(__uint_as_float(w.x & 0xffff0000U), x.y, sum);
  sum = fmaf(__uint_as_float(w.y << 16), x.z, sum);
  return fmaf(__uint_as_float(w.y & 0xffff0000U), x.w, sum);
}

// Where the sums of the block's rows go; lanes 4 c + r of the first warp have them.
template <int kMost>
__device__ inline void store_rows(const FewLogits& args, const Part& part, float sum) {
  const float up = __shfl_down_sync(kWholeWarp, sum, kRows / 2);
  const int r = static_cast<int>(threadIdx.x) % kRows;
  const int column = static_cast<int>(threadIdx.x) / kRows;
  const int row = part.first_row + r;
  if (column >= min(args.tokens, kMost) || row > part.last_row) return;
  if (part.gates) {
    args.gates[column] = sum;
  } else if (!part.inner) {
    args.logits[column * args.experts + row] = sum;
  } else if (r < kRows / 2) {
    args.inner_out[column * args.inner + row] = silu(sum) * up;
  }
}

// kMost columns and kSteps steps of the inputs at most.
template <int kMost, int kSteps>
__global__ void __launch_bounds__(kThreads, kMost == 1   ? 4
                                            : kMost == 4 ? 3
                                                         : 2) logits_kernel(const FewLogits args) {
  __shared__ float warp_sums[kWarps][kRows * kMost];
  let_next_start();
  const Part part(args);
  const int first = 4 * static_cast<int>(threadIdx.x);
  uint2 rows[kRows][kSteps];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint16_t* row = part.row(args, r);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = first + step * 4 * kThreads;
      rows[r][step] = at < args.inputs ? __ldg(reinterpret_cast<const uint2*>(row + at)) : uint2{0, 0};
    }
  }
  await_previous();
  for (auto i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < args.zero_count;
       i += static_cast<int>(gridDim.x) * kThreads) {
    args.zeros[i] = {};
  }
  float sums[kRows * kMost] = {};
  constexpr int kTogether = kMost < 2 ? kMost : 2;  // columns whose loads are under way at once
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
    if (part.inner && args.round) {
#pragma unroll
      for (int i = 0; i < kTogether * kSteps; ++i) {
        float4& four = x[i / kSteps][i % kSteps];
        four = rounded_to_bf16(four);
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
  if (threadIdx.x >= 32) return;
  const int i = static_cast<int>(threadIdx.x) % (kRows * kMost);
  float sum = warp_sums[0][i];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp][i];
  store_rows<kMost>(args, part, sum);
}

bool fits(const Weight& w) {
  return w.format == WeightFormat::kBF16 && w.inputs <= kMostSteps * 4 * kThreads && w.inputs % 4 == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % 8 == 0;
}

void launch(const Context& context, const FewLogits& args) {
  const int inner = (args.inner + kRows / 2 - 1) / (kRows / 2);
  const dim3 blocks(static_cast<unsigned>(base::ceil_div(args.experts, kRows) + 1 + inner));
  const auto launch_steps = [&]<int kSteps>(std::integral_constant<int, kSteps>) {
    const auto kernel = args.tokens == 1   ? logits_kernel<1, kSteps>
                        : args.tokens <= 4 ? logits_kernel<4, kSteps>
                                           : logits_kernel<8, kSteps>;
    launch_following(context, kernel, blocks, kThreads, 0, args);
  };
  if (args.inputs <= 3 * 4 * kThreads) {
    launch_steps(std::integral_constant<int, 3>());
  } else {
    launch_steps(std::integral_constant<int, kMostSteps>());
  }
  TANDEM_CUDA_LAUNCHED("router logits");
}

FewLogits few_of(const float* x, int64_t tokens, const Weight& router, const Weight& gate, float* logits,
                 float* gates) {
  return {.x = x,
          .tokens = static_cast<int>(tokens),
          .inputs = static_cast<int>(router.inputs),
          .experts = static_cast<int>(router.rows),
          .router = static_cast<const uint16_t*>(router.data),
          .gate = static_cast<const uint16_t*>(gate.data),
          .logits = logits,
          .gates = gates};
}

}  // namespace

bool takes_few_logits(const float* x, int64_t tokens, const Weight& router, const Weight& gate) {
  return tokens <= kMostFewColumns && fits(router) && fits(gate) && router.inputs == gate.inputs && gate.rows == 1 &&
         reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

void few_logits(const Context& context, const float* x, int64_t tokens, const Weight& router, const Weight& gate,
                float* logits, float* gates) {
  if (context.plans() || tokens == 0) return;
  launch(context, few_of(x, tokens, router, gate, logits, gates));
}

bool takes_few_logits_and_inner(const Ops::ExpertMixture& args) {
  const auto joins = [&](const Weight& w) {
    return fits(w) && w.inputs == args.router.inputs && w.rows == args.gate.rows;
  };
  return takes_few_logits(args.experts.x, args.experts.tokens, args.router, args.shared_gate) && joins(args.gate) &&
         joins(args.up);
}

void few_logits_and_inner(const Context& context, const Ops::ExpertMixture& args, float* logits, std::byte* zeros,
                          int64_t zero_bytes) {
  if (context.plans() || args.experts.tokens == 0) return;
  FewLogits few = few_of(args.experts.x, args.experts.tokens, args.router, args.shared_gate, logits, args.gates);
  few.inner_gate = static_cast<const uint16_t*>(args.gate.data);
  few.inner_up = static_cast<const uint16_t*>(args.up.data);
  few.inner = static_cast<int>(args.gate.rows);
  few.round = context.round_inputs;
  few.inner_out = args.inner;
  few.zeros = reinterpret_cast<uint4*>(zeros);
  few.zero_count = static_cast<int>(zero_bytes / 16);
  launch(context, few);
}

}  // namespace tandem::ops::cuda
