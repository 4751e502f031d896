// hyper_mix of at most eight columns in two launches.
//
// Eight columns are the width of a tensor-core tile, so that all of them cost what one does, and none sees another. A
// warp takes 16 rows of weights straight from memory in windows of 32 inputs: lane (g, t) loads the 8 inputs from 8 t
// on of rows g and g + 8, and the columns' values are taken in the same order, so that the window is two tiles whose
// inputs are permuted alike on both sides. Weights are asked for before anything else is waited for. The code is kept
// short: it runs once a launch, and fetching it takes as long as the weights do.
#include <cooperative_groups.h>
#include <span>

#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper_few.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/state_mma.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kColumns = 8;
constexpr int kWindow = 32;
constexpr int kParts = 3;  // BF16 values that together are an FP32 one

// A slice of a stream is what a block multiplies by: four inputs a thread.
constexpr int kDownWarps = 10;
constexpr int kDownThreads = kDownWarps * 32;
constexpr int kSlice = 4 * kDownThreads;
constexpr int kDownWindows = kSlice / kWindow / kDownWarps;  // of a warp
constexpr int kMostSlices = 2;                               // of a stream: a cluster has at most eight blocks
// BF16 values from one column to the next in shared memory: two columns' windows fill all banks.
constexpr int kSliceStride = kSlice + kWindow;

constexpr int kUpThreads = kStreams * 32;
constexpr int kUpWindows = 10;
constexpr int kMostLowRank = kUpWindows * kWindow;
constexpr int kLowStride = kMostLowRank + kWindow;

struct FewColumns {
  HyperMix mix;
  int lowrank;
  int slices;     // of a stream
  int parts;      // BF16 values to an input of `down` and `up`
  float* scales;  // [streams, kColumns]: 1 / rms
  float* low;     // [kColumns, lowrank]
};

__device__ inline float add_squares(float4 x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

// Splits four values over the parts of each: part p lies `stride` behind part p - 1.
__device__ inline void store_parts(__nv_bfloat16* to, int stride, int parts, float4 x) {
#pragma unroll 1
  for (int p = 0; p < parts; ++p) {
    const __nv_bfloat16 a = __float2bfloat16_rn(x.x);
    const __nv_bfloat16 b = __float2bfloat16_rn(x.y);
    const __nv_bfloat16 c = __float2bfloat16_rn(x.z);
    const __nv_bfloat16 d = __float2bfloat16_rn(x.w);
    *reinterpret_cast<uint2*>(to + p * stride) = {pair_of(a, b), pair_of(c, d)};
    x = {x.x - __bfloat162float(a), x.y - __bfloat162float(b), x.z - __bfloat162float(c), x.w - __bfloat162float(d)};
  }
}

struct Rows {
  uint4 low, high;  // 8 inputs of rows g and g + 8
};
// Rows `row` and row + 8 at the input `at`, whatever is there: rows and inputs outside of the matrix are taken to be
// its last and first ones, and their products are not used or with zeros.
template <int kCount, int kStep>
__device__ inline void load_windows(const Weight& w, int row, int at, int begin, int width, Rows (&rows)[kCount]) {
  const auto last = static_cast<int>(w.rows) - 1;
  const auto* low = static_cast<const uint16_t*>(w.data) + min(row, last) * w.inputs + begin;
  const auto* high = static_cast<const uint16_t*>(w.data) + min(row + 8, last) * w.inputs + begin;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int from = at + i * kStep < width ? at + i * kStep : 0;
    rows[i].low = __ldg(reinterpret_cast<const uint4*>(low + from));
    rows[i].high = __ldg(reinterpret_cast<const uint4*>(high + from));
  }
}

// The products of a warp's windows with the columns' values: window i begins at first + i * kStep.
template <int kCount, int kStep>
__device__ inline void multiply_windows(const Rows (&rows)[kCount], const __nv_bfloat16* values, int stride, int parts,
                                        int tokens, int first, int width, float (*sums)[kColumns]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  float sum[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int p = 0; p < parts; ++p) {
    const __nv_bfloat16* mine = values + (p * kColumns + g) * stride + first + 8 * t;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool here = g < tokens && first + i * kStep < width;
      const uint4 column = here ? *reinterpret_cast<const uint4*>(mine + i * kStep) : uint4{0, 0, 0, 0};
      mma_bf16(sum, rows[i].low.x, rows[i].high.x, rows[i].low.y, rows[i].high.y, column.x, column.y);
      mma_bf16(sum, rows[i].low.z, rows[i].high.z, rows[i].low.w, rows[i].high.w, column.z, column.w);
    }
  }
  *reinterpret_cast<float2*>(&sums[g][2 * t]) = {sum[0], sum[1]};
  *reinterpret_cast<float2*>(&sums[g + 8][2 * t]) = {sum[2], sum[3]};
}

// 1 / rms of a stream for every column, by a warp each.
__device__ inline void find_scales(const FewColumns& args, int stream, float* scales) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  if (warp < static_cast<int>(args.mix.tokens)) {
    const float* x = args.mix.state + (warp * kStreams + stream) * hidden;
    float squares = 0;
#pragma unroll 10
    for (int i = 4 * (static_cast<int>(threadIdx.x) % 32); i < hidden; i += 128) {
      squares = add_squares(load4(x + i), squares);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) scales[warp] = inverse_rms(squares, hidden, args.mix.eps);
  }
}

// Blocks (groups of 16 rows, the last of `inject`; slices of streams, which are a cluster): a slice's products, summed
// by the cluster's first block.
__global__ void __launch_bounds__(kDownThreads, 2) down_kernel(const FewColumns args) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* values = reinterpret_cast<__nv_bfloat16*>(shared);  // [parts][kColumns][kSliceStride]
  __shared__ float scales[kColumns];
  __shared__ float warp_sums[kDownWarps][16][kColumns];
  __shared__ float slice_sums[kStreams * kMostSlices][16][kColumns];
  const auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_arrive();  // the first block is there before anything is written to it
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  const auto tokens = static_cast<int>(args.mix.tokens);
  const bool injects = static_cast<int>(blockIdx.x) == (args.lowrank + 15) / 16;
  const Weight& w = injects ? args.mix.w.inject : args.mix.w.down;
  const int first_row = injects ? 0 : static_cast<int>(blockIdx.x) * 16;
  const int stream = static_cast<int>(blockIdx.y) / args.slices;
  const int slice = static_cast<int>(blockIdx.y) % args.slices;
  const int begin = stream * hidden + slice * kSlice;
  const int width = min(kSlice, hidden - slice * kSlice);
  const int parts = injects ? kParts : args.parts;

  Rows rows[kDownWindows];
  load_windows<kDownWindows, kDownWarps * kWindow>(w, first_row + static_cast<int>(threadIdx.x) % 32 / 4,
                                                   warp * kWindow + 8 * (static_cast<int>(threadIdx.x) % 4), begin,
                                                   width, rows);
  await_previous();
  find_scales(args, stream, scales);
  __syncthreads();
  if (const int at = 4 * static_cast<int>(threadIdx.x); at < width) {
    const float4 weight = load4(args.mix.w.norm + begin + at);
#pragma unroll 2
    for (int c = 0; c < tokens; ++c) {
      const float4 x = load4(args.mix.state + c * kStreams * hidden + begin + at);
      const float scale = scales[c];
      store_parts(values + c * kSliceStride + at, kColumns * kSliceStride, parts,
                  {x.x * scale * (weight.x + 1.0F), x.y * scale * (weight.y + 1.0F), x.z * scale * (weight.z + 1.0F),
                   x.w * scale * (weight.w + 1.0F)});
    }
  }
  if (blockIdx.x == 0 && slice == 0 && static_cast<int>(threadIdx.x) < tokens) {
    args.scales[stream * kColumns + threadIdx.x] = scales[threadIdx.x];
  }
  __syncthreads();
  multiply_windows<kDownWindows, kDownWarps * kWindow>(rows, values, kSliceStride, parts, tokens, warp * kWindow, width,
                                                       warp_sums[warp]);
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) % 16;
  const int column = static_cast<int>(threadIdx.x) / 16;
  cluster.barrier_wait();
  if (column < tokens) {
    float all = warp_sums[0][row][column];
#pragma unroll
    for (int other = 1; other < kDownWarps; ++other) all += warp_sums[other][row][column];
    *cluster.map_shared_rank(&slice_sums[blockIdx.y][row][column], 0) = all;
  }
  cluster.sync();
  if (blockIdx.y != 0 || column >= tokens || first_row + row >= w.rows) return;
  float all = slice_sums[0][row][column];
  for (int other = 1; other < kStreams * args.slices; ++other) all += slice_sums[other][row][column];
  const float share = 1.0F / kStreams;
  if (injects) {
    args.mix.inject[column * kStreams + row] = 2.0F * sigmoid(all * share);
  } else {
    args.low[column * args.lowrank + first_row + row] = silu(all * share);
  }
}

// Blocks of 16 places in a stream; warp s takes stream s. Weights are loaded before down_kernel has ended.
__global__ void __launch_bounds__(kUpThreads, 3) up_kernel(const FewColumns args) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* values = reinterpret_cast<__nv_bfloat16*>(shared);  // [parts][kColumns][kLowStride]
  __shared__ float gates[kStreams][16][kColumns];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto hidden = static_cast<int>(args.mix.hidden);
  const auto tokens = static_cast<int>(args.mix.tokens);
  const int first = static_cast<int>(blockIdx.x) * 16;
  const float share = 1.0F / kStreams;

  Rows rows[kUpWindows];
  load_windows<kUpWindows, kWindow>(args.mix.w.up, warp * hidden + first + static_cast<int>(threadIdx.x) % 32 / 4,
                                    8 * (static_cast<int>(threadIdx.x) % 4), 0, args.lowrank, rows);
  const int row = static_cast<int>(threadIdx.x) % 16;
  const int column = static_cast<int>(threadIdx.x) / 16;
  float x[kStreams] = {};
  float weights[kStreams] = {};
#pragma unroll
  for (int stream = 0; stream < kStreams; ++stream) weights[stream] = args.mix.w.norm[stream * hidden + first + row];
  await_previous();
  if (column < tokens) {
#pragma unroll
    for (int stream = 0; stream < kStreams; ++stream) {
      x[stream] = args.mix.state[column * kStreams * hidden + stream * hidden + first + row];
    }
  }
  const int width = (args.lowrank + kWindow - 1) / kWindow * kWindow;
#pragma unroll 2
  for (int item = static_cast<int>(threadIdx.x); item < tokens * (kMostLowRank / 4); item += kUpThreads) {
    const int at = 4 * (item % (kMostLowRank / 4));
    const int c = item / (kMostLowRank / 4);
    if (at >= width) continue;
    const float4 low = at < args.lowrank ? load4(args.low + c * args.lowrank + at) : float4{0, 0, 0, 0};
    store_parts(values + c * kLowStride + at, kColumns * kLowStride, args.parts, low);
  }
  __syncthreads();
  multiply_windows<kUpWindows, kWindow>(rows, values, kLowStride, args.parts, tokens, 0, width, gates[warp]);
  __syncthreads();
  if (column >= tokens) return;
  float mixed = 0;
#pragma unroll
  for (int stream = 0; stream < kStreams; ++stream) {
    const float normed = x[stream] * args.scales[stream * kColumns + column] * (weights[stream] + 1.0F);
    mixed = fmaf(sigmoid(gates[stream][row][column]), normed, mixed);
  }
  args.mix.x[column * hidden + first + row] = mixed * share;
}

// Launches with one attribute.
template <typename Kernel>
void launch(const Context& context, Kernel* kernel, dim3 grid, int threads, int shared_bytes,
            std::span<cudaLaunchAttribute> attributes, const FewColumns& args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = context.stream;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  TANDEM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args));
}

}  // namespace

bool takes_few_columns(const HyperMix& mix) {
  const auto fits = [](const Weight& w) {
    return w.format == WeightFormat::kBF16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
  };
  return mix.tokens <= kColumns && mix.streams == kStreams && mix.hidden % kWindow == 0 &&
         mix.hidden <= kMostSlices * kSlice && mix.w.down.rows % 8 == 0 && mix.w.down.rows <= kMostLowRank &&
         by_fours(mix.hidden, mix.state, mix.w.norm) && fits(mix.w.down) && fits(mix.w.up) &&
         (mix.inject == nullptr || fits(mix.w.inject));
}

void mix_few_columns(const Context& context, const HyperMix& mix) {
  const Scratch::Scope scope(context.scratch);
  FewColumns args{.mix = mix,
                  .lowrank = static_cast<int>(mix.w.down.rows),
                  .slices = static_cast<int>(base::ceil_div(mix.hidden, kSlice)),
                  .parts = context.round_inputs ? 1 : kParts,
                  .scales = context.scratch.take<float>(kStreams * kColumns),
                  .low = context.scratch.take<float>(kColumns * mix.w.down.rows)};
  if (context.plans()) return;
  constexpr int kValue = static_cast<int>(sizeof(__nv_bfloat16));
  const int down_bytes = (mix.inject != nullptr ? kParts : args.parts) * kColumns * kSliceStride * kValue;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         kParts * kColumns * kSliceStride * kValue));
  const auto slices = static_cast<unsigned>(kStreams * args.slices);
  const dim3 grid(static_cast<unsigned>(base::ceil_div(args.lowrank, 16) + (mix.inject != nullptr ? 1 : 0)), slices);
  cudaLaunchAttribute attributes[2] = {following(), {}};
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = 1;
  attributes[1].val.clusterDim.y = slices;
  attributes[1].val.clusterDim.z = 1;
  launch(context, down_kernel, grid, kDownThreads, down_bytes, attributes, args);
  launch(context, up_kernel, dim3(static_cast<unsigned>(mix.hidden / 16)), kUpThreads,
         args.parts * kColumns * kLowStride * kValue, std::span(attributes).first(1), args);
}

}  // namespace tandem::ops::cuda
