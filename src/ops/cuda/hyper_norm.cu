// A block takes a token and keeps it in registers: the state is read once. `inject` comes from the first-level and
// second-level caches, 8 bytes a state's 4; its products stay FP32 (docs/architecture.md, "Numbers").
#include "ops/cuda/follow.cuh"
#include "ops/cuda/hyper_norm.cuh"
#include "ops/cuda/lanes.cuh"

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
__device__ inline float dot_bf16(uint2 w, float4 x, float sum) {
  sum = fmaf(__uint_as_float(w.x << 16), x.x, sum);
  sum = fmaf(__uint_as_float(w.x & 0xffff0000U), x.y, sum);
  sum = fmaf(__uint_as_float(w.y << 16), x.z, sum);
  return fmaf(__uint_as_float(w.y & 0xffff0000U), x.w, sum);
}

// The values of a warp at a time are of one stream: hidden is a multiple of 128.
__global__ void __launch_bounds__(kThreads) norm_and_inject_kernel(const HyperMix mix, float* normed) {
  follow();
  __shared__ float4 squares_shared[kThreads / 32];
  __shared__ float4 products_shared[kThreads / 32];
  const auto hidden = static_cast<int>(mix.hidden);
  const int width = kStreams * hidden;
  const float* state = mix.state + static_cast<int64_t>(blockIdx.x) * width;
  float* out = normed + static_cast<int64_t>(blockIdx.x) * width;
  const auto* inject = static_cast<const uint16_t*>(mix.w.inject.data);
  const int first = 4 * static_cast<int>(threadIdx.x);
  float4 x[kMostEach];
  float4 squares = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int at = first + i * 4 * kThreads;
    x[i] = at < width ? load4(state + at) : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int stream = (first + i * 4 * kThreads) / hidden;
    const float sum = fmaf(x[i].w, x[i].w, fmaf(x[i].z, x[i].z, fmaf(x[i].y, x[i].y, x[i].x * x[i].x)));
#pragma unroll
    for (int s = 0; s < kStreams; ++s) part(squares, s) += s == stream ? sum : 0.0F;
  }
  squares = block_sum4(squares, squares_shared);
  float4 products = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    const int at = first + i * 4 * kThreads;
    if (at >= width) continue;
    const int stream = at / hidden;
    const float sum = stream == 0 ? squares.x : stream == 1 ? squares.y : stream == 2 ? squares.z : squares.w;
    const float scale = inverse_rms(sum, hidden, mix.eps);
    const float4 w = load4(mix.w.norm + at);
    const float4 y = {x[i].x * scale * (w.x + 1.0F), x[i].y * scale * (w.y + 1.0F), x[i].z * scale * (w.z + 1.0F),
                      x[i].w * scale * (w.w + 1.0F)};
    store4(out + at, y);
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const uint2 row = __ldg(reinterpret_cast<const uint2*>(inject + s * width + at));
      part(products, s) = dot_bf16(row, y, part(products, s));
    }
  }
  products = block_sum4(products, products_shared);
  if (threadIdx.x == 0) store4(mix.inject + static_cast<int64_t>(blockIdx.x) * kStreams, products);
}

}  // namespace

bool takes_norm_and_inject(const HyperMix& mix) {
  return mix.inject != nullptr && mix.w.inject.format == WeightFormat::kBF16 && mix.streams == kStreams &&
         mix.hidden % 128 == 0 && kStreams * mix.hidden <= 4 * kThreads * kMostEach &&
         by_fours(4, mix.state, mix.w.norm, mix.w.inject.data, mix.inject);
}

void norm_and_inject(const Context& context, const HyperMix& mix, float* normed) {
  if (context.plans()) return;
  launch_following(context, norm_and_inject_kernel, dim3(static_cast<unsigned>(mix.tokens)), kThreads, 0, mix, normed);
  TANDEM_CUDA_LAUNCHED("hyper_mix norm");
}

}  // namespace tandem::ops::cuda
