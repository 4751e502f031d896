// Which kernels attend, and the sum over pieces.
#include <algorithm>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_answer.cuh"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kMergeThreads = 256;
constexpr int kMergeDims = 64;  // of one block, four a thread
constexpr int kSegments = kMergeThreads / (kMergeDims / 4);

// Pieces of one column and query head: piece p is added in segment p % 16, segments by twos and then in ascending
// order, all relative to the largest score of all.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ AttentionArgs args) {
  let_next_start();
  __shared__ float largest[kMergeThreads / 32];
  constexpr int warps = kMergeThreads / 32;
  __shared__ float sums[warps];
  __shared__ float4 parts[warps][kMergeDims / 4];
  const int64_t row = blockIdx.x;
  const auto column = static_cast<int>(blockIdx.x / static_cast<unsigned>(args.heads()));
  const int dim = args.kv.head_dim;
  const int lane = threadIdx.x % (kMergeDims / 4);
  const int segment = threadIdx.x / (kMergeDims / 4);
  const int d = blockIdx.y * kMergeDims + 4 * lane;
  const Run run = args.runs[column / args.each];
  const int offset = column % args.each;
  // Pieces and gates come from the second-level cache both times: their places are read early, for nothing.
  rehearse([&](bool for_good) {
    int64_t pieces = 0;
    if (!for_good) {
      pieces = min(args.pieces, int64_t{kSegments});
    } else if (offset < run.tokens) {
      pieces = args.cut.pieces(TokenList(run.position + offset, args.selection, column, args.kv.ratio).count);
    }
    const float2* states = args.states + row * args.pieces;
    const float* partial = args.partial + row * args.pieces * dim;
    const auto values = [&](int64_t p) { return __ldcg(reinterpret_cast<const float4*>(partial + p * dim + d)); };
    float4 gates{};
    if (segment == 0 && d < dim && args.q_gate != nullptr) {
      gates = __ldcg(reinterpret_cast<const float4*>(args.q_gate + (2 * row + 1) * dim + d));
    }
    // The first values are on their way while the largest score is sought.
    constexpr int ahead = 4;
    float4 first[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int64_t p = segment + i * kSegments;
      first[i] = p < pieces && d < dim ? values(p) : float4{};
    }
    float most = -INFINITY;
    for (int64_t p = threadIdx.x; p < pieces; p += kMergeThreads) most = fmaxf(most, __ldcg(states + p).x);
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (const float other : largest) most = fmaxf(most, other);
    float4 part{0, 0, 0, 0};
    float sum = 0;
    const auto add = [&](int64_t p, const float4& v) {
      const float2 state = __ldcg(states + p);
      const float weight = exp2f(state.x - most);
      sum = fmaf(state.y, weight, sum);
      part.x = fmaf(v.x, weight, part.x);
      part.y = fmaf(v.y, weight, part.y);
      part.z = fmaf(v.z, weight, part.z);
      part.w = fmaf(v.w, weight, part.w);
    };
    if (d < dim) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        if (segment + i * kSegments < pieces) add(segment + i * kSegments, first[i]);
      }
#pragma unroll 4
      for (int64_t p = segment + ahead * kSegments; p < pieces; p += kSegments) add(p, values(p));
    }
    // The two segments of a warp, then the warps.
    static_assert(kMergeDims / 4 == 16);
    part.x += __shfl_xor_sync(0xFFFFFFFFu, part.x, 16);
    part.y += __shfl_xor_sync(0xFFFFFFFFu, part.y, 16);
    part.z += __shfl_xor_sync(0xFFFFFFFFu, part.z, 16);
    part.w += __shfl_xor_sync(0xFFFFFFFFu, part.w, 16);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
    if (segment % 2 == 0) {
      parts[segment / 2][lane] = part;
      if (lane == 0) sums[segment / 2] = sum;
    }
    __syncthreads();
    if (segment != 0 || d >= dim) return;
#pragma unroll
    for (int w = 1; w < warps; ++w) {
      const float4 v = parts[w][lane];
      part = make_float4(part.x + v.x, part.y + v.y, part.z + v.z, part.w + v.w);
      sum += sums[w];
    }
    float4 answer{};  // of padding
    if (pieces > 0) answer = gated(args, make_float4(part.x / sum, part.y / sum, part.z / sum, part.w / sum), gates);
    if (for_good) *reinterpret_cast<float4*>(args.out + row * dim + d) = answer;
  });
}

// Beyond the few columns whose bits depend on it, pieces are worth their scratch up to here.
constexpr int64_t kMostPartialBytes = int64_t{64} << 20;

// The pieces of one long list are to be at the card's memory all at once and for equal times: two on each of 132
// multiprocessors, which share out the rate of reading among themselves. A piece is a step of all warps of a block at
// least.
Cut cut_of(const Ops::Attention& args) {
  constexpr int64_t places = 264;
  return {.unit = args.kv.type == KvType::kInt8 ? 128 : 64,
          .most = static_cast<int>(std::max<int64_t>(1, places / args.kv.kv_heads))};
}

}  // namespace

void merge_pieces(const Context& context, const AttentionArgs& args, int64_t columns) {
  const dim3 blocks(static_cast<unsigned>(columns * args.heads()),
                    static_cast<unsigned>((args.kv.head_dim + kMergeDims - 1) / kMergeDims));
  launch_following(context, merge_kernel, blocks, kMergeThreads, 0, args);
  TANDEM_CUDA_LAUNCHED("merge_pieces");
}

void attention(const Context& context, const Columns& columns, const Ops::Attention& args) {
  const int64_t count = columns.count();
  const bool chosen = args.selection != nullptr;
  if (args.kv.head_dim % 16 != 0 || args.kv.head_dim > 256) {
    base::internal_error("cuda", "attention heads of {} dimensions", args.kv.head_dim);
  }
  if (count == 0) return;
  AttentionArgs a{.kv = KvView(args.kv),
                  .runs = columns.table,
                  .each = static_cast<int>(columns.each),
                  .group = static_cast<int>(args.heads / args.kv.kv_heads),
                  .scale = args.scale,
                  .q = args.q,
                  .q_gate = args.q_gate,
                  .out = args.out,
                  .selection = chosen ? *args.selection : BlockSelection{},
                  .partial = nullptr,
                  .states = nullptr,
                  .cut = cut_of(args),
                  .pieces = 1};
  const bool tensor_cores = context.tensor_cores && context.round_inputs && args.kv.type != KvType::kF32;
  // A list holds at most the context, and where blocks are chosen the budget with one unfinished block.
  int64_t longest = std::max<int64_t>(columns.reach, 1);
  if (chosen) longest = std::min(longest, (a.selection.budget + 1) * a.kv.ratio - 1);
  const int64_t pieces = a.cut.most_pieces(longest);
  const int64_t partial = count * args.heads * pieces * args.kv.head_dim;
  const bool few = count <= kMostFewColumns;
  const bool whole_runs = tensor_cores && !chosen && columns.each > kMostFewColumns;
  const bool split = few || (!chosen && !whole_runs && partial * 4 <= kMostPartialBytes);
  const Scratch::Scope scope(context.scratch);
  if (split) {
    a.pieces = pieces;
    a.partial = context.scratch.take<float>(partial);
    a.states = context.scratch.take<float2>(count * args.heads * pieces);
  }
  if (context.plans()) return;
  const AttentionGrid grid{.units = chosen ? count : static_cast<int64_t>(columns.runs.size()),
                           .rows = (chosen ? 1 : columns.each) * a.group};
  if (!tensor_cores) {
    attend_portable(context, a, count);
  } else if (whole_runs) {
    attend_prefill(context, grid, a);
  } else if (args.kv.type == KvType::kInt8) {
    attend_codes(context, grid, a);
  } else {
    attend_pieces(context, grid, a);
  }
  if (split) merge_pieces(context, a, count);
}

bool gated_attention(const Context& context, const Columns& columns, const Ops::GatedAttention& args) {
  const Ops::AttentionInputs& inputs = args.inputs;
  if (columns.count() > kMostFewColumns) return false;
  const bool chooses = args.selection != nullptr && columns.reach / inputs.kv.ratio > args.selection->budget;
  Ops::Attention attend = args.attention();
  if (args.selection == nullptr) {
    attention_inputs(context, columns, inputs);
  } else {
    if (!(args.index.rotary == inputs.rotary)) return false;
    attention_and_index_inputs(context, columns, inputs, args.index, chooses ? nullptr : args.selection->counts);
    if (chooses) {
      select_blocks(context, columns, args.select(), *args.selection);
    } else if (columns.each * inputs.heads / inputs.kv.kv_heads <= 16) {
      attend.selection = nullptr;  // all columns see everything, and have the same bits without a choice
    }
  }
  attention(context, columns, attend);
  return true;
}

}  // namespace tandem::ops::cuda
