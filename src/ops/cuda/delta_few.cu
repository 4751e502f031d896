// Gated DeltaNet between its projections, for few columns, in one launch: the gates' products, the convolution, the
// recurrence and the gated norm.
//
// A block has one value head of one run. Its eight warps take 16 columns of the head's matrix M each, with all rows, in
// registers: 8 groups of 4 lanes, a group 16 rows, a lane 4 columns. What comes before the recurrence is the whole
// block's: the gates' two dot products, and the convolution of the head's channels, a channel a thread for all tokens
// at once. Value heads of one key head each convolve its queries and keys again; they are a cluster, so that the one
// that moves the history on knows that all have read it. The recurrence is that of delta_steps.cu:
//   recalled = decay M^T k,  delta = beta (v - recalled),  out = decay M^T q + (k . q) delta,  M = decay M + k delta^T.
//
// Slots, run tables and weights are read before the launches before this one have ended: within a step nothing else
// writes this layer's part of a slot, and steps do not overlap (follow.cuh). So most of the time that the state takes
// is hidden, and what remains is the chain from the projections to the output, about 3 us at one column.
//
// Sums are over a column alone, in an order that the shape decides.
#include "ops/cuda/delta_gates.cuh"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kDim = 128;  // of keys and of values
constexpr int kThreads = 2 * kDim;
constexpr int kWarps = kThreads / 32;
constexpr int kTaps = 4;
constexpr int kPast = kTaps - 1;
constexpr int kSlice = kDim / kWarps;         // columns of a warp
constexpr int kGroups = 32 / (kSlice / 4);    // of lanes
constexpr int kRows = kDim / kGroups;         // of a group
constexpr int kRowsStride = kRows + 4;        // floats from one group's keys to the next one's: all banks in turn
constexpr int64_t kMostCluster = 8;           // on every card
constexpr int64_t kMostGateBytes = 28 << 10;  // of shared memory: what two rows of the gates' matrices may take

struct Few {
  const Run* runs;
  int64_t each;
  bool advance;
  Ops::GatedDeltaNet net;
};

template <int kTokens>
struct Shared {
  float key[kTokens][kGroups * kRowsStride];
  float query[kTokens][kGroups * kRowsStride];
  float value[kTokens][kDim];
  float answer[kTokens][kDim];
  float gates[kTokens][2][kWarps];       // sums of a and b
  float lengths[kTokens][3][kDim / 32];  // sums of k k, q q and k q
  float squares[kTokens][kWarps];        // of the output
};

// What a column's step needs beside its vectors.
struct Factors {
  float beta, decay;
  float key, query;  // make k and q unit vectors, and q as long as 1 / sqrt(kDim)
  float both;        // k . q of these
};

// Of memory that this kernel may read before the launches before it have ended.
__device__ inline float4 load4_early(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

__device__ inline void copy_eight(void* shared, const void* from) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

// Places in a head's 128 keys, as the groups of lanes read them.
__device__ inline int key_place(int i) {
  return i / kRows * kRowsStride + i % kRows;
}

__device__ inline float4 scaled(float4 x, float factor) {
  return {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}
__device__ inline float4 add_scaled(float4 x, float factor, float4 y) {
  return {fmaf(x.x, factor, y.x), fmaf(x.y, factor, y.y), fmaf(x.z, factor, y.z), fmaf(x.w, factor, y.w)};
}
// Sums over the groups of lanes.
__device__ inline float4 rows_sum(float4 x) {
#pragma unroll
  for (int distance = 16; distance >= kSlice / 4; distance /= 2) {
    x.x += __shfl_xor_sync(kWholeWarp, x.x, distance);
    x.y += __shfl_xor_sync(kWholeWarp, x.y, distance);
    x.z += __shfl_xor_sync(kWholeWarp, x.z, distance);
    x.w += __shfl_xor_sync(kWholeWarp, x.w, distance);
  }
  return x;
}

// A channel of the convolution: its weights, and its inputs from kPast before the first token on.
template <int kTokens>
struct Channel {
  float weight[kTaps];
  float x[kPast + kTokens];

  __device__ void load_past(const Few& args, const Run& run, int64_t channel, int64_t channels) {
    const float* past = reinterpret_cast<const float*>(run.slot + args.net.history) + channel;
#pragma unroll
    for (int r = 0; r < kPast; ++r) x[r] = __ldcg(past + r * channels);
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j] = args.net.conv[j * channels + channel];
  }
  // `first` is the run's first token.
  __device__ void load(const Few& args, int64_t first, int tokens, int64_t channel, int64_t channels) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      x[kPast + t] = t < tokens ? args.net.qkv[(first + t) * channels + channel] : 0.0F;
    }
  }
  __device__ float at(int t) const {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum = fmaf(weight[j], x[t + j], sum);
    return silu(sum);
  }
  __device__ void move_on(const Few& args, const Run& run, int tokens, int64_t channel, int64_t channels) const {
    float* past = reinterpret_cast<float*>(run.slot + args.net.history) + channel;
#pragma unroll
    for (int moved = 1; moved <= kTokens; ++moved) {  // registers have no run-time index
      if (moved != tokens) continue;
#pragma unroll
      for (int r = 0; r < kPast; ++r) past[r * channels] = x[r + moved];
    }
  }
};

// Fetches this thread's share of the head's rows of both gates' matrices; `weights` [2, hidden].
__device__ inline void fetch_gates(const Few& args, int64_t head, __nv_bfloat16* weights) {
  const int64_t hidden = args.net.a_proj.inputs;
  const auto* a = static_cast<const __nv_bfloat16*>(args.net.a_proj.data) + head * hidden;
  const auto* b = static_cast<const __nv_bfloat16*>(args.net.b_proj.data) + head * hidden;
  for (int64_t i = 4 * threadIdx.x; i < hidden; i += 4 * kThreads) {
    copy_eight(weights + i, a + i);
    copy_eight(weights + hidden + i, b + i);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ inline float dot(uint2 weights, float4 x, float sum) {
  sum = fmaf(__uint_as_float(weights.x << 16), x.x, sum);
  sum = fmaf(__uint_as_float(weights.x & 0xffff0000), x.y, sum);
  sum = fmaf(__uint_as_float(weights.y << 16), x.z, sum);
  return fmaf(__uint_as_float(weights.y & 0xffff0000), x.w, sum);
}

// The gates' products, each warp's part of them. Inputs are loaded a batch ahead of their use.
template <int kTokens>
__device__ void multiply_gates(const Few& args, int64_t first, int tokens, const __nv_bfloat16* weights,
                               Shared<kTokens>& shared) {
  constexpr int kBatch = kTokens == 1 ? 5 : 1;
  const int64_t hidden = args.net.a_proj.inputs;
  float a[kTokens] = {};
  float b[kTokens] = {};
  asm volatile("cp.async.wait_all;" ::: "memory");  // a thread reads what it fetched itself
#pragma unroll 1
  for (int64_t begin = 4 * threadIdx.x; begin < hidden; begin += kBatch * 4 * kThreads) {
    float4 x[kBatch][kTokens];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = begin + i * 4 * kThreads;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        x[i][t] = at < hidden && t < tokens ? load4(args.net.x + (first + t) * hidden + at) : float4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = begin + i * 4 * kThreads;
      if (at >= hidden) continue;
      const uint2 of_a = *reinterpret_cast<const uint2*>(weights + at);
      const uint2 of_b = *reinterpret_cast<const uint2*>(weights + hidden + at);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        a[t] = dot(of_a, x[i][t], a[t]);
        b[t] = dot(of_b, x[i][t], b[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float2 sums = warp_sum(float2{a[t], b[t]});
    if (threadIdx.x % 32 == 0) {
      shared.gates[t][0][threadIdx.x / 32] = sums.x;
      shared.gates[t][1][threadIdx.x / 32] = sums.y;
    }
  }
}

template <int kCount>
__device__ inline float sum_of(const float (&parts)[kCount]) {
  float sum = parts[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) sum += parts[i];
  return sum;
}

// Of token t of the run.
template <int kTokens, bool kGatesGiven>
__device__ Factors factors_of(const Few& args, int64_t first, int t, int tokens, int64_t head, float a_log,
                              float dt_bias, const Shared<kTokens>& shared) {
  float a, b;
  if constexpr (kGatesGiven) {
    const int64_t at = (first + (t < tokens ? t : 0)) * args.net.net.value_heads + head;
    a = args.net.a[at];
    b = args.net.b[at];
  } else {
    a = sum_of(shared.gates[t][0]);
    b = sum_of(shared.gates[t][1]);
  }
  Factors factors;
  factors.beta = sigmoid(b);
  factors.decay = exp_exact(log_decay(a, a_log, dt_bias));
  factors.key = rsqrtf(sum_of(shared.lengths[t][0]) + 1e-6F);
  factors.query = rsqrtf(static_cast<float>(kDim)) * rsqrtf(sum_of(shared.lengths[t][1]) + 1e-6F);
  factors.both = sum_of(shared.lengths[t][2]) * factors.key * factors.query;
  return factors;
}
// Those that lane `from` has.
__device__ inline Factors factors_from(const Factors& mine, int from) {
  return {__shfl_sync(kWholeWarp, mine.beta, from), __shfl_sync(kWholeWarp, mine.decay, from),
          __shfl_sync(kWholeWarp, mine.key, from), __shfl_sync(kWholeWarp, mine.query, from),
          __shfl_sync(kWholeWarp, mine.both, from)};
}

__device__ inline float element(float4 four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// One column: moves the state on, returns the output. key and query are the lane's group's.
__device__ inline float4 step(const float* key, const float* query, float4 value, const Factors& factors,
                              float4 (&state)[kRows]) {
  float4 keys[kRows / 4];
  float4 recalled = {0, 0, 0, 0};
  float4 answer = {0, 0, 0, 0};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r % 4 == 0) keys[r / 4] = load4(key + r);
    recalled = add_scaled(state[r], element(keys[r / 4], r % 4), recalled);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float4 queries = load4(query + r / 4 * 4);
    answer = add_scaled(state[r], element(queries, r % 4), answer);
  }
  recalled = scaled(rows_sum(recalled), factors.decay * factors.key);
  answer = scaled(rows_sum(answer), factors.decay * factors.query);
  const float4 delta = {factors.beta * (value.x - recalled.x), factors.beta * (value.y - recalled.y),
                        factors.beta * (value.z - recalled.z), factors.beta * (value.w - recalled.w)};
  const float4 change = scaled(delta, factors.key);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    state[r] = add_scaled(change, element(keys[r / 4], r % 4), scaled(state[r], factors.decay));
  }
  return add_scaled(delta, factors.both, answer);
}

// Blocks (value heads of a key head, key heads, runs), the first of which are a cluster.
template <int kTokens, bool kGatesGiven>
__global__ void __launch_bounds__(kThreads, kTokens == 1 ? 2 : 1) delta_few_kernel(const Few args) {
  let_next_start();
  __shared__ Shared<kTokens> shared;
  extern __shared__ __align__(16) __nv_bfloat16 gate_weights[];
  const Ops::DeltaNet& net = args.net.net;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int group = lane / (kSlice / 4);
  const int column = warp * kSlice + 4 * (lane % (kSlice / 4));
  const int64_t key_head = blockIdx.y;
  const int64_t head = key_head * gridDim.x + blockIdx.x;
  const int64_t channels = (2 * net.key_heads + net.value_heads) * kDim;
  const int64_t keys = net.key_heads * kDim;
  const Run run = args.runs[blockIdx.z];
  const auto tokens = static_cast<int>(run.tokens);
  const int64_t first = blockIdx.z * args.each;

  // The state, the convolution's past and weights. A thread of the first half has a query's and a key's channel, one of
  // the second a value's.
  float* matrix = reinterpret_cast<float*>(run.slot + net.state) + head * kDim * kDim + column;
  if constexpr (!kGatesGiven) fetch_gates(args, head, gate_weights);
  const bool has_key = thread < kDim;
  const int64_t channel = has_key ? key_head * kDim + thread : 2 * keys + head * kDim + thread - kDim;
  Channel<kTokens> one;
  Channel<kTokens> other;
  one.load_past(args, run, channel, channels);
  if (has_key) other.load_past(args, run, keys + channel, channels);
  float4 state[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) state[r] = load4_early(matrix + (group * kRows + r) * kDim);
  const float a_log = net.a_log[head];
  const float dt_bias = net.dt_bias[head];
  // Of the norm: lane l has four columns of token l / 4.
  const int norm_token = lane / (kSlice / 4);
  const float4 norm_weight = load4(args.net.norm + column);

  await_previous();
  one.load(args, first, tokens, channel, channels);
  if (has_key) other.load(args, first, tokens, keys + channel, channels);
  const int64_t out_at = ((first + norm_token) * net.value_heads + head) * kDim + column;
  const float4 z = norm_token < tokens ? load4(args.net.z + out_at) : float4{0, 0, 0, 0};
  if constexpr (!kGatesGiven) multiply_gates<kTokens>(args, first, tokens, gate_weights, shared);
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float value = one.at(t);
    if (!has_key) {
      shared.value[t][thread - kDim] = value;
      continue;
    }
    const float key = other.at(t);
    shared.query[t][key_place(thread)] = value;
    shared.key[t][key_place(thread)] = key;
    const float2 lengths = warp_sum(float2{key * key, value * value});
    const float both = warp_sum(key * value);
    if (lane == 0) {
      shared.lengths[t][0][warp] = lengths.x;
      shared.lengths[t][1][warp] = lengths.y;
      shared.lengths[t][2][warp] = both;
    }
  }
  __syncthreads();
  // Every thread has used, and so read, its part of the history.
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");

  const Factors mine =
      factors_of<kTokens, kGatesGiven>(args, first, lane % kTokens, tokens, head, a_log, dt_bias, shared);
#pragma unroll 1
  for (int t = 0; t < tokens; ++t) {
    const Factors factors = kTokens == 1 ? mine : factors_from(mine, t);
    const float4 value = load4(shared.value[t] + column);
    const float4 answer =
        step(shared.key[t] + group * kRowsStride, shared.query[t] + group * kRowsStride, value, factors, state);
    float squares = fmaf(answer.w, answer.w, fmaf(answer.z, answer.z, fmaf(answer.y, answer.y, answer.x * answer.x)));
    squares += __shfl_xor_sync(kWholeWarp, squares, 1);
    squares += __shfl_xor_sync(kWholeWarp, squares, 2);
    if (group == 0) store4(shared.answer[t] + column, answer);
    if (lane == 0) shared.squares[t][warp] = squares;
  }
  if (args.advance && tokens > 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) store4(matrix + (group * kRows + r) * kDim, state[r]);
  }
  __syncthreads();
  if (norm_token < args.each) {
    float4 y = {0, 0, 0, 0};
    if (norm_token < tokens) {
      const float scale = inverse_rms(sum_of(shared.squares[norm_token]), kDim, args.net.eps);
      const float4 v = load4(shared.answer[norm_token] + column);
      const bool sigmoid_gate = args.net.sigmoid;
      const auto gate = [&](float g) { return sigmoid_gate ? sigmoid(g) : silu(g); };
      y = {v.x * scale * norm_weight.x * gate(z.x), v.y * scale * norm_weight.y * gate(z.y),
           v.z * scale * norm_weight.z * gate(z.z), v.w * scale * norm_weight.w * gate(z.w)};
    }
    store4(net.out + out_at, y);
  }
  asm volatile("barrier.cluster.wait;" ::: "memory");
  if (!args.advance) return;
  if (!has_key) {
    one.move_on(args, run, tokens, channel, channels);
  } else if (blockIdx.x == 0) {
    one.move_on(args, run, tokens, channel, channels);
    other.move_on(args, run, tokens, keys + channel, channels);
  }
}

bool gates_fit(const Ops::GatedDeltaNet& args) {
  const auto fits = [&](const Weight& w) {
    return w.format == WeightFormat::kBF16 && w.inputs % 4 == 0 && 4 * w.inputs <= kMostGateBytes &&
           by_fours(4, w.data);
  };
  return fits(args.a_proj) && fits(args.b_proj) && by_fours(4, args.x);
}

template <int kTokens, bool kGatesGiven>
void launch(const Context& context, const Few& args, int64_t runs) {
  const Ops::DeltaNet& net = args.net.net;
  const auto heads_each = static_cast<unsigned>(net.value_heads / net.key_heads);
  cudaLaunchAttribute attributes[2] = {following(), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {heads_each, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(heads_each, static_cast<unsigned>(net.key_heads), static_cast<unsigned>(runs));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kGatesGiven ? 0 : static_cast<size_t>(4 * args.net.a_proj.inputs);
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  TANDEM_CUDA_CHECK(cudaLaunchKernelEx(&config, delta_few_kernel<kTokens, kGatesGiven>, args));
}

template <bool kGatesGiven>
void launch_for(const Context& context, const Few& args, int64_t runs) {
  if (args.each == 1) return launch<1, kGatesGiven>(context, args, runs);
  if (args.each <= 4) return launch<4, kGatesGiven>(context, args, runs);
  launch<kMostFewColumns, kGatesGiven>(context, args, runs);
}

bool few_serves(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args) {
  const Ops::DeltaNet& net = args.net;
  return context.tensor_cores && columns.count() <= kMostFewColumns && net.key_dim == kDim && net.value_dim == kDim &&
         args.kernel == kTaps && net.value_heads / net.key_heads <= kMostCluster && net.state % 16 == 0 &&
         by_fours(4, args.z, args.norm, net.out);
}

}  // namespace

bool gated_delta_net(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args) {
  if (!few_serves(context, columns, args)) return false;
  if (columns.count() == 0) return true;
  const auto runs = static_cast<int64_t>(columns.runs.size());
  const Few few{columns.table, columns.each, columns.advance, args};
  if (gates_fit(args)) {
    if (!context.plans()) launch_for<false>(context, few, runs);
    return true;
  }
  const Ops::Product gates[] = {{args.a_proj, args.a}, {args.b_proj, args.b}};
  linear_group(context, args.x, columns.count(), gates, true);
  if (!context.plans()) launch_for<true>(context, few, runs);
  return true;
}

}  // namespace tandem::ops::cuda
