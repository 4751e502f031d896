// Products of at most eight columns with the few rows of the router and of the shared expert's gate, whose inputs are
// FP32: 2.6 MB for Flash-Next, bound by latency. What reads the same columns joins them: the shared expert's gate and
// up, 6.5 MB. A block takes four rows, and holds its part of them in registers before it waits for the columns. A
// thread adds over the inputs 4 i + 1024 j of its place i, the block's threads in a fixed tree, so that a column's sums
// depend on nothing but the inputs' number; experts_alone_rows.cuh adds in the same order.
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/router_few.cuh"
#include "ops/cuda/router_rows.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = kRowThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = kRowsOfPart;
constexpr int kMostSteps = kMostRowSteps;

// Where the sums of the block's rows go; lanes 4 c + r of the first warp have them.
template <int kMost>
__device__ inline void store_rows(const RouterRows& args, const RowsPart& part, float sum) {
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
                                                         : 2) logits_kernel(const RouterRows args) {
  __shared__ float warp_sums[kWarps][kRows * kMost];
  let_next_start();
  const RowsPart part(args, static_cast<int>(blockIdx.x));
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
          sum = dot_bf16(rows[r][step], x[c][step], sum);
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

void launch(const Context& context, const RouterRows& args) {
  const dim3 blocks(static_cast<unsigned>(args.parts()));
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

RouterRows rows_of(const float* x, int64_t tokens, const Weight& router, const Weight& gate, float* logits,
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
  launch(context, rows_of(x, tokens, router, gate, logits, gates));
}

bool takes_few_logits_and_inner(const Ops::ExpertMixture& args) {
  const auto joins = [&](const Weight& w) {
    return fits(w) && w.inputs == args.router.inputs && w.rows == args.gate.rows;
  };
  return takes_few_logits(args.experts.x, args.experts.tokens, args.router, args.shared_gate) && joins(args.gate) &&
         joins(args.up);
}

RouterRows router_rows_of(const Context& context, const Ops::ExpertMixture& args, float* logits) {
  RouterRows rows = rows_of(args.experts.x, args.experts.tokens, args.router, args.shared_gate, logits, args.gates);
  rows.inner_gate = static_cast<const uint16_t*>(args.gate.data);
  rows.inner_up = static_cast<const uint16_t*>(args.up.data);
  rows.inner = static_cast<int>(args.gate.rows);
  rows.round = context.round_inputs;
  rows.inner_out = args.inner;
  return rows;
}

void few_logits_and_inner(const Context& context, const Ops::ExpertMixture& args, float* logits) {
  if (context.plans() || args.experts.tokens == 0) return;
  launch(context, router_rows_of(context, args, logits));
}

}  // namespace tandem::ops::cuda
