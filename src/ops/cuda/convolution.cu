// The depthwise causal convolution and the history that it keeps in a slot.
//
// A thread owns a channel of a run. Where a run has few columns it also moves the history on, behind its own reads, so
// that one launch does both. In longer runs blocks share the tokens, and a second launch moves the history.
#include "ops/cuda/elementwise.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 64;
constexpr int kFewTokens = 8;
constexpr int64_t kTileTokens = 16;

struct Convolution {
  const Run* runs;
  int64_t each;
  const float* x;
  int64_t channels;
  const float* weight;
  int64_t kernel;
  int64_t dilation;
  int64_t history;  // bytes
  bool advance;
  float* out;
};

__device__ float* history_of(const Convolution& args, const Run& run) {
  return reinterpret_cast<float*>(run.slot + args.history);
}

template <bool kAdd>
__device__ void finish(float* out, bool here, float sum) {
  if constexpr (kAdd) {
    if (here) *out += silu(sum);
  } else {
    *out = here ? silu(sum) : 0.0F;
  }
}

// Blocks (channels, runs) for four taps and runs of at most kFewTokens: a channel's whole past and present is in
// registers.
template <int kDilation, bool kAdd>
__global__ void __launch_bounds__(kThreads) convolve_few_kernel(const Convolution args) {
  follow();
  constexpr int kTaps = 4;
  constexpr int kPast = (kTaps - 1) * kDilation;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= args.channels) return;
  const Run& run = args.runs[blockIdx.y];
  const auto tokens = static_cast<int>(run.tokens);
  float* past = history_of(args, run) + channel;
  const int64_t first = blockIdx.y * args.each * args.channels + channel;
  float weights[kTaps];
  float x[kPast + kFewTokens];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) weights[j] = args.weight[j * args.channels + channel];
#pragma unroll
  for (int t = 0; t < kFewTokens; ++t) x[kPast + t] = t < tokens ? args.x[first + t * args.channels] : 0.0F;
#pragma unroll
  for (int r = 0; r < kPast; ++r) x[r] = past[r * args.channels];
#pragma unroll
  for (int t = 0; t < kFewTokens; ++t) {
    if (t >= args.each) break;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum = fmaf(weights[j], x[t + j * kDilation], sum);
    finish<kAdd>(args.out + first + t * args.channels, t < tokens, sum);
  }
  if (!args.advance) return;
  // Registers have no run-time index.
#pragma unroll
  for (int moved = 1; moved <= kFewTokens; ++moved) {
    if (moved != tokens) continue;
#pragma unroll
    for (int r = 0; r < kPast; ++r) past[r * args.channels] = x[r + moved];
  }
}

// The input of a channel `at` tokens into the run, below 0 from its history; `rows` is the history's length.
__device__ inline float input_at(const Convolution& args, const float* x, const float* past, int64_t rows, int64_t at) {
  return at >= 0 ? x[at * args.channels] : past[(rows + at) * args.channels];
}

// Blocks (channels, tiles of tokens, runs).
template <bool kAdd>
__global__ void __launch_bounds__(kThreads) convolve_many_kernel(const Convolution args) {
  follow();
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= args.channels) return;
  const Run& run = args.runs[blockIdx.z];
  const int64_t first = blockIdx.z * args.each * args.channels + channel;
  const float* x = args.x + first;
  const float* past = history_of(args, run) + channel;
  const int64_t taps = args.kernel;
  const int64_t rows = (taps - 1) * args.dilation;
  float weights[kMostTaps];
#pragma unroll
  for (int64_t j = 0; j < taps; ++j) weights[j] = args.weight[j * args.channels + channel];
  const int64_t begin = blockIdx.y * kTileTokens;
  const int64_t end = min(begin + kTileTokens, args.each);
#pragma unroll 4
  for (int64_t t = begin; t < end; ++t) {
    float sum = 0;
#pragma unroll
    for (int64_t j = 0; j < taps; ++j) {
      sum = fmaf(weights[j], input_at(args, x, past, rows, t - (taps - 1 - j) * args.dilation), sum);
    }
    finish<kAdd>(args.out + first + t * args.channels, t < run.tokens, sum);
  }
}

// Blocks (channels by 4 * kThreads, tiles of tokens, runs): four taps, four channels a thread.
template <bool kAdd>
__global__ void __launch_bounds__(kThreads) convolve_fours_kernel(const Convolution args) {
  follow();
  constexpr int kTaps = 4;
  const int64_t channel = 4 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (channel >= args.channels) return;
  const Run& run = args.runs[blockIdx.z];
  const int64_t first = blockIdx.z * args.each * args.channels + channel;
  const float* past = history_of(args, run) + channel;
  const int64_t rows = (kTaps - 1) * args.dilation;
  float4 weights[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) weights[j] = load4(args.weight + j * args.channels + channel);
  const int64_t begin = blockIdx.y * kTileTokens;
  const int64_t end = min(begin + kTileTokens, args.each);
#pragma unroll 4
  for (int64_t t = begin; t < end; ++t) {
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const int64_t at = t - (kTaps - 1 - j) * args.dilation;
      const float4 v = load4(at >= 0 ? args.x + first + at * args.channels : past + (rows + at) * args.channels);
      const float4 w = weights[j];
      sum = {fmaf(w.x, v.x, sum.x), fmaf(w.y, v.y, sum.y), fmaf(w.z, v.z, sum.z), fmaf(w.w, v.w, sum.w)};
    }
    const bool here = t < run.tokens;
    float* out = args.out + first + t * args.channels;
    float4 y = kAdd ? load4(out) : float4{0, 0, 0, 0};
    finish<kAdd>(&y.x, here, sum.x);
    finish<kAdd>(&y.y, here, sum.y);
    finish<kAdd>(&y.z, here, sum.z);
    finish<kAdd>(&y.w, here, sum.w);
    store4(out, y);
  }
}

// Rows move in ascending order, so each is read before it is written.
__global__ void __launch_bounds__(kThreads) move_history_kernel(const Convolution args) {
  follow();
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (channel >= args.channels) return;
  const Run& run = args.runs[blockIdx.y];
  const float* x = args.x + blockIdx.y * args.each * args.channels + channel;
  float* past = history_of(args, run) + channel;
  const int64_t rows = (args.kernel - 1) * args.dilation;
  for (int64_t r = 0; r < rows; ++r) past[r * args.channels] = input_at(args, x, past, rows, r + run.tokens - rows);
}

unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>(base::ceil_div(count, each));
}

template <bool kAdd>
void launch_many(const Context& context, const Convolution& args, unsigned runs) {
  const unsigned tiles = blocks_of(args.each, kTileTokens);
  const dim3 grid(blocks_of(args.channels, kThreads), tiles, runs);
  // A slot begins at a multiple of 16 bytes.
  if (args.kernel == 4 && args.history % 16 == 0 && by_fours(args.channels, args.x, args.weight, args.out)) {
    launch_following(context, convolve_fours_kernel<kAdd>, dim3(blocks_of(args.channels, 4 * kThreads), tiles, runs),
                     kThreads, 0, args);
  } else {
    launch_following(context, convolve_many_kernel<kAdd>, grid, kThreads, 0, args);
  }
  TANDEM_CUDA_LAUNCHED("convolve_many");
  if (!args.advance) return;
  launch_following(context, move_history_kernel, dim3(grid.x, runs), kThreads, 0, args);
  TANDEM_CUDA_LAUNCHED("move_history");
}

template <bool kAdd>
void convolve(const Context& context, const Columns& columns, const Convolution& args) {
  if (args.kernel > kMostTaps)
    base::internal_error("cuda", "a convolution of {} taps, {} are served", args.kernel, kMostTaps);
  if (context.plans() || columns.count() == 0) return;
  const auto runs = static_cast<unsigned>(columns.runs.size());
  const dim3 grid(blocks_of(args.channels, kThreads), runs);
  if (args.kernel == 4 && args.dilation == 1 && args.each <= kFewTokens) {
    launch_following(context, convolve_few_kernel<1, kAdd>, grid, kThreads, 0, args);
  } else if (args.kernel == 4 && args.dilation == 3 && args.each <= kFewTokens) {
    launch_following(context, convolve_few_kernel<3, kAdd>, grid, kThreads, 0, args);
  } else {
    launch_many<kAdd>(context, args, runs);
    return;
  }
  TANDEM_CUDA_LAUNCHED("convolve_few");
}

}  // namespace

void causal_conv(const Context& context, const Columns& columns, const float* x, int64_t channels, const float* weight,
                 int64_t kernel, int64_t dilation, int64_t history, float* out) {
  convolve<false>(context, columns,
                  {columns.table, columns.each, x, channels, weight, kernel, dilation, history, columns.advance, out});
}

void add_causal_conv(const Context& context, const Columns& columns, const float* x, int64_t channels,
                     const float* weight, int64_t kernel, int64_t dilation, int64_t history, float* out) {
  convolve<true>(context, columns,
                 {columns.table, columns.each, x, channels, weight, kernel, dilation, history, columns.advance, out});
}

}  // namespace tandem::ops::cuda
