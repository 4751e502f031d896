// Attention in FP32 on ordinary cores, for every type of pages and every shape: the path of FP32 activations, and what
// the tensor-core kernels are compared with.
//
// A block has one kv head of one column, and eight of its query heads at a time. It goes through its list in steps of
// 256 tokens: a warp a key for the scores, a warp a head for the softmax, a thread a dimension for the values.
#include <cuda_bf16.h>

#include "numeric/f16.h"
#include "ops/cuda/attention_answer.cuh"
#include "ops/cuda/attention_kernels.h"

namespace tandem::ops::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kHeads = 8;
constexpr int kMostDim = 256;
constexpr int kStepTokens = 256;

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}
__device__ float warp_most(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

// One dimension of a key or a value; `scales` are those of its row.
template <KvType kType>
__device__ float element(const std::byte* row, const std::byte* scales, int d) {
  if constexpr (kType == KvType::kBF16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[d]);
  } else if constexpr (kType == KvType::kF32) {
    return reinterpret_cast<const float*>(row)[d];
  } else {
    return static_cast<float>(reinterpret_cast<const int8_t*>(row)[d]) *
           numeric::f16_to_float(reinterpret_cast<const uint16_t*>(scales)[d / kScaleGroup]);
  }
}

struct Shared {
  float queries[kHeads][kMostDim];
  float weights[kHeads][kStepTokens];
  const std::byte* keys[kStepTokens];
  const std::byte* scales[kStepTokens];
  float largest[kHeads];
  float sum[kHeads];
  float before[kHeads];
};

template <KvType kType>
__device__ void score(const AttentionArgs& args, int tokens, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const float unit = args.scale * 1.4426950408889634F;
  for (int i = threadIdx.x / 32; i < tokens; i += kWarps) {
    float sums[kHeads] = {};
    for (int d = lane; d < args.kv.head_dim; d += 32) {
      const float key = element<kType>(shared.keys[i], shared.scales[i], d);
      for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(shared.queries[h][d], key, sums[h]);
    }
    for (int h = 0; h < kHeads; ++h) {
      const float dot = warp_sum(sums[h]);
      if (lane == 0) shared.weights[h][i] = dot * unit;
    }
  }
}

// A warp a head.
__device__ void soften(int tokens, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int h = threadIdx.x / 32;
  float most = shared.largest[h];
  for (int i = lane; i < tokens; i += 32) most = fmaxf(most, shared.weights[h][i]);
  most = warp_most(most);
  const float base = most == -INFINITY ? 0.0F : most;
  float sum = 0;
  for (int i = lane; i < tokens; i += 32) {
    const float weight = exp2f(shared.weights[h][i] - base);
    shared.weights[h][i] = weight;
    sum += weight;
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  const float before = exp2f(shared.largest[h] - base);
  shared.before[h] = before;
  shared.sum[h] = fmaf(shared.sum[h], before, sum);
  shared.largest[h] = most;
}

template <KvType kType>
__device__ void add_values(const AttentionArgs& args, int tokens, const Shared& shared, float (&sums)[kHeads]) {
  const auto d = static_cast<int>(threadIdx.x);
  if (d >= args.kv.head_dim) return;
  for (int h = 0; h < kHeads; ++h) sums[h] *= shared.before[h];
  for (int i = 0; i < tokens; ++i) {
    const std::byte* scales = kType == KvType::kInt8 ? shared.scales[i] + args.kv.value_scales() : nullptr;
    const float value = element<kType>(shared.keys[i] + args.kv.values, scales, d);
    for (int h = 0; h < kHeads; ++h) sums[h] = fmaf(shared.weights[h][i], value, sums[h]);
  }
}

template <KvType kType>
__global__ void __launch_bounds__(kThreads) attend_portable_kernel(const __grid_constant__ AttentionArgs args) {
  __shared__ Shared shared;
  const bool split = args.partial != nullptr;
  const int64_t column = split ? blockIdx.z : blockIdx.x;
  const int kv_head = blockIdx.y;
  const int dim = args.kv.head_dim;
  const Run run = args.runs[column / args.each];
  const int64_t offset = column % args.each;
  if (offset >= run.tokens) {
    if (split) return;
    for (int i = threadIdx.x; i < args.group * dim; i += kThreads) args.out[args.row(column, kv_head, 0) * dim + i] = 0;
    return;
  }
  const TokenList list(run.position + offset, args.selection, column, args.kv.ratio);
  const int64_t tokens = split ? args.cut.piece_tokens(list.count) : list.count;
  const int64_t begin = split ? blockIdx.x * tokens : 0;
  const int64_t end = min(list.count, begin + tokens);
  if (begin >= end) return;
  for (int first = 0; first < args.group; first += kHeads) {
    const int heads = min(kHeads, args.group - first);
    const float* q = args.q + args.row(column, kv_head, first) * dim;
    for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
      shared.queries[i / dim][i % dim] = i < heads * dim ? q[i] : 0.0F;
    }
    if (threadIdx.x < kHeads) {
      shared.largest[threadIdx.x] = -INFINITY;
      shared.sum[threadIdx.x] = 0;
    }
    float sums[kHeads] = {};
    for (int64_t at = begin; at < end; at += kStepTokens) {
      const auto step = static_cast<int>(min(static_cast<int64_t>(kStepTokens), end - at));
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < step) {
        const int64_t token = list.token(at + threadIdx.x);
        const std::byte* page = args.kv.page(run.block_table, token);
        shared.keys[threadIdx.x] = page + args.kv.key_offset(kv_head, token);
        shared.scales[threadIdx.x] = page + args.kv.scale_offset(kv_head, token);
      }
      __syncthreads();
      score<kType>(args, step, shared);
      __syncthreads();
      soften(step, shared);
      __syncthreads();
      add_values<kType>(args, step, shared, sums);
    }
    for (int h = 0; h < heads; ++h) {
      const int64_t row = args.row(column, kv_head, first + h);
      const int64_t at = row * args.pieces + blockIdx.x;
      if (split && threadIdx.x == 0) args.states[at] = make_float2(shared.largest[h], shared.sum[h]);
      if (static_cast<int>(threadIdx.x) >= dim) continue;
      if (split) {
        args.partial[at * dim + threadIdx.x] = sums[h];
      } else {
        write_answer(args, row, static_cast<int>(threadIdx.x), sums[h] / shared.sum[h]);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void attend_portable(const Context& context, const AttentionArgs& args, int64_t columns) {
  const bool split = args.partial != nullptr;
  const dim3 blocks(static_cast<unsigned>(split ? args.pieces : columns), static_cast<unsigned>(args.kv.kv_heads),
                    static_cast<unsigned>(split ? columns : 1));
  switch (args.kv.type) {
    case KvType::kBF16:
      attend_portable_kernel<KvType::kBF16><<<blocks, kThreads, 0, context.stream>>>(args);
      break;
    case KvType::kF32:
      attend_portable_kernel<KvType::kF32><<<blocks, kThreads, 0, context.stream>>>(args);
      break;
    case KvType::kInt8:
      attend_portable_kernel<KvType::kInt8><<<blocks, kThreads, 0, context.stream>>>(args);
      break;
  }
  TANDEM_CUDA_LAUNCHED("attend_portable");
}

}  // namespace tandem::ops::cuda
