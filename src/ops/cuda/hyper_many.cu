// hyper_inject and hyper_mix of many columns in four steps: the norm, whose values are BF16 from there on, the product
// with `down`, silu, and the product with `up` together with the mix. The state is read twice and written once; nothing
// of [tokens, streams * hidden] but the BF16 values is kept in between.
//
// The last step's blocks take 128 tokens and 32 places of all streams, which they multiply as 128 rows of `up`, 32
// inputs at a time in four stages of shared memory: a warp has 64 tokens and 8 places, and a thread the gates of all
// streams for the places that it mixes.
#include "ops/cuda/dense.h"
#include "ops/cuda/dense_paths.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper_many.cuh"
#include "ops/cuda/hyper_norm.cuh"
#include "ops/cuda/hyper_quick.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/line_stages.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kThreads = 256;
constexpr int kTokens = 128;               // of a block
constexpr int kPlaces = 32;                // of each stream
constexpr int kRows = kStreams * kPlaces;  // of `up`
constexpr int kStep = 32;                  // inputs of a stage: 64 bytes a line
constexpr int kStages = 4;
constexpr int kStageBytes = (kTokens + kRows) * kStep * 2;
constexpr int kSharedBytes = kStages * kStageBytes;

struct UpMix {
  HyperMix mix;
  const float* scales;  // [tokens, streams]
  const uint16_t* low;  // [tokens, lowrank] BF16
  int lowrank;
};

// low = silu(low / streams), rounded.
__global__ void __launch_bounds__(kThreads) silu_rounded_kernel(const float* low, int64_t fours, uint16_t* rounded) {
  follow();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= fours) return;
  const float4 x = load4(low + 4 * i);
  constexpr float kShare = 1.0F / kStreams;
  const __nv_bfloat162 first = __floats2bfloat162_rn(silu(x.x * kShare), silu(x.y * kShare));
  const __nv_bfloat162 second = __floats2bfloat162_rn(silu(x.z * kShare), silu(x.w * kShare));
  reinterpret_cast<uint2*>(rounded)[i] = {pair_of(first.x, first.y), pair_of(second.x, second.y)};
}

// 16 bytes of two lines of each side a thread: lines of tokens, then of rows, whose place is the line's behind those of
// 32 a stream. Tokens behind the last are that one again.
struct Lines {
  const uint16_t* tokens[2];
  const uint16_t* rows[2];
  uint32_t to[2];

  __device__ Lines(const UpMix& args, int64_t first_token, int first_place) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int line = (static_cast<int>(threadIdx.x) + i * kThreads) / 4;
      const int chunk = static_cast<int>(threadIdx.x) % 4;
      const int64_t token = min(first_token + line, args.mix.tokens - 1);
      const int64_t row = line / kPlaces * args.mix.hidden + first_place + line % kPlaces;
      tokens[i] = args.low + token * args.lowrank + 8 * chunk;
      rows[i] = static_cast<const uint16_t*>(args.mix.w.up.data) + row * args.lowrank + 8 * chunk;
      to[i] = place(line, chunk);
    }
  }
  __device__ void copy_rows(uint32_t stage, int input) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) copy_16(stage + kTokens * kStep * 2 + to[i], rows[i] + input);
  }
  __device__ void copy_tokens(uint32_t stage, int input) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) copy_16(stage + to[i], tokens[i] + input);
  }
};

// Of twice 16 tokens and a warp's 8 places of each stream.
using Sums = float[2][kStreams][4];

__device__ inline void multiply_stage(uint32_t tokens, uint32_t rows, int warp_token, int warp_place, Sums (&sums)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) {
    uint32_t x[4][4];
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_matrices(x[i], tokens + place(warp_token + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int line = (2 * j + lane / 16) * kPlaces + warp_place + lane % 8;
      load_matrices(w[j], rows + place(line, 2 * k + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        multiply_bf16(sums[i / 2][i % 2][s], x[i][0], x[i][1], x[i][2], x[i][3], w[s / 2][s % 2 * 2],
                      w[s / 2][s % 2 * 2 + 1]);
      }
    }
  }
}

// x of two places of 32 tokens, of which the thread has every eighth: the mean over streams of sigmoid(gate) * state *
// scale * (1 + w). All loads are under way at once. Tokens behind the last are that one again, and go nowhere.
__device__ inline void mix_pairs(const UpMix& args, int64_t first_token, const float4* scales, int at,
                                 const float2 (&weights)[kStreams], const Sums& gates) {
  const HyperMix& mix = args.mix;
  const int64_t own = first_token + static_cast<int>(threadIdx.x) % 32 / 4;
  float2 state[4][kStreams];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* from = mix.state + min(own + 8 * i, mix.tokens - 1) * (kStreams * mix.hidden) + at;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) state[i][s] = *reinterpret_cast<const float2*>(from + s * mix.hidden);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 scale = scales[8 * i];
    float2 sum = {0, 0};
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const float of_stream = s == 0 ? scale.x : s == 1 ? scale.y : s == 2 ? scale.z : scale.w;
      const float(&gate)[4] = gates[i / 2][s];
      sum.x = fmaf(quick_sigmoid(gate[i % 2 * 2]), state[i][s].x * of_stream * weights[s].x, sum.x);
      sum.y = fmaf(quick_sigmoid(gate[i % 2 * 2 + 1]), state[i][s].y * of_stream * weights[s].y, sum.y);
    }
    constexpr float kShare = 1.0F / kStreams;
    if (own + 8 * i >= mix.tokens) continue;
    *reinterpret_cast<float2*>(mix.x + (own + 8 * i) * mix.hidden + at) = {sum.x * kShare, sum.y * kShare};
  }
}

__global__ void __launch_bounds__(kThreads, 2) up_mix_kernel(const __grid_constant__ UpMix args) {
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ float4 scales[kTokens];
  let_next_start();
  const HyperMix& mix = args.mix;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const auto hidden = static_cast<int>(mix.hidden);
  const int first_place = static_cast<int>(blockIdx.x) * kPlaces;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * kTokens;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_token = warp % 2 * 64;
  const int warp_place = warp / 2 * 8;
  const int steps = args.lowrank / kStep;
  const Lines lines(args, first_token, first_place);
  await_previous();

  if (threadIdx.x < kTokens) {
    const int64_t token = min(first_token + static_cast<int>(threadIdx.x), mix.tokens - 1);
    scales[threadIdx.x] = load4(args.scales + token * kStreams);
  }
  // The state comes into the second-level cache meanwhile: a line of 128 bytes is what a token has of a stream.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int line = static_cast<int>(threadIdx.x) + i * kThreads;
    const int64_t token = min(first_token + line / kStreams, mix.tokens - 1);
    asm volatile(
        "prefetch.global.L2 [%0];" ::"l"(mix.state + (token * kStreams + line % kStreams) * hidden + first_place));
  }
  Sums sums[2] = {};
  run_stages<kStages, kStageBytes>(
      base, steps,
      [&](int step, uint32_t stage) {
        lines.copy_tokens(stage, step * kStep);
        lines.copy_rows(stage, step * kStep);
      },
      [&](uint32_t stage) { multiply_stage(stage, stage + kTokens * kStep * 2, warp_token, warp_place, sums); });

  const int at = first_place + warp_place + lane % 4 * 2;
  float2 weights[kStreams];
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    const float2 w = *reinterpret_cast<const float2*>(mix.w.norm + s * hidden + at);
    weights[s] = {w.x + 1.0F, w.y + 1.0F};
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = warp_token + 32 * half;
    mix_pairs(args, first_token + token, scales + token + lane / 4, at, weights, sums[half]);
  }
  if (mix.inject == nullptr || blockIdx.x != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kStreams; i += kThreads) {
    const int64_t to = first_token * kStreams + i;
    if (to < mix.tokens * kStreams) mix.inject[to] = 2.0F * sigmoid(mix.inject[to] * (1.0F / kStreams));
  }
}

}  // namespace

bool takes_many_columns(const Context& context, const HyperMix& mix) {
  const auto fits = [](const Weight& w) {
    return w.format == WeightFormat::kBF16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
  };
  return context.tensor_cores && context.round_inputs && mix.tokens > kMostFewColumns && takes_norm_and_inject(mix) &&
         fits(mix.w.down) && fits(mix.w.up) && mix.w.down.rows % kStep == 0 && by_fours(mix.hidden, mix.x, mix.factors);
}

void mix_many_columns(const Context& context, const HyperMix& mix) {
  const Scratch::Scope scope(context.scratch);
  const int64_t width = mix.streams * mix.hidden;
  const int64_t lowrank = mix.w.down.rows;
  const bool library = dense_library_loaded();
  auto* normed = context.scratch.take<uint16_t>(mix.tokens * width);
  auto* scales = context.scratch.take<float>(mix.tokens * mix.streams);
  auto* low = context.scratch.take<float>(mix.tokens * lowrank);
  auto* rounded = context.scratch.take<uint16_t>(mix.tokens * lowrank);
  auto* workspace = library ? context.scratch.take<std::byte>(dense::library_workspace()) : nullptr;
  if (library) dense::prepare_library();
  if (context.plans()) return;

  norm_and_inject(context, mix, normed, scales);
  const dense::Bf16Product down{.x = normed,
                                .tokens = mix.tokens,
                                .x_stride = width,
                                .w = static_cast<const uint16_t*>(mix.w.down.data),
                                .rows = lowrank,
                                .w_stride = width,
                                .inputs = width,
                                .d = low,
                                .d_stride = lowrank};
  if (library && dense::library_serves(down)) {
    dense::library_product(context, down, workspace);
  } else {
    dense::tile_product(context, down, mix.w.down, 0);
  }
  const int64_t fours = mix.tokens * lowrank / 4;
  launch_following(context, silu_rounded_kernel, dim3(static_cast<unsigned>(base::ceil_div(fours, kThreads))), kThreads,
                   0, low, fours, rounded);
  TANDEM_CUDA_LAUNCHED("hyper_mix silu");
  const UpMix args{mix, scales, rounded, static_cast<int>(lowrank)};
  allow_shared(up_mix_kernel, kSharedBytes);
  const dim3 grid(static_cast<unsigned>(mix.hidden / kPlaces),
                  static_cast<unsigned>(base::ceil_div(mix.tokens, kTokens)));
  launch_following(context, up_mix_kernel, grid, kThreads, kSharedBytes, args);
  TANDEM_CUDA_LAUNCHED("hyper_mix up");
}

}  // namespace tandem::ops::cuda
