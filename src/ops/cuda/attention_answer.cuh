// The last thing that attention does to a row of a column and query head: answers are multiplied by their gates.
#pragma once

#include "ops/cuda/attention_pages.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

// Dimensions d and following of a row.
__device__ inline void write_answer(const AttentionArgs& args, int64_t row, int d, float answer) {
  if (args.q_gate != nullptr) answer *= sigmoid(args.q_gate[(2 * row + 1) * args.kv.head_dim + d]);
  args.out[row * args.kv.head_dim + d] = answer;
}
__device__ inline float4 load_gates(const AttentionArgs& args, int64_t row, int d) {
  if (args.q_gate == nullptr) return {};
  return *reinterpret_cast<const float4*>(args.q_gate + (2 * row + 1) * args.kv.head_dim + d);
}
__device__ inline float4 gated(const AttentionArgs& args, float4 answer, float4 gates) {
  if (args.q_gate == nullptr) return answer;
  return {answer.x * sigmoid(gates.x), answer.y * sigmoid(gates.y), answer.z * sigmoid(gates.z),
          answer.w * sigmoid(gates.w)};
}
__device__ inline void write_answer(const AttentionArgs& args, int64_t row, int d, float4 answer) {
  *reinterpret_cast<float4*>(args.out + row * args.kv.head_dim + d) = gated(args, answer, load_gates(args, row, d));
}
// The same for `count` rows that the block has written, of which row_of(r) is the place or -1: where many answers in
// registers would make many copies of the gate's instructions.
template <typename RowOf>
__device__ inline void multiply_gates(const AttentionArgs& args, int count, const RowOf& row_of) {
  if (args.q_gate == nullptr) return;
  __syncthreads();
  const int quads = args.kv.head_dim / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < count * quads; i += blockDim.x) {
    const int64_t row = row_of(i / quads);
    if (row < 0) continue;
    const int d = i % quads * 4;
    write_answer(args, row, d, *reinterpret_cast<const float4*>(args.out + row * args.kv.head_dim + d));
  }
}

}  // namespace tandem::ops::cuda
