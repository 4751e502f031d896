// hyper_inject and hyper_mix of at most eight columns in two launches.
//
// Eight columns are the width of a tensor-core tile, so that all of them cost what one does, and none sees another. A
// warp takes 16 rows of weights straight from memory in windows of 32 inputs: lane (g, t) loads the 8 inputs from 8 t
// on of rows g and g + 8, and the columns' values are taken in the same order, so that the window is two tiles whose
// inputs are permuted alike on both sides. Weights are asked for before anything else is waited for. The code is kept
// short: it runs once a launch, and fetching it takes as long as the weights do.
//
// What the last block answered is added on the way. `down` needs the sums and leaves the state as it is, for many
// blocks read the same part of it; `up`, of whose blocks each has a part for itself, forms the sums again and keeps
// them.
#include <algorithm>
#include <cooperative_groups.h>

#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper_few.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/mailbox.cuh"
#include "ops/cuda/state_mma.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kColumns = 8;
constexpr int kWindow = 32;
constexpr int kParts = 3;  // BF16 values that together are an FP32 one

// A block multiplies by a slice of all streams: a warp has the same window of each, and a lane four of its values.
constexpr int kDownWarps = 10;
constexpr int kDownThreads = kDownWarps * 32;
constexpr int kSlice = kDownWarps * kWindow;  // places of a stream
constexpr int kMostSlices = 8;                // a cluster has at most eight blocks
// BF16 values from one stream's window [columns, places] to the next in shared memory: two fill all banks.
constexpr int kWindowStride = kColumns * kWindow + kWindow;

constexpr int kUpThreads = kStreams * 32;
constexpr int kUpWindows = 10;
constexpr int kMostLowRank = kUpWindows * kWindow;

struct FewColumns {
  HyperMix mix;
  int lowrank;
  int slices;          // at least two: blocks of no cluster have no mailboxes
  float share;         // 1 / hidden
  int parts;           // BF16 values to an input of `down` and `up`
  float* scales;       // [streams, kColumns]: 1 / rms
  __nv_bfloat16* low;  // [parts, kColumns, kMostLowRank]
};

__device__ inline float add_squares(float4 x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

struct Rows {
  uint4 low, high;  // 8 inputs of rows g and g + 8
};
// Rows `row` and row + 8 at inputs at, at + step, …, whatever is there: rows and inputs outside of the matrix are taken
// to be its last and first ones, and their products are not used or with zeros.
template <int kCount>
__device__ inline void load_windows(const Weight& w, int row, int at, int step, int limit, Rows (&rows)[kCount]) {
  const auto last = static_cast<int>(w.rows) - 1;
  const auto* low = static_cast<const uint16_t*>(w.data) + min(row, last) * w.inputs;
  const auto* high = static_cast<const uint16_t*>(w.data) + min(row + 8, last) * w.inputs;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int from = at + i * step < limit ? at + i * step : 0;
    rows[i].low = __ldg(reinterpret_cast<const uint4*>(low + from));
    rows[i].high = __ldg(reinterpret_cast<const uint4*>(high + from));
  }
}

__device__ inline void multiply_window(const Rows& rows, uint4 column, float (&sum)[4]) {
  mma_bf16(sum, rows.low.x, rows.high.x, rows.low.y, rows.high.y, column.x, column.y);
  mma_bf16(sum, rows.low.z, rows.high.z, rows.low.w, rows.high.w, column.z, column.w);
}
// The sums of a warp's chains into [row][column].
__device__ inline void store_sums(const float (&sums)[4][4], float (*to)[kColumns]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  float sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  *reinterpret_cast<float2*>(&to[g][2 * t]) = {sum[0], sum[1]};
  *reinterpret_cast<float2*>(&to[g + 8][2 * t]) = {sum[2], sum[3]};
}

// The BF16 nearest to four values, and what is missing to these.
__device__ inline uint2 nearest(float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  return {pair_of(low.x, low.y), pair_of(high.x, high.y)};
}
__device__ inline float4 missing(float4 x, uint2 nearest) {
  return {x.x - __uint_as_float(nearest.x << 16), x.y - __uint_as_float(nearest.x & 0xffff0000U),
          x.z - __uint_as_float(nearest.y << 16), x.w - __uint_as_float(nearest.y & 0xffff0000U)};
}

// What is exact elsewhere is off by a few units in the last place here: the exact forms take tenths of a microsecond
// more.
__device__ inline float quick_inverse_rms(float squares, float share, float eps) {
  const float mean = fmaf(squares, share, eps);
  const float about = rsqrtf(mean);
  return fmaf(about * 0.5F, fmaf(-mean * about, about, 1.0F), about);
}
__device__ inline float quick_sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

// The same places of one stream of all columns, for a lane whose stream is lane / 8. Columns that are not there are the
// last one again, so that all loads are under way at once.
template <int kMost>
__device__ inline void load_state(const FewColumns& args, int at, float4 (&x)[kMost]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int stream = lane / 8;
  const auto last = static_cast<int>(args.mix.tokens) - 1;
  const auto hidden = static_cast<int>(args.mix.hidden);
#pragma unroll
  for (int c = 0; c < kMost; ++c) x[c] = load4(args.mix.state + (min(c, last) * kStreams + stream) * hidden + at);
  if (args.mix.y == nullptr) return;
  float4 y[kMost];
#pragma unroll
  for (int c = 0; c < kMost; ++c) y[c] = load4(args.mix.y + min(c, last) * hidden + at);
  const float factors = args.mix.factors[min(lane % 8, last) * kStreams + stream];
#pragma unroll
  for (int c = 0; c < kMost; ++c) {
    const float factor = __shfl_sync(kWholeWarp, factors, stream * kColumns + c);
    x[c] = {fmaf(y[c].x, factor, x[c].x), fmaf(y[c].y, factor, x[c].y), fmaf(y[c].z, factor, x[c].z),
            fmaf(y[c].w, factor, x[c].w)};
  }
}

// Blocks (groups of 16 rows, the last of `inject`; slices, which are a cluster): a slice's products, summed by the
// cluster's first block. kMost columns at most.
template <int kMost>
__global__ void __launch_bounds__(kDownThreads, kMost > 1 ? 2 : 3) down_kernel(const FewColumns args) {
  __shared__ __align__(16) __nv_bfloat16 windows[kDownWarps][kStreams * kWindowStride];
  __shared__ float warp_squares[kDownWarps][32];  // [stream, column], as the next
  __shared__ float slice_squares[kMostSlices][32];
  __shared__ float warp_sums[kDownWarps][16][kColumns];
  __shared__ float slice_sums[kMostSlices][16][kColumns];
  __shared__ Mailbox squares_box, sums_box;
  const auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) {
    squares_box.open(args.slices * 32 * 4);
    sums_box.open(args.slices * 16 * static_cast<int>(args.mix.tokens) * 4);
  }
  cluster.barrier_arrive();
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  const auto tokens = static_cast<int>(args.mix.tokens);
  const bool injects = static_cast<int>(blockIdx.x) == (args.lowrank + 15) / 16;
  const Weight& w = injects ? args.mix.w.inject : args.mix.w.down;
  const int first_row = injects ? 0 : static_cast<int>(blockIdx.x) * 16;
  const int parts = injects ? kParts : args.parts;
  int first = static_cast<int>(blockIdx.y) * kSlice + warp * kWindow;  // of the warp's windows
  const bool here = first < hidden;
  if (!here) first = 0;

  Rows rows[kStreams];
  load_windows(w, first_row + lane / 4, first + 8 * (lane % 4), hidden, static_cast<int>(w.inputs), rows);
  const int stream = lane / 8;
  const int at = first + 4 * (lane % 8);
  const float4 weight = load4(args.mix.w.norm + stream * hidden + at);
  // Slices that are not there add zeros.
  for (int i = static_cast<int>(threadIdx.x) + args.slices * 128; i < kMostSlices * 128; i += kDownThreads) {
    slice_sums[i / 128][i / 8 % 16][i % 8] = 0;
    slice_squares[i / 128][i % 32] = 0;
  }
  cluster.barrier_wait();  // all mailboxes are open
  await_previous();

  float4 x[kMost];
  load_state(args, at, x);
#pragma unroll
  for (int c = 0; c < kMost; ++c) {
    float squares = here ? add_squares(x[c], 0) : 0.0F;
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) squares += __shfl_xor_sync(kWholeWarp, squares, distance);
    if (lane % 8 == 0) warp_squares[warp][stream * kColumns + c] = squares;
  }
  __syncthreads();
  // Warp r tells block r of the slice's squares.
  if (warp < args.slices) {
    float all = warp_squares[0][lane];
#pragma unroll
    for (int other = 1; other < kDownWarps; ++other) all += warp_squares[other][lane];
    squares_box.send(&slice_squares[blockIdx.y][lane], warp, all);
  }
  squares_box.receive();
  float all = slice_squares[0][lane];
#pragma unroll
  for (int other = 1; other < kMostSlices; ++other) all += slice_squares[other][lane];
  const float own_scale = quick_inverse_rms(all, args.share, args.mix.eps);  // of stream and column `lane`
  if (blockIdx.x == 0 && blockIdx.y == 0 && warp == 0) args.scales[lane] = own_scale;

#pragma unroll
  for (int c = 0; c < kMost; ++c) {
    const float scale = __shfl_sync(kWholeWarp, own_scale, stream * kColumns + c);
    x[c] = {x[c].x * scale * (weight.x + 1.0F), x[c].y * scale * (weight.y + 1.0F), x[c].z * scale * (weight.z + 1.0F),
            x[c].w * scale * (weight.w + 1.0F)};
  }
  __nv_bfloat16* values = windows[warp];
  float sums[kStreams][4] = {};
  const bool column_here = here && lane / 4 < tokens;
#pragma unroll 1
  for (int p = 0; p < parts; ++p) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kMost; ++c) {
      const uint2 part = nearest(x[c]);
      *reinterpret_cast<uint2*>(values + stream * kWindowStride + c * kWindow + 4 * (lane % 8)) = part;
      if (parts > 1) x[c] = missing(x[c], part);
    }
    __syncwarp();
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const __nv_bfloat16* from = values + s * kWindowStride + lane * 8;  // of column lane / 4
      multiply_window(rows[s], column_here ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0}, sums[s]);
    }
  }
  store_sums(sums, warp_sums[warp]);
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) % 16;
  const int column = static_cast<int>(threadIdx.x) / 16;
  if (column < tokens) {
    float sum = warp_sums[0][row][column];
#pragma unroll
    for (int other = 1; other < kDownWarps; ++other) sum += warp_sums[other][row][column];
    sums_box.send(&slice_sums[blockIdx.y][row][column], 0, sum);
  }
  if (blockIdx.y != 0 || column >= tokens) return;
  sums_box.receive();
  float sum = slice_sums[0][row][column];
#pragma unroll
  for (int other = 1; other < kMostSlices; ++other) sum += slice_sums[other][row][column];
  if (first_row + row >= w.rows) return;
  sum *= 1.0F / kStreams;
  if (injects) {
    args.mix.inject[column * kStreams + row] = 2.0F * quick_sigmoid(sum);
    return;
  }
  float low = sum * quick_sigmoid(sum);
  for (int p = 0; p < args.parts; ++p) {
    const __nv_bfloat16 part = __float2bfloat16_rn(low);
    args.low[(p * kColumns + column) * kMostLowRank + first_row + row] = part;
    low -= __bfloat162float(part);
  }
}

// Blocks of 16 places in a stream; warp s takes stream s. Weights are loaded before down_kernel has ended.
__global__ void __launch_bounds__(kUpThreads, 3) up_kernel(const FewColumns args) {
  __shared__ float gates[kStreams][16][kColumns];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  const auto tokens = static_cast<int>(args.mix.tokens);
  const int first = static_cast<int>(blockIdx.x) * 16;

  Rows rows[kUpWindows];
  load_windows(args.mix.w.up, warp * hidden + first + lane / 4, 8 * (lane % 4), kWindow, args.lowrank, rows);
  const int row = static_cast<int>(threadIdx.x) % 16;
  const int column = static_cast<int>(threadIdx.x) / 16;
  float weights[kStreams] = {};
#pragma unroll
  for (int stream = 0; stream < kStreams; ++stream) weights[stream] = args.mix.w.norm[stream * hidden + first + row];
  await_previous();

  float x[kStreams] = {};
  float factors[kStreams] = {};
  float scales[kStreams] = {};
  float y = 0;
  const int from = column * hidden + first + row;
  if (column < tokens) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) x[s] = args.mix.state[from + (column * (kStreams - 1) + s) * hidden];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) scales[s] = args.scales[s * kColumns + column];
    if (args.mix.y != nullptr) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) factors[s] = args.mix.factors[column * kStreams + s];
      y = args.mix.y[from];
    }
  }
  float sums[4][4] = {};
#pragma unroll 1
  for (int p = 0; p < args.parts; ++p) {
    const __nv_bfloat16* low = args.low + (p * kColumns + lane / 4) * kMostLowRank + 8 * (lane % 4);
    uint4 columns[kUpWindows];
#pragma unroll
    for (int i = 0; i < kUpWindows; ++i) {
      const bool here = lane / 4 < tokens && i * kWindow + 8 * (lane % 4) < args.lowrank;
      columns[i] = here ? *reinterpret_cast<const uint4*>(low + i * kWindow) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kUpWindows; ++i) multiply_window(rows[i], columns[i], sums[i % 4]);
  }
  store_sums(sums, gates[warp]);
  __syncthreads();
  if (column >= tokens) return;
  float mixed = 0;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    if (args.mix.y != nullptr) {
      x[s] = fmaf(y, factors[s], x[s]);
      args.mix.updated[from + (column * (kStreams - 1) + s) * hidden] = x[s];
    }
    mixed = fmaf(quick_sigmoid(gates[s][row][column]), x[s] * scales[s] * (weights[s] + 1.0F), mixed);
  }
  args.mix.x[from] = mixed * (1.0F / kStreams);
}

}  // namespace

bool takes_few_columns(const HyperMix& mix) {
  const auto fits = [](const Weight& w) {
    return w.format == WeightFormat::kBF16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
  };
  return mix.tokens <= kColumns && mix.streams == kStreams && mix.hidden % kWindow == 0 &&
         mix.hidden <= kMostSlices * kSlice && mix.w.down.rows % 8 == 0 && mix.w.down.rows <= kMostLowRank &&
         by_fours(mix.hidden, mix.state, mix.w.norm, mix.y) && fits(mix.w.down) && fits(mix.w.up) &&
         (mix.inject == nullptr || fits(mix.w.inject));
}

void mix_few_columns(const Context& context, const HyperMix& mix) {
  const Scratch::Scope scope(context.scratch);
  const int parts = context.round_inputs ? 1 : kParts;
  const FewColumns args{.mix = mix,
                        .lowrank = static_cast<int>(mix.w.down.rows),
                        .slices = static_cast<int>(std::max<int64_t>(base::ceil_div(mix.hidden, kSlice), 2)),
                        .share = 1.0F / static_cast<float>(mix.hidden),
                        .parts = parts,
                        .scales = context.scratch.take<float>(kStreams * kColumns),
                        .low = context.scratch.take<__nv_bfloat16>(parts * kColumns * kMostLowRank)};
  if (context.plans()) return;
  const auto slices = static_cast<unsigned>(args.slices);
  const dim3 grid(static_cast<unsigned>(base::ceil_div(args.lowrank, 16) + (mix.inject != nullptr ? 1 : 0)), slices);
  const auto down = mix.tokens == 1 ? down_kernel<1> : mix.tokens <= 4 ? down_kernel<4> : down_kernel<kColumns>;
  launch_following_clusters(context, dim3(1, slices), down, grid, kDownThreads, 0, args);
  TANDEM_CUDA_LAUNCHED("hyper_mix down");
  launch_following(context, up_kernel, dim3(static_cast<unsigned>(mix.hidden / 16)), kUpThreads, 0, args);
  TANDEM_CUDA_LAUNCHED("hyper_mix up");
}

}  // namespace tandem::ops::cuda
