// Gated DeltaNet between its projections, for few columns, in one launch: the gates' products, the convolution, the
// recurrence and the gated norm.
//
// A block has half the columns of one value head's matrix M, for one run: a multiprocessor stores 32 bytes a cycle, so
// the state wants to lie on many. Its first eight warps take eight columns each, with all rows, in registers: 8 groups
// of 4 lanes, a group 16 rows, a lane 2 columns. What comes before the recurrence is all warps': a thread convolves one
// channel of the head's queries, keys and values, and adds up its part of the gates' two dot products. The two last
// warps then work out what scales a column's step, while the others form its sums over the rows. The recurrence is that
// of delta_steps.cu:
//   recalled = decay M^T k,  delta = beta (v - recalled),  out = decay M^T q + (k . q) delta,  M = decay M + k delta^T.
// The blocks of a key head's value heads are a cluster. Halves of a head send each other the squares that the norm
// wants; and each block convolves the queries and keys again, whose history one of them moves on when all have read it.
//
// Slots, run tables and weights are read before the launches before this one have ended: within a step nothing else
// writes this layer's part of a slot, and steps do not overlap (follow.cuh). What remains is the chain from the
// projections to the output, bound by latencies; loops over tokens are kept rolled, for instructions are fetched too.
//
// Sums are over a column alone, in an order that the shape decides.
#include "ops/cuda/delta_gates.cuh"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kDim = 128;        // of keys and of values
constexpr int kHalf = kDim / 2;  // columns of a block
constexpr int kStateWarps = 8;
constexpr int kSlice = kHalf / kStateWarps;  // columns of a warp
constexpr int kThreads = 2 * kDim + kHalf;   // a channel each
constexpr int kWarps = kThreads / 32;
constexpr int kTaps = 4;
constexpr int kPast = kTaps - 1;
constexpr int kRows = 16;               // of a group of four lanes
constexpr int kRowsStride = kRows + 4;  // floats from one group's keys to the next one's: all banks in turn
constexpr int kTokens = static_cast<int>(kMostFewColumns);
constexpr int kPassTokens = 32 / kSlice;  // a warp's output at once: lane l has column l % kSlice of token l / kSlice
constexpr int kGateLoads = 4;             // of four inputs, by each thread
constexpr int64_t kMostHidden = int64_t{4} * kGateLoads * kThreads;
constexpr int64_t kMostCluster = 8;  // on every card

struct Few {
  const Run* runs;
  int64_t each;
  bool advance;
  bool gates_given;
  Ops::GatedDeltaNet net;
};

// What a column's step needs beside its vectors: these make k and q unit vectors, and q as long as 1 / sqrt(kDim).
struct alignas(16) Factors {
  float recalled, answer;  // decay and the factor of k and of q
  float beta, key;
  float decay, both;  // both: k . q
};

// Rows of a gate's matrix, as threads take them.
using GateWeights = uint2[kGateLoads][kThreads];

struct Shared {
  float key[kTokens][kDim / kRows * kRowsStride];
  float query[kTokens][kDim / kRows * kRowsStride];
  float value[kTokens][kHalf];
  float answer[kTokens][kHalf];
  float squares[kTokens][2][kStateWarps];  // of the output: this half's and the other's, in order of the columns
  float gates[kTokens][2][kWarps];         // sums for a and b
  float z[kTokens][kHalf];
  GateWeights gate_weights[2];  // of a and b
  Factors factors[kTokens];
  uint64_t squares_sent;  // a barrier in shared memory: completed by what the other half sends
};

// Of memory that this kernel may read before the launches before it have ended.
__device__ inline float2 load2_early(const float* p) {
  return __ldcg(reinterpret_cast<const float2*>(p));
}

template <int kBytes>
__device__ inline void copy_async(void* shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(from), "n"(kBytes)
               : "memory");
}
// Of what this thread has copied so.
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Places in a head's keys, as the groups of lanes read them.
__device__ inline int key_place(int i) {
  return i / kRows * kRowsStride + i % kRows;
}

// Sum over the groups of lanes.
__device__ inline float rows_sum(float x) {
#pragma unroll
  for (int distance = 16; distance >= 4; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
  return x;
}

// Named barriers of a block; 0 is __syncthreads'.
__device__ inline void arrive_for_factors() {
  asm volatile("barrier.arrive 1, %0;" ::"n"(kThreads) : "memory");
}
__device__ inline void wait_for_factors() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kThreads) : "memory");
}
__device__ inline void meet_state_warps() {
  asm volatile("barrier.sync 2, %0;" ::"n"(32 * kStateWarps) : "memory");
}

__device__ inline void prepare_squares(Shared& shared, int tokens) {
  const uint32_t barrier = shared_address(&shared.squares_sent);
  const int bytes = tokens * kStateWarps * static_cast<int>(sizeof(float));
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// To the same place in the shared memory of block `rank` of the cluster.
__device__ inline void send_square(Shared& shared, const float* place, unsigned rank, float value) {
  asm volatile(
      "{.reg .b32 there, barrier;"
      "mapa.shared::cluster.u32 there, %0, %2;"
      "mapa.shared::cluster.u32 barrier, %1, %2;"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [barrier];}" ::"r"(
          shared_address(place)),
      "r"(shared_address(&shared.squares_sent)), "r"(rank), "r"(__float_as_uint(value))
      : "memory");
}
__device__ inline void await_squares(Shared& shared) {
  asm volatile(
      "{.reg .pred done;"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], 0;"
      "@!done bra again;}" ::"r"(shared_address(&shared.squares_sent))
      : "memory");
}

// Two rounds of the cluster's barrier: all blocks run and have prepared; all have read their history.
__device__ inline void arrive_prepared() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
}
__device__ inline void arrive_read() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void await_cluster() {
  asm volatile("barrier.cluster.wait;" ::: "memory");
}

// A channel of the convolution.
struct Channel {
  float past[kPast];
  float taps[kTaps];

  __device__ void load_past(const Few& args, const Run& run, int64_t channel, int64_t channels) {
    const float* history = reinterpret_cast<const float*>(run.slot + args.net.history) + channel;
#pragma unroll
    for (int r = 0; r < kPast; ++r) past[r] = __ldcg(history + r * channels);
#pragma unroll
    for (int j = 0; j < kTaps; ++j) taps[j] = args.net.conv[j * channels + channel];
  }
  // Its value at the token whose input is x.
  __device__ float step(float x) {
    float sum = taps[0] * past[0];
    sum = fmaf(taps[1], past[1], sum);
    sum = fmaf(taps[2], past[2], sum);
    sum = fmaf(taps[3], x, sum);
    past[0] = past[1], past[1] = past[2], past[2] = x;
    return __fdividef(sum, 1.0F + exp_exact(0.0F - sum));
  }
  __device__ void store_past(const Few& args, const Run& run, int64_t channel, int64_t channels) const {
    float* history = reinterpret_cast<float*>(run.slot + args.net.history) + channel;
#pragma unroll
    for (int r = 0; r < kPast; ++r) history[r * channels] = past[r];
  }
};

// A thread's inputs of one token: of its channel, and of the gates' products.
struct Inputs {
  float x;
  float4 gates[kGateLoads];
};
__device__ inline void load_inputs(const Few& args, int64_t token, int64_t channels, int64_t channel, Inputs& in) {
  in.x = args.net.qkv[token * channels + channel];
  const int64_t hidden = args.net.a_proj.inputs;
  const float* row = args.net.x + token * hidden;
#pragma unroll
  for (int i = 0; i < kGateLoads; ++i) {
    const int at = 4 * (i * kThreads + static_cast<int>(threadIdx.x));
    in.gates[i] = !args.gates_given && at < hidden ? load4(row + at) : float4{0, 0, 0, 0};
  }
}

// A thread fetches its part of the head's row of a gate's matrix, and reads it itself. Zeros behind the end.
__device__ inline void fetch_gate(const Weight& w, int64_t head, GateWeights& weights) {
  const auto* row = static_cast<const __nv_bfloat16*>(w.data) + head * w.inputs;
#pragma unroll
  for (int i = 0; i < kGateLoads; ++i) {
    const int at = 4 * (i * kThreads + static_cast<int>(threadIdx.x));
    if (at < w.inputs) {
      copy_async<8>(&weights[i][threadIdx.x], row + at);
    } else {
      weights[i][threadIdx.x] = {0, 0};
    }
  }
}
__device__ inline float dot(const GateWeights& weights, const Inputs& in) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kGateLoads; ++i) {
    const uint2 w = weights[i][threadIdx.x];
    sum = fmaf(__uint_as_float(w.x << 16), in.gates[i].x, sum);
    sum = fmaf(__uint_as_float(w.x & 0xffff0000), in.gates[i].y, sum);
    sum = fmaf(__uint_as_float(w.y << 16), in.gates[i].z, sum);
    sum = fmaf(__uint_as_float(w.y & 0xffff0000), in.gates[i].w, sum);
  }
  return sum;
}

// By the two last warps: eight lanes a token.
__device__ inline void work_out_factors(const Few& args, int64_t first, int tokens, int64_t head, float minus_rate,
                                        float dt_bias, Shared& shared) {
  const int t = (static_cast<int>(threadIdx.x) - 32 * kStateWarps) / 8;
  const int eighth = static_cast<int>(threadIdx.x) % 8;
  const bool of_a = eighth % 2 == 0;
  float gate = 0;
  if (args.gates_given) {
    const int64_t at = (first + (t < tokens ? t : 0)) * args.net.net.value_heads + head;
    gate = of_a ? args.net.a[at] : args.net.b[at];
  } else {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) gate += shared.gates[t][of_a ? 0 : 1][w];
  }
  float keys = 0;
  float queries = 0;
  float both = 0;
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 k = load4(&shared.key[t][eighth * kRowsStride + r]);
    const float4 q = load4(&shared.query[t][eighth * kRowsStride + r]);
    keys = fmaf(k.w, k.w, fmaf(k.z, k.z, fmaf(k.y, k.y, fmaf(k.x, k.x, keys))));
    queries = fmaf(q.w, q.w, fmaf(q.z, q.z, fmaf(q.y, q.y, fmaf(q.x, q.x, queries))));
    both = fmaf(k.w, q.w, fmaf(k.z, q.z, fmaf(k.y, q.y, fmaf(k.x, q.x, both))));
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    keys += __shfl_xor_sync(kWholeWarp, keys, distance);
    queries += __shfl_xor_sync(kWholeWarp, queries, distance);
    both += __shfl_xor_sync(kWholeWarp, both, distance);
  }
  // Even lanes have the decay, odd ones beta.
  const float x = of_a ? gate + dt_bias : 0.0F - gate;
  const float e = exp_exact(x);
  const float softplus = x > 20.0F ? x : log1pf(e);  // delta_gates.cuh
  const float mine = of_a ? exp_exact(minus_rate * softplus) : 1.0F / (1.0F + e);
  const float beta = __shfl_xor_sync(kWholeWarp, mine, 1);
  if (eighth > 0) return;
  const float key = rsqrtf(keys + 1e-6F);
  const float query = rsqrtf(static_cast<float>(kDim)) * rsqrtf(queries + 1e-6F);
  shared.factors[t] = {mine * key, mine * query, beta, key, mine, both * key * query};
}

// A lane's part of a warp's columns of M, kRows rows of two columns.
using Part = float2[kRows];

// Sums over the rows of M k (x, y) and M q (z, w). key and query are the lane's group's.
__device__ inline float4 multiply(const Part& state, const float* key, const float* query) {
  float4 sums = {0, 0, 0, 0};
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 k4 = load4(key + r);
    const float4 q4 = load4(query + r);
    const float k[4] = {k4.x, k4.y, k4.z, k4.w};
    const float q[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.x = fmaf(state[r + i].x, k[i], sums.x);
      sums.y = fmaf(state[r + i].y, k[i], sums.y);
      sums.z = fmaf(state[r + i].x, q[i], sums.z);
      sums.w = fmaf(state[r + i].y, q[i], sums.w);
    }
  }
  return {rows_sum(sums.x), rows_sum(sums.y), rows_sum(sums.z), rows_sum(sums.w)};
}

// M = decay M + k change^T.
__device__ inline void move_on(Part& state, const float* key, float decay, float2 change) {
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 k4 = load4(key + r);
    const float k[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      state[r + i].x = fmaf(change.x, k[i], state[r + i].x * decay);
      state[r + i].y = fmaf(change.y, k[i], state[r + i].y * decay);
    }
  }
}

// The recurrence over a run's tokens, for one warp's columns; leaves outputs and their squares in `shared`.
__device__ inline void run_steps(int tokens, int half, Part& state, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int rows = lane / 4 * kRowsStride;
  const int column = warp * kSlice + 2 * (lane % 4);
#pragma unroll 1
  for (int t = 0; t < tokens; ++t) {
    const float4 sums = multiply(state, shared.key[t] + rows, shared.query[t] + rows);
    if (t == 0) wait_for_factors();
    const Factors factors = shared.factors[t];
    const float2 value = *reinterpret_cast<const float2*>(shared.value[t] + column);
    const float2 delta = {factors.beta * (value.x - sums.x * factors.recalled),
                          factors.beta * (value.y - sums.y * factors.recalled)};
    const float2 answer = {fmaf(delta.x, factors.both, sums.z * factors.answer),
                           fmaf(delta.y, factors.both, sums.w * factors.answer)};
    move_on(state, shared.key[t] + rows, factors.decay, {delta.x * factors.key, delta.y * factors.key});
    float squares = fmaf(answer.x, answer.x, answer.y * answer.y);
    squares += __shfl_xor_sync(kWholeWarp, squares, 1);
    squares += __shfl_xor_sync(kWholeWarp, squares, 2);
    if (lane < 4) *reinterpret_cast<float2*>(shared.answer[t] + column) = answer;
    float* place = &shared.squares[t][half][warp];
    if (lane == 0) *place = squares;
    if (lane == 4) send_square(shared, place, blockIdx.x ^ 1, squares);
  }
}

// A warp's columns of the output, from `out` on at its lane's first token; norm: the lane's weight.
__device__ inline void write_output(const Few& args, int tokens, float norm, float* out, Shared& shared) {
  const int column = static_cast<int>(threadIdx.x) / 32 * kSlice + static_cast<int>(threadIdx.x) % kSlice;
  const int64_t stride = kPassTokens * args.net.net.value_heads * kDim;
#pragma unroll 1
  for (int t = static_cast<int>(threadIdx.x) % 32 / kSlice; t < args.each; t += kPassTokens, out += stride) {
    float y = 0;
    if (t < tokens) {
      const float z = shared.z[t][column];
      const float gate = __fdividef(args.net.sigmoid ? 1.0F : z, 1.0F + exp_exact(0.0F - z));
      float squares = 0;
#pragma unroll
      for (int w = 0; w < 2 * kStateWarps; ++w) squares += shared.squares[t][w / kStateWarps][w % kStateWarps];
      y = shared.answer[t][column] * inverse_rms(squares, kDim, args.net.eps) * norm * gate;
    }
    *out = y;
  }
}

// Blocks (halves of the value heads of a key head, key heads, runs), the first of which are a cluster.
__global__ void __launch_bounds__(kThreads, 2) delta_few_kernel(const Few args) {
  let_next_start();
  __shared__ Shared shared;
  const Ops::DeltaNet& net = args.net.net;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int half = static_cast<int>(blockIdx.x) % 2;
  const int64_t head = static_cast<int64_t>(blockIdx.y) * (gridDim.x / 2) + blockIdx.x / 2;
  const int64_t channels = (2 * net.key_heads + net.value_heads) * kDim;
  const Run run = args.runs[blockIdx.z];
  const auto tokens = static_cast<int>(run.tokens);
  const int64_t first = blockIdx.z * args.each;
  const bool has_state = warp < kStateWarps;
  const int out_column = warp % kStateWarps * kSlice + lane % kSlice;
  const int64_t out_at = ((first + lane / kSlice) * net.value_heads + head) * kDim + half * kHalf + out_column;
  const float norm = args.net.norm[half * kHalf + out_column];
  if (tokens == 0) {  // the run of the whole cluster
    await_previous();
    if (has_state) write_output(args, tokens, norm, net.out + out_at, shared);
    return;
  }

  // The state; the channel's past and weights; the gates' weights.
  if (thread == 0) prepare_squares(shared, tokens);
  arrive_prepared();
  const bool is_value = thread >= 2 * kDim;
  const int64_t keys = net.key_heads * kDim;
  const int64_t channel = is_value ? 2 * keys + head * kDim + half * kHalf + thread - 2 * kDim
                                   : thread / kDim * keys + static_cast<int64_t>(blockIdx.y) * kDim + thread % kDim;
  float* matrix = reinterpret_cast<float*>(run.slot + net.state) + (head * kDim + lane / 4 * kRows) * kDim +
                  half * kHalf + warp * kSlice + 2 * (lane % 4);
  Part state;
  if (has_state) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) state[r] = load2_early(matrix + r * kDim);
  }
  Channel mine;
  mine.load_past(args, run, channel, channels);
  if (!args.gates_given) {
    fetch_gate(args.net.a_proj, head, shared.gate_weights[0]);
    fetch_gate(args.net.b_proj, head, shared.gate_weights[1]);
  }
  const float minus_rate = -exp_exact(net.a_log[head]);
  const float dt_bias = net.dt_bias[head];
  await_copies();

  await_previous();
  Inputs in;
  load_inputs(args, first, channels, channel, in);
  if (has_state) {
#pragma unroll 1
    for (int t = lane / kSlice; t < tokens; t += kPassTokens) {
      copy_async<4>(&shared.z[t][out_column], args.net.z + out_at + (t - lane / kSlice) * net.value_heads * kDim);
    }
  }
  float* convolved = is_value        ? shared.value[0] + thread - 2 * kDim
                     : thread < kDim ? shared.query[0] + key_place(thread)
                                     : shared.key[0] + key_place(thread - kDim);
  constexpr int kKeyStride = kDim / kRows * kRowsStride;
#pragma unroll 1
  for (int t = 0; t < tokens; ++t) {
    const float x = in.x;
    float2 sums = {dot(shared.gate_weights[0], in), dot(shared.gate_weights[1], in)};
    if (t + 1 < tokens) load_inputs(args, first + t + 1, channels, channel, in);
    convolved[t * (is_value ? kHalf : kKeyStride)] = mine.step(x);
    sums = warp_sum(sums);
    if (lane == 0) {
      shared.gates[t][0][warp] = sums.x;
      shared.gates[t][1][warp] = sums.y;
    }
  }
  await_copies();
  await_cluster();
  __syncthreads();
  arrive_read();  // every thread of this block has used its part of the history

  if (has_state) {
    run_steps(tokens, half, state, shared);
    if (args.advance) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) *reinterpret_cast<float2*>(matrix + r * kDim) = state[r];
    }
    meet_state_warps();
    await_squares(shared);
    write_output(args, tokens, norm, net.out + out_at, shared);
  } else {
    work_out_factors(args, first, tokens, head, minus_rate, dt_bias, shared);
    arrive_for_factors();
  }
  await_cluster();
  if (args.advance && (is_value || blockIdx.x == 0)) mine.store_past(args, run, channel, channels);
}

bool gates_fit(const Ops::GatedDeltaNet& args) {
  const auto fits = [&](const Weight& w) {
    return w.format == WeightFormat::kBF16 && w.inputs % 4 == 0 && w.inputs <= kMostHidden && by_fours(4, w.data);
  };
  return fits(args.a_proj) && fits(args.b_proj) && by_fours(4, args.x);
}

void launch(const Context& context, const Few& args, int64_t runs) {
  const Ops::DeltaNet& net = args.net.net;
  const auto blocks = static_cast<unsigned>(2 * net.value_heads / net.key_heads);
  const dim3 grid(blocks, static_cast<unsigned>(net.key_heads), static_cast<unsigned>(runs));
  launch_following_clusters(context, dim3(blocks), delta_few_kernel, grid, dim3(kThreads), 0, args);
}

bool few_serves(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args) {
  const Ops::DeltaNet& net = args.net;
  return context.tensor_cores && columns.count() <= kMostFewColumns && net.key_dim == kDim && net.value_dim == kDim &&
         args.kernel == kTaps && 2 * net.value_heads / net.key_heads <= kMostCluster && net.state % 16 == 0;
}

}  // namespace

bool gated_delta_net(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args) {
  if (!few_serves(context, columns, args)) return false;
  if (columns.count() == 0) return true;
  const Few few{columns.table, columns.each, columns.advance, !gates_fit(args), args};
  if (few.gates_given) {
    const Ops::Product gates[] = {{args.a_proj, args.a}, {args.b_proj, args.b}};
    linear_group(context, args.x, columns.count(), gates, true);
  }
  if (!context.plans()) launch(context, few, static_cast<int64_t>(columns.runs.size()));
  return true;
}

}  // namespace tandem::ops::cuda
