// What attention reads: queries and keys after norm and rotation, keys and values in the pages, pooled index keys.
//
// A warp makes one vector of one column. Its numbers lie in shared memory meanwhile, since rotation pairs dimensions
// that are apart.
#include <cmath>
#include <cuda_bf16.h>

#include "numeric/int8_kv.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_pages.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMostDim = 256;
constexpr int kMostPairs = kMostDim / 2;

// The inverse frequencies, as the host operations round them.
struct RotaryTable {
  int pairs = 0;
  float inverse[kMostPairs] = {};

  explicit RotaryTable(const Rotary& rotary) : pairs(static_cast<int>(rotary.dims / 2)) {
    if (pairs > kMostPairs) base::internal_error("cuda", "{} rotary dimensions are more than 256", rotary.dims);
    for (int i = 0; i < pairs; ++i) {
      inverse[i] = 1.0F / static_cast<float>(
                              std::pow(rotary.theta, static_cast<double>(2 * i) / static_cast<double>(rotary.dims)));
    }
  }
};

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

__device__ float round_to_bf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// Cosine and sine of each pair at a position, in shared memory, the warp's own. Needs nothing that a kernel before
// wrote.
__device__ void make_angles(const RotaryTable& rotary, int64_t position, float2* angles) {
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < rotary.pairs; i += 32) {
    float sine = 0;
    float cosine = 0;
    sincosf(static_cast<float>(position) * rotary.inverse[i], &sine, &cosine);
    angles[i] = make_float2(cosine, sine);
  }
}

// x = x / rms(x) * (1 + weight), then rotated. x [dim] in shared memory, the warp's own; dim <= 256.
__device__ void norm_and_rotate(float* x, int dim, const float* weight, float eps, const RotaryTable& rotary,
                                const float2* angles) {
  const int lane = threadIdx.x % 32;
  float squares = 0;
  for (int i = lane; i < dim; i += 32) squares = fmaf(x[i], x[i], squares);
  const float scale = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  for (int i = lane; i < dim; i += 32) x[i] = (x[i] * scale) * (1.0F + weight[i]);
  __syncwarp();
  for (int i = lane; i < rotary.pairs; i += 32) {
    const float2 angle = angles[i];
    const float a = x[i];
    const float b = x[rotary.pairs + i];
    x[i] = a * angle.x - b * angle.y;
    x[rotary.pairs + i] = b * angle.x + a * angle.y;
  }
  __syncwarp();
}

__device__ void store_row(std::byte* to, const float* x, int dim, KvType type) {
  const int lane = threadIdx.x % 32;
  if (type == KvType::kF32) {
    for (int i = lane; i < dim; i += 32) reinterpret_cast<float*>(to)[i] = x[i];
  } else {
    for (int i = lane; i < dim; i += 32) reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(x[i]);
  }
}

// numeric/int8_kv.h, a group at a time.
__device__ void store_codes(std::byte* to, uint16_t* scales, const float* x, int dim) {
  const int lane = threadIdx.x % 32;
  for (int begin = 0; begin < dim; begin += kScaleGroup) {
    const float a = begin + lane < dim ? x[begin + lane] : 0.0F;
    const float b = begin + 32 + lane < dim ? x[begin + 32 + lane] : 0.0F;
    const uint32_t most = max(__float_as_uint(a) & 0x7FFFFFFFu, __float_as_uint(b) & 0x7FFFFFFFu);
    const uint16_t scale = numeric::int8_kv_scale(__reduce_max_sync(0xFFFFFFFFu, most));
    const bool coded = scale != 0 && scale != numeric::kInt8KvFaultyScale;
    const float unit = numeric::f16_to_float(scale);
    const auto code = [&](float v) {
      return static_cast<int8_t>(coded ? max(-127, min(127, __float2int_rn(v / unit))) : 0);
    };
    if (begin + lane < dim) reinterpret_cast<int8_t*>(to)[begin + lane] = code(a);
    if (begin + 32 + lane < dim) reinterpret_cast<int8_t*>(to)[begin + 32 + lane] = code(b);
    if (lane == 0) scales[begin / kScaleGroup] = scale;
  }
}

__device__ void append(const KvView& kv, const int32_t* block_table, int head, int64_t position, bool value,
                       const float* x) {
  std::byte* page = kv.page(block_table, position);
  std::byte* to = page + kv.key_offset(head, position) + (value ? kv.values : 0);
  if (kv.type != KvType::kInt8) {
    store_row(to, x, kv.head_dim, kv.type);
    return;
  }
  std::byte* scales = page + kv.scale_offset(head, position) + (value ? kv.value_scales() : 0);
  store_codes(to, reinterpret_cast<uint16_t*>(scales), x, kv.head_dim);
}

struct InputArgs {
  KvView kv;
  const Run* runs;
  int each;
  int heads;
  unsigned items;  // warps that work: columns * (heads + 2 * kv_heads)
  bool round;
  float eps;
  const float* q_gate;
  const float* k;
  const float* v;
  const float* q_norm;
  const float* k_norm;
  float* q;
};

__global__ void __launch_bounds__(32 * kWarps)
    attention_inputs_kernel(const __grid_constant__ InputArgs args, const __grid_constant__ RotaryTable rotary) {
  let_next_start();
  __shared__ float vectors[kWarps][kMostDim];
  __shared__ float2 angles[kWarps][kMostPairs];
  float* x = vectors[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned item = blockIdx.x * kWarps + threadIdx.x / 32;
  if (item >= args.items) return;  // others of the block wait for the kernel before
  const unsigned each_column = args.heads + 2 * args.kv.kv_heads;
  const unsigned place = item / each_column;
  const auto part = static_cast<int>(item - place * each_column);  // query heads, keys, values
  const bool query = part < args.heads;
  const bool value = part >= args.heads + args.kv.kv_heads;
  const int head = query ? part : (part - args.heads) % args.kv.kv_heads;
  const unsigned r = place / static_cast<unsigned>(args.each);
  const auto offset = static_cast<int>(place - r * args.each);
  const int64_t column = place;
  const Run run = args.runs[r];
  const int64_t position = run.position + offset;
  if (!value) make_angles(rotary, position, angles[threadIdx.x / 32]);
  await_previous();
  if (!query && offset >= run.tokens) return;  // queries of padding are made: nothing depends on them
  const int dim = args.kv.head_dim;
  const float* from = query ? args.q_gate + (column * args.heads + head) * 2 * dim
                            : (value ? args.v : args.k) + (column * args.kv.kv_heads + head) * dim;
  for (int i = lane; i < dim; i += 32) x[i] = from[i];
  __syncwarp();
  if (!value) {
    norm_and_rotate(x, dim, query ? args.q_norm : args.k_norm, args.eps, rotary, angles[threadIdx.x / 32]);
  }
  if (!query) {
    append(args.kv, run.block_table, head, position, value, x);
    return;
  }
  float* q = args.q + (column * args.heads + head) * dim;
  for (int i = lane; i < dim; i += 32) q[i] = args.round ? round_to_bf16(x[i]) : x[i];
}

struct IndexArgs {
  KvView kv;
  const Run* runs;
  int each;
  int heads;
  bool round;
  float eps;
  const float* qk;
  const float* q_norm;
  const float* k_norm;
  int64_t recent;
  float* q;

  __device__ const float* raw(int64_t column) const { return qk + (column * (heads + 1) + heads) * kv.index_dim; }
};

// The pooled key of the block that ends at column `last` of the run, whose columns begin at `first_column`; angles are
// those of the block's first position.
__device__ void pool_block(const IndexArgs& args, const RotaryTable& rotary, const Run& run, int64_t first_column,
                           int64_t last, const float2* angles, float* x) {
  const int dim = args.kv.index_dim;
  const int ratio = args.kv.ratio;
  const int64_t first = last + 1 - ratio;  // before the run where negative
  const auto* recent = reinterpret_cast<const float*>(run.slot + args.recent);
  const bool rounded = args.kv.type != KvType::kF32;
  for (int i = threadIdx.x % 32; i < dim; i += 32) {
    float sum = 0;
    for (int64_t t = first; t <= last; ++t) {
      sum += t >= 0 ? args.raw(first_column + t)[i] : recent[(run.position + t) % Ops::kRecentKeys * dim + i];
    }
    sum /= static_cast<float>(ratio);
    x[i] = rounded ? round_to_bf16(sum) : sum;
  }
  __syncwarp();
  norm_and_rotate(x, dim, args.k_norm, args.eps, rotary, angles);
  store_row(args.kv.index_key(run.block_table, static_cast<int>(static_cast<unsigned>(run.position + first) /
                                                                static_cast<unsigned>(ratio))),
            x, dim, args.kv.type);
}

// The blocks of one run: `each` of queries and whole blocks of this step's own tokens, behind them one block that
// pools what was begun before, then moves the ring on: in this order, for the ring's new rows may be those it reads.
__global__ void __launch_bounds__(32 * kWarps)
    index_inputs_kernel(const __grid_constant__ IndexArgs args, const __grid_constant__ RotaryTable rotary) {
  let_next_start();
  __shared__ float vectors[kWarps][kMostDim];
  __shared__ float2 angles[kWarps][kMostPairs];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  float* x = vectors[warp];
  const int dim = args.kv.index_dim;
  const int ratio = args.kv.ratio;
  const Run run = args.runs[blockIdx.y];
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * args.each;
  const int64_t begun =
      static_cast<unsigned>(run.position) % static_cast<unsigned>(ratio);  // tokens of the block that the run begins in
  if (blockIdx.x == static_cast<unsigned>(args.each)) {
    const int64_t last = ratio - 1 - begun;
    const bool pools = warp == 0 && begun > 0 && last < run.tokens;
    if (pools) make_angles(rotary, run.position - begun, angles[warp]);
    await_previous();
    __syncwarp();
    if (pools) pool_block(args, rotary, run, first_column, last, angles[warp], x);
    __syncthreads();
    auto* recent = reinterpret_cast<float*>(run.slot + args.recent);
    for (int64_t t = max(int64_t{0}, run.tokens - Ops::kRecentKeys) + warp; t < run.tokens; t += kWarps) {
      float* row = recent + (run.position + t) % Ops::kRecentKeys * dim;
      for (int i = lane; i < dim; i += 32) row[i] = args.raw(first_column + t)[i];
    }
    return;
  }
  const int64_t t = blockIdx.x;
  const int64_t column = first_column + t;
  const int64_t position = run.position + t;
  make_angles(rotary, position, angles[warp]);
  await_previous();
  __syncwarp();
  for (int head = warp; head <= args.heads; head += kWarps) {
    if (head == args.heads) {
      const bool whole =
          static_cast<unsigned>(position + 1) % static_cast<unsigned>(ratio) == 0 && t + 1 >= ratio && t < run.tokens;
      if (!whole) continue;
      make_angles(rotary, position + 1 - ratio, angles[warp]);
      __syncwarp();
      pool_block(args, rotary, run, first_column, t, angles[warp], x);
      continue;
    }
    const float* from = args.qk + (column * (args.heads + 1) + head) * dim;
    for (int i = lane; i < dim; i += 32) x[i] = from[i];
    __syncwarp();
    norm_and_rotate(x, dim, args.q_norm, args.eps, rotary, angles[warp]);
    float* q = args.q + (column * args.heads + head) * dim;
    for (int i = lane; i < dim; i += 32) q[i] = args.round ? round_to_bf16(x[i]) : x[i];
    __syncwarp();
  }
}

}  // namespace

void attention_inputs(const Context& context, const Columns& columns, const Ops::AttentionInputs& args) {
  if (args.kv.head_dim > kMostDim) base::internal_error("cuda", "heads of {} dimensions", args.kv.head_dim);
  if (context.plans() || columns.count() == 0) return;
  const int64_t items = columns.count() * (args.heads + 2 * args.kv.kv_heads);
  const InputArgs inputs{.kv = KvView(args.kv),
                         .runs = columns.table,
                         .each = static_cast<int>(columns.each),
                         .heads = static_cast<int>(args.heads),
                         .items = static_cast<unsigned>(items),
                         .round = context.round_inputs,
                         .eps = args.eps,
                         .q_gate = args.q_gate,
                         .k = args.k,
                         .v = args.v,
                         .q_norm = args.q_norm,
                         .k_norm = args.k_norm,
                         .q = args.q};
  const auto blocks = static_cast<unsigned>((items + kWarps - 1) / kWarps);
  launch_following(context, attention_inputs_kernel, blocks, 32 * kWarps, 0, inputs, RotaryTable(args.rotary));
  TANDEM_CUDA_LAUNCHED("attention_inputs");
}

void index_inputs(const Context& context, const Columns& columns, const Ops::IndexInputs& args) {
  if (args.kv.index_dim > kMostDim) base::internal_error("cuda", "index keys of {} dimensions", args.kv.index_dim);
  if (context.plans() || columns.count() == 0) return;
  const IndexArgs inputs{.kv = KvView(args.kv),
                         .runs = columns.table,
                         .each = static_cast<int>(columns.each),
                         .heads = static_cast<int>(args.heads),
                         .round = context.round_inputs,
                         .eps = args.eps,
                         .qk = args.qk,
                         .q_norm = args.q_norm,
                         .k_norm = args.k_norm,
                         .recent = args.recent,
                         .q = args.q};
  const dim3 blocks(static_cast<unsigned>(columns.each + 1), static_cast<unsigned>(columns.runs.size()));
  launch_following(context, index_inputs_kernel, blocks, 32 * kWarps, 0, inputs, RotaryTable(args.rotary));
  TANDEM_CUDA_LAUNCHED("index_inputs");
}

}  // namespace tandem::ops::cuda
