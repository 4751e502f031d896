// Single steps of Gated DeltaNet.
//
// The columns of a head's matrix M [key_dim, value_dim] are independent, so a warp takes kSlice of them with all rows,
// and keeps them in registers over the columns of its run: nothing passes between warps, and there is no barrier. Its
// lanes are kSlice / 4 wide, each with four columns, and the rest of the warp divides the rows. With decay = e^g,
//   recalled = decay M^T k,  delta = beta (v - recalled),  out = decay M^T q + (k . q) delta,  M = decay M + k delta^T,
// so that the sums over rows, and the squares that normalise q and k, come from one pass. Gates are worked out for 32
// columns at once, one a lane. The code is kept short: with few columns, fetching it takes as long as the state does.
#include "ops/cuda/delta_gates.cuh"
#include "ops/cuda/delta_steps.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

namespace {

struct Steps {
  const Run* runs;
  int64_t each;
  bool advance;
  StepRange range;
  Ops::DeltaNet net;
};

// Inputs of one column, as a lane wants them.
template <int kRows>
struct Column {
  float key[kRows], query[kRows];
  float4 value;
};
struct Gates {
  float beta, decay;
};

template <int kSlice, int kRows, bool kExact>
__device__ Column<kRows> load_column(const Ops::DeltaNet& net, int64_t token, int64_t head, int64_t column, int group) {
  constexpr int kGroups = 128 / kSlice;
  const int64_t stride = 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
  const int64_t key_head =
      static_cast<int>(head) / (static_cast<int>(net.value_heads) / static_cast<int>(net.key_heads));
  const float* row = net.qkv + token * stride;
  const float* query = row + key_head * net.key_dim;
  const float* key = query + net.key_heads * net.key_dim;
  Column<kRows> in;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int i = r * kGroups + group;
    const bool here = kExact || i < net.key_dim;
    in.key[r] = here ? key[i] : 0.0F;
    in.query[r] = here ? query[i] : 0.0F;
  }
  in.value = load4(row + 2 * net.key_heads * net.key_dim + head * net.value_dim + column);
  return in;
}

// Of token first + t; ones that change nothing behind the run's end.
__device__ inline Gates load_gates(const Ops::DeltaNet& net, int64_t first, int64_t t, int64_t tokens, int64_t head) {
  if (t >= tokens) return {0, 1};
  const int64_t at = (first + t) * net.value_heads + head;
  return {1.0F / (1.0F + exp_exact(0.0F - net.b[at])),
          exp_exact(log_decay(net.a[at], net.a_log[head], net.dt_bias[head]))};
}

// Sums over the groups of lanes that divide the rows.
template <int kSlice>
__device__ float rows_sum(float x) {
#pragma unroll
  for (int distance = 16; distance >= kSlice / 4; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
  return x;
}
template <int kSlice>
__device__ float4 rows_sum(float4 x) {
  return {rows_sum<kSlice>(x.x), rows_sum<kSlice>(x.y), rows_sum<kSlice>(x.z), rows_sum<kSlice>(x.w)};
}

__device__ inline float4 scaled(float4 x, float factor) {
  return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}
__device__ inline float4 add_scaled(float4 x, float factor, float4 y) {
  return {fmaf(x.x, factor, y.x), fmaf(x.y, factor, y.y), fmaf(x.z, factor, y.z), fmaf(x.w, factor, y.w)};
}

// One column: moves the state on, returns the output.
template <int kSlice, int kRows>
__device__ float4 step(const Column<kRows>& in, const Gates& gates, float query_factor, float4 (&state)[kRows]) {
  float keys = 0;
  float queries = 0;
  float both = 0;
  float4 recalled = {0, 0, 0, 0};
  float4 answer = {0, 0, 0, 0};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    recalled = add_scaled(state[r], in.key[r], recalled);
    answer = add_scaled(state[r], in.query[r], answer);
    keys = fmaf(in.key[r], in.key[r], keys);
    queries = fmaf(in.query[r], in.query[r], queries);
    both = fmaf(in.key[r], in.query[r], both);
  }
  const float key_scale = rsqrtf(rows_sum<kSlice>(keys) + 1e-6F);
  const float query_scale = query_factor * rsqrtf(rows_sum<kSlice>(queries) + 1e-6F);
  both = rows_sum<kSlice>(both) * key_scale * query_scale;
  recalled = scaled(rows_sum<kSlice>(recalled), gates.decay * key_scale);
  answer = scaled(rows_sum<kSlice>(answer), gates.decay * query_scale);
  const float4 delta = {gates.beta * (in.value.x - recalled.x), gates.beta * (in.value.y - recalled.y),
                        gates.beta * (in.value.z - recalled.z), gates.beta * (in.value.w - recalled.w)};
  const float4 change = scaled(delta, key_scale);
#pragma unroll
  for (int r = 0; r < kRows; ++r) state[r] = add_scaled(change, in.key[r], scaled(state[r], gates.decay));
  return add_scaled(delta, both, answer);
}

// Blocks (slices of value_dim, value heads, runs) of one warp. kRows rows a lane; kExact: they are all there.
template <int kSlice, int kRows, bool kExact>
__global__ void __launch_bounds__(32) delta_steps_kernel(const Steps args) {
  follow();
  constexpr int kGroups = 128 / kSlice;
  constexpr int kLanes = kSlice / 4;
  const Ops::DeltaNet& net = args.net;
  const int lane = static_cast<int>(threadIdx.x);
  const int group = lane / kLanes;
  const int64_t column = blockIdx.x * kSlice + 4 * (lane % kLanes);
  const int64_t head = blockIdx.y;
  const int64_t run_index = args.range.first_run + blockIdx.z;
  const Run& run = args.runs[run_index];
  const int64_t tokens = min(run.tokens, args.range.end);
  const int64_t first = run_index * args.each;
  float* matrix = args.range.state != nullptr ? args.range.state : reinterpret_cast<float*>(run.slot + net.state);
  matrix += head * net.key_dim * net.value_dim + column;

  const auto token_out = [&](int64_t t) {
    return net.out + ((first + t) * net.value_heads + head) * net.value_dim + column;
  };
  if (args.range.begin < tokens) {
    float4 state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = r * kGroups + group;
      state[r] = kExact || i < net.key_dim ? load4(matrix + i * net.value_dim) : float4{0, 0, 0, 0};
    }
    const float query_factor = rsqrtf(static_cast<float>(net.key_dim));
    Gates mine = {0, 1};
    Column<kRows> in = load_column<kSlice, kRows, kExact>(net, first + args.range.begin, head, column, group);
#pragma unroll 1
    for (int64_t t = args.range.begin; t < tokens; ++t) {
      const int place = static_cast<int>(t - args.range.begin) % 32;
      if (place == 0) mine = load_gates(net, first, t + lane, tokens, head);
      const Gates gates = {__shfl_sync(kWholeWarp, mine.beta, place), __shfl_sync(kWholeWarp, mine.decay, place)};
      // The last column is loaded once more, for nothing: one copy of the code does for all.
      const int64_t next = first + min(t + 1, tokens - 1);
      const Column<kRows> ahead = load_column<kSlice, kRows, kExact>(net, next, head, column, group);
      const float4 answer = step<kSlice, kRows>(in, gates, query_factor, state);
      if (group == 0) store4(token_out(t), answer);
      in = ahead;
    }
    if (args.advance || args.range.state != nullptr) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int i = r * kGroups + group;
        if (kExact || i < net.key_dim) store4(matrix + i * net.value_dim, state[r]);
      }
    }
  }
  if (group != 0) return;
  for (int64_t t = max(tokens, args.range.begin); t < args.range.end; ++t) store4(token_out(t), {0, 0, 0, 0});
}

template <int kSlice, int kRows, bool kExact>
void launch(const Context& context, const Steps& args) {
  const dim3 grid(static_cast<unsigned>(args.net.value_dim / kSlice), static_cast<unsigned>(args.net.value_heads),
                  static_cast<unsigned>(args.range.runs));
  launch_following(context, delta_steps_kernel<kSlice, kRows, kExact>, grid, dim3(32), 0, args);
  TANDEM_CUDA_LAUNCHED("delta_steps");
}

}  // namespace

void delta_steps(const Context& context, const Columns& columns, const Ops::DeltaNet& args, const StepRange& range) {
  if (range.runs == 0 || range.begin >= range.end) return;
  const Steps steps{columns.table, columns.each, columns.advance, range, args};
  // The shape alone decides: a head's slices and the order of its sums are the same for any columns.
  if (args.key_dim == 128) {
    launch<16, 16, true>(context, steps);
  } else if (args.key_dim < 128) {
    launch<16, 16, false>(context, steps);
  } else {
    launch<8, 16, false>(context, steps);
  }
}

}  // namespace tandem::ops::cuda
