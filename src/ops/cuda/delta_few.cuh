// What a block of gated DeltaNet of few columns has (delta_few.cu), and what comes before the recurrence: the gates'
// products and the convolution.
#pragma once

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/bf16_dot.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/tensor_cores.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda::delta {

constexpr int kDim = 128;        // of keys and of values
constexpr int kHalf = kDim / 2;  // columns of M of a block
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 16;               // of M of half a warp
constexpr int kRowsStride = kRows + 4;  // floats from one half warp's keys to the next one's: all banks in turn
constexpr int kSlice = 8;               // columns of M whose squares are added up first
constexpr int kSlices = kHalf / kSlice;
constexpr int kTaps = 4;
constexpr int kPast = kTaps - 1;
constexpr int kJobs = 3;  // of a thread: a channel of the queries, one of the keys, one of the values or of the gate
constexpr int kGateParts = 10;                                  // of 32 lanes each
constexpr int64_t kPartsStride = int64_t{4} * kGateParts * 32;  // inputs from one of a lane to its next
constexpr int kMostHeads = 4;                                   // value heads of a key head

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

// Of a column, in shared memory.
struct alignas(16) Column {
  float query[kDim / kRows * kRowsStride];
  float key[kDim / kRows * kRowsStride];
  float value[kHalf];
  float gate[kHalf];  // of the output
  float answer[kHalf];
  float squares[2][kSlices];   // of the output: of both halves of the head, in order of the columns of M
  float parts[2][kGateParts];  // of the sums for a and b
  float decay, beta;
  Factors factors[kWarps];  // each warp's own
};

// Sums over a warp's rows, of each column of M.
struct Sums {
  float keys[kHalf], queries[kHalf];
};

// In shared memory, and behind it the columns.
struct Block {
  float rows[kDim][kHalf];  // of M
  float norm[kHalf];        // the norm's weight
  Sums sums[2][kWarps];     // of columns in turn; where there is one column, the first alone
};
__host__ __device__ inline int64_t block_bytes(int64_t columns) {
  return static_cast<int64_t>(sizeof(Block)) - (columns > 1 ? 0 : static_cast<int64_t>(sizeof(Sums)) * kWarps);
}

// Which part of the work a thread has.
struct Place {
  int thread, lane, warp, half, head;
  __device__ Place()
      : thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(__shfl_sync(kWholeWarp, thread / 32, 0)),
        half(static_cast<int>(blockIdx.x) % 2),
        head(static_cast<int>(blockIdx.y * (gridDim.x / 2) + blockIdx.x / 2)) {}
  // Which kRows rows of M the lane's half of its warp has: halves whose sums are added first lie in a warp, and warps
  // whose sums are added then beside each other.
  __device__ int group() const { return warp / 2 + warp % 2 * 2 + lane / 16 * 4; }
};

// Places in a head's keys, as half warps read them.
__device__ inline int key_place(int i) {
  return i / kRows * kRowsStride + i % kRows;
}

// exp_exact() without its branch, so that several run beside each other.
__device__ inline float exp_beside(float x) {
  const float of_number = exp_bounded(fminf(fmaxf(x, -104.0F), 89.0F));
  return x != x ? x : of_number;
}

__device__ inline void ask_for(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// The convolution of a thread's channels, and the gate of the output.
struct Convolution {
  float past[kJobs][kPast];
  float taps[kJobs][kTaps];
  float first[kJobs];  // inputs of the first column
  const float* from[kJobs];
  int last_stride;  // from a column's input of the last job to the next column's

  __device__ static bool of_gate(const Place& at) { return at.thread >= kHalf; }
  // Channel of qkv.
  __device__ static int channel(const Few& args, const Place& at, int job) {
    const int keys = static_cast<int>(args.net.net.key_heads) * kDim;
    if (job == 2) return 2 * keys + at.head * kDim + at.half * kHalf + at.thread % kHalf;
    return job * keys + static_cast<int>(blockIdx.y) * kDim + at.thread;
  }
  // Where the value of a column goes in shared memory.
  __device__ static float* place(Column& column, const Place& at, int job) {
    return job == 0   ? column.query + key_place(at.thread)
           : job == 1 ? column.key + key_place(at.thread)
                      : column.value + at.thread;  // and the gate's behind the values
  }
  static_assert(offsetof(Column, gate) == offsetof(Column, value) + sizeof(Column::value));

  // Brings what load() loads to the second-level cache.
  __device__ static void ask(const Few& args, const Place& at, const float* history, int channels) {
#pragma unroll
    for (int i = 0; i < kJobs; ++i) {
      const int own = channel(args, at, i);
#pragma unroll
      for (int r = 0; r < kPast; ++r) ask_for(history + r * channels + own);
#pragma unroll
      for (int j = 0; j < kTaps; ++j) ask_for(args.net.conv + j * channels + own);
    }
  }
  __device__ void load(const Few& args, const Place& at, const float* history, int channels) {
#pragma unroll
    for (int i = 0; i < kJobs; ++i) {
      const int own = channel(args, at, i);
#pragma unroll
      for (int r = 0; r < kPast; ++r) past[i][r] = __ldcg(history + r * channels + own);
#pragma unroll
      for (int j = 0; j < kTaps; ++j) taps[i][j] = __ldcg(args.net.conv + j * channels + own);
    }
  }
  // The inputs of some columns from `column` on: where they lie, and, once they are there, asking for them.
  __device__ void aim(const Few& args, const Place& at, int64_t column, int channels) {
    const int64_t width = args.net.net.value_heads * kDim;
#pragma unroll
    for (int i = 0; i < kJobs; ++i) from[i] = args.net.qkv + column * channels + channel(args, at, i);
    if (of_gate(at)) from[2] = args.net.z + column * width + at.head * kDim + at.half * kHalf + at.thread % kHalf;
    last_stride = static_cast<int>(of_gate(at) ? width : channels);
  }
  __device__ void fetch(const Place& at, int count, int channels, Column* columns) {
#pragma unroll
    for (int i = 0; i < kJobs; ++i) first[i] = *from[i];
#pragma unroll 1
    for (int c = 1; c < count; ++c) {
#pragma unroll
      for (int i = 0; i < kJobs; ++i) {
        from[i] += i < 2 ? channels : last_stride;
        copy_4(shared_address(place(columns[c], at, i)), from[i]);
      }
    }
    commit_copies();
  }
  // All columns, whose inputs lie where their values go.
  __device__ void run(const Few& args, const Place& at, int count, Column* columns) {
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
      if (c == 1) await_copies<0>();
      float values[kJobs];
#pragma unroll
      for (int i = 0; i < kJobs; ++i) {
        const float x = c == 0 ? first[i] : *place(columns[c], at, i);
        float sum = taps[i][0] * past[i][0];
        sum = fmaf(taps[i][1], past[i][1], sum);
        sum = fmaf(taps[i][2], past[i][2], sum);
        sum = fmaf(taps[i][3], x, sum);
        past[i][0] = past[i][1], past[i][1] = past[i][2], past[i][2] = x;
        if (i == 2 && of_gate(at)) sum = x;
        const float upper = i == 2 && of_gate(at) && args.net.sigmoid ? 1.0F : sum;
        values[i] = __fdividef(upper, 1.0F + exp_beside(0.0F - sum));
      }
#pragma unroll
      for (int i = 0; i < kJobs; ++i) *place(columns[c], at, i) = values[i];
    }
  }
  // Queries and keys are moved on by one of the blocks that have them.
  __device__ void store(const Few& args, const Place& at, float* history, int channels) const {
#pragma unroll
    for (int i = 0; i < kJobs; ++i) {
      if (i < 2 ? blockIdx.x != 0 : of_gate(at)) continue;
      float* to = history + channel(args, at, i);
#pragma unroll
      for (int r = 0; r < kPast; ++r) to[r * channels] = past[i][r];
    }
  }
};

// The products of the head's gates with columns from `first` on. A warp of either half of the head takes two parts of a
// column's inputs at a time, and leaves its sums in both halves. What it needs at first is asked for before
// `meanwhile`, which may be the kernel's other requests, and awaited behind it.
template <typename Meanwhile>
__device__ inline void multiply_gates(const Few& args, const Place& at, int64_t first, int count, Column* columns,
                                      const Meanwhile& meanwhile) {
  constexpr int kItems = 2;
  constexpr int kLoads = 2;  // of an item, of four inputs a lane
  const int64_t hidden = args.net.a_proj.inputs;
  const auto* a = static_cast<const __nv_bfloat16*>(args.net.a_proj.data) + at.head * hidden;
  const auto* b = static_cast<const __nv_bfloat16*>(args.net.b_proj.data) + at.head * hidden;
  bool begins = true;
  int item = kItems * (2 * at.warp + at.half);
#pragma unroll 1
  do {
    float sums[2 * kItems] = {};
#pragma unroll 1
    for (int64_t from = 0; from < hidden; from += kLoads * kPartsStride) {
      float4 in[kItems][kLoads] = {};
      uint2 weights[2][kItems][kLoads] = {};
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const float* x = args.net.x + (first + (item + j) / kGateParts) * hidden;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int64_t own = from + 4 * ((item + j) % kGateParts * 32 + at.lane) + i * kPartsStride;
          if (item + j >= kGateParts * count || own >= hidden) continue;
          in[j][i] = __ldcg(reinterpret_cast<const float4*>(x + own));
          weights[0][j][i] = __ldcg(reinterpret_cast<const uint2*>(a + own));
          weights[1][j][i] = __ldcg(reinterpret_cast<const uint2*>(b + own));
        }
      }
      if (begins) meanwhile();
      begins = false;
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          sums[2 * j] = dot_bf16(weights[0][j][i], in[j][i], sums[2 * j]);
          sums[2 * j + 1] = dot_bf16(weights[1][j][i], in[j][i], sums[2 * j + 1]);
        }
      }
    }
    const float sum = sum_of_warp(sums);
    const int own = item + at.lane / 16;
    if (own < kGateParts * count && at.lane % 8 < 2) {
      float* place = &columns[own / kGateParts].parts[at.lane / 8 % 2][own % kGateParts];
      asm volatile(
          "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2;}" ::"r"(
              shared_address(place)),
          "r"(blockIdx.x ^ static_cast<unsigned>(at.lane % 8)), "f"(sum)
          : "memory");
    }
    item += kItems * 2 * kWarps;
  } while (item < kGateParts * count);
}

// A thread's gate of a column: even threads have the decay, odd ones beta. `rate` and `bias` are the head's.
__device__ inline void work_out_gates(const Few& args, const Place& at, int64_t first, int count, float rate,
                                      float bias, Column* columns) {
  const int c = at.thread / 2;
  if (c >= count) return;
  const bool of_a = at.thread % 2 == 0;
  float gate = 0;
  if (args.gates_given) {
    const int64_t place = (first + c) * args.net.net.value_heads + at.head;
    gate = of_a ? args.net.a[place] : args.net.b[place];
  } else {
#pragma unroll
    for (int part = 0; part < kGateParts; ++part) gate += columns[c].parts[of_a ? 0 : 1][part];
  }
  const float x = of_a ? gate + bias : 0.0F - gate;
  const float e = exp_exact(x);
  if (of_a) {
    const float softplus = x > 20.0F ? x : log1pf(e);  // delta_gates.cuh
    columns[c].decay = exp_exact(-exp_exact(rate) * softplus);
  } else {
    columns[c].beta = 1.0F / (1.0F + e);
  }
}

// Factors of four columns from `first` on: eight lanes a column, the first of which leaves them for its warp.
__device__ inline Factors work_out_factors(const Place& at, int first, int count, Column* columns) {
  constexpr int kLanes = kDim / kRows;
  const int own = first + at.lane / kLanes;
  const Column& column = columns[own < count ? own : first];
  const int rows = at.lane % kLanes * kRowsStride;
  float keys = 0;
  float queries = 0;
  float both = 0;
#pragma unroll
  for (int r = 0; r < kRows; r += 4) {
    const float4 k = load4(column.key + rows + r);
    const float4 q = load4(column.query + rows + r);
    keys = fmaf(k.w, k.w, fmaf(k.z, k.z, fmaf(k.y, k.y, fmaf(k.x, k.x, keys))));
    queries = fmaf(q.w, q.w, fmaf(q.z, q.z, fmaf(q.y, q.y, fmaf(q.x, q.x, queries))));
    both = fmaf(k.w, q.w, fmaf(k.z, q.z, fmaf(k.y, q.y, fmaf(k.x, q.x, both))));
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    keys += __shfl_xor_sync(kWholeWarp, keys, distance);
    queries += __shfl_xor_sync(kWholeWarp, queries, distance);
    both += __shfl_xor_sync(kWholeWarp, both, distance);
  }
  const float key = rsqrtf(keys + 1e-6F);
  const float query = rsqrtf(static_cast<float>(kDim)) * rsqrtf(queries + 1e-6F);
  const float decay = column.decay;
  return {decay * key, decay * query, column.beta, key, decay, both * key * query};
}
__device__ inline void leave_factors(const Place& at, int first, int count, const Factors& factors, Column* columns) {
  constexpr int kLanes = kDim / kRows;
  const int own = first + at.lane / kLanes;
  if (at.lane % kLanes == 0 && own < count) columns[own].factors[at.warp] = factors;
}

}  // namespace tandem::ops::cuda::delta
