// A block takes a token and keeps it in registers: the state is read once. `inject` comes from the first-level and
// second-level caches, 8 bytes a state's 4; its products stay FP32 (docs/architecture.md, "Numbers").
#include "ops/cuda/bf16_dot.cuh"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper_norm.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/tensor_cores.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kStreams = 4;
constexpr int kThreads = 256;
constexpr int kMostEach = 10;  // times four values of a thread

__device__ inline float4 add4(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
__device__ inline float& part(float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}
__device__ inline float4 block_sum4(float4 x, float4* shared) {
  x = {warp_sum(x.x), warp_sum(x.y), warp_sum(x.z), warp_sum(x.w)};
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float4 sum = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) sum = add4(sum, shared[warp]);
  return sum;
}

// The values of a warp at a time are of one stream: hidden is a multiple of 128. kRounds: `normed` is BF16, `scales`
// [tokens, streams] receives 1 / rms, and what mix.y adds goes to the state on the way.
template <bool kRounds>
__global__ void __launch_bounds__(kThreads) norm_and_inject_kernel(const HyperMix mix, void* normed, float* scales) {
  follow();
  __shared__ float4 squares_shared[kThreads / 32];
  __shared__ float4 products_shared[kThreads / 32];
  const auto hidden = static_cast<int>(mix.hidden);
  const int width = kStreams * hidden;
  const int64_t token = blockIdx.x;
  const float* state = mix.state + token * width;
  const auto* inject = static_cast<const uint16_t*>(mix.w.inject.data);
  const int first = 4 * static_cast<int>(threadIdx.x);
  float4 x[kMostEach];
  float4 squares = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int at = first + i * 4 * kThreads;
    x[i] = at < width ? load4(state + at) : float4{0, 0, 0, 0};
  }
  if (kRounds && mix.y != nullptr) {
#pragma unroll
    for (int i = 0; i < kMostEach; ++i) {
      const int at = first + i * 4 * kThreads;
      if (at >= width) continue;
      const int stream = at / hidden;
      const float4 y = load4(mix.y + token * hidden + (at - stream * hidden));
      const float factor = mix.factors[token * kStreams + stream];
      x[i] = {fmaf(y.x, factor, x[i].x), fmaf(y.y, factor, x[i].y), fmaf(y.z, factor, x[i].z),
              fmaf(y.w, factor, x[i].w)};
      store4(mix.updated + token * width + at, x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int stream = (first + i * 4 * kThreads) / hidden;
    const float sum = fmaf(x[i].w, x[i].w, fmaf(x[i].z, x[i].z, fmaf(x[i].y, x[i].y, x[i].x * x[i].x)));
#pragma unroll
    for (int s = 0; s < kStreams; ++s) part(squares, s) += s == stream ? sum : 0.0F;
  }
  squares = block_sum4(squares, squares_shared);
  const float4 scale = {inverse_rms(squares.x, hidden, mix.eps), inverse_rms(squares.y, hidden, mix.eps),
                        inverse_rms(squares.z, hidden, mix.eps), inverse_rms(squares.w, hidden, mix.eps)};
  if (kRounds && threadIdx.x == 0) store4(scales + token * kStreams, scale);
  float4 products = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int at = first + i * 4 * kThreads;
    if (at >= width) continue;
    const int stream = at / hidden;
    const float own = stream == 0 ? scale.x : stream == 1 ? scale.y : stream == 2 ? scale.z : scale.w;
    const float4 w = load4(mix.w.norm + at);
    const float4 y = {x[i].x * own * (w.x + 1.0F), x[i].y * own * (w.y + 1.0F), x[i].z * own * (w.z + 1.0F),
                      x[i].w * own * (w.w + 1.0F)};
    if constexpr (kRounds) {
      const __nv_bfloat162 low = __floats2bfloat162_rn(y.x, y.y);
      const __nv_bfloat162 high = __floats2bfloat162_rn(y.z, y.w);
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(normed) + token * width + at) = {pair_of(low.x, low.y),
                                                                                        pair_of(high.x, high.y)};
    } else {
      store4(static_cast<float*>(normed) + token * width + at, y);
    }
    if (mix.inject == nullptr) continue;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const uint2 row = __ldg(reinterpret_cast<const uint2*>(inject + s * width + at));
      part(products, s) = dot_bf16(row, y, part(products, s));
    }
  }
  if (mix.inject == nullptr) return;
  products = block_sum4(products, products_shared);
  if (threadIdx.x == 0) store4(mix.inject + token * kStreams, products);
}

}  // namespace

bool takes_norm_and_inject(const HyperMix& mix) {
  return (mix.inject == nullptr || mix.w.inject.format == WeightFormat::kBF16) && mix.streams == kStreams &&
         mix.hidden % 128 == 0 && kStreams * mix.hidden <= 4 * kThreads * kMostEach &&
         by_fours(4, mix.state, mix.y, mix.w.norm, mix.w.inject.data, mix.inject);
}

void norm_and_inject(const Context& context, const HyperMix& mix, float* normed) {
  if (context.plans()) return;
  launch_following(context, norm_and_inject_kernel<false>, dim3(static_cast<unsigned>(mix.tokens)), kThreads, 0, mix,
                   normed, nullptr);
  TANDEM_CUDA_LAUNCHED("hyper_mix norm");
}

void norm_and_inject(const Context& context, const HyperMix& mix, uint16_t* normed, float* scales) {
  if (context.plans()) return;
  launch_following(context, norm_and_inject_kernel<true>, dim3(static_cast<unsigned>(mix.tokens)), kThreads, 0, mix,
                   normed, scales);
  TANDEM_CUDA_LAUNCHED("hyper_mix norm");
}

}  // namespace tandem::ops::cuda
