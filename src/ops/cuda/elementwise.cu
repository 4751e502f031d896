#include "ops/cuda/elementwise.h"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = 256;

struct Sum {
  __device__ float operator()(float y, float x) const { return y + x; }
};
struct SiluTimes {
  __device__ float operator()(float gate, float up) const { return silu(gate) * up; }
};

template <typename F>
__device__ float4 map4(F f, float4 a, float4 b) {
  return {f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)};
}

// out[i] = f(a[i], b[i]); `out` may be `a`.
template <typename F, bool kFours>
__global__ void __launch_bounds__(kThreads) map_kernel(const float* a, const float* b, int64_t count, float* out) {
  follow();
  const F f;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    if constexpr (kFours) {
      store4(out + 4 * i, map4(f, load4(a + 4 * i), load4(b + 4 * i)));
    } else {
      out[i] = f(a[i], b[i]);
    }
  }
}

template <typename F>
void map(const Context& context, const float* a, const float* b, int64_t count, float* out, const char* name) {
  if (context.plans() || count == 0) return;
  const bool fours = by_fours(count, a, b, out);
  const int64_t items = fours ? count / 4 : count;
  const unsigned blocks = grid_blocks(context, items, kThreads);
  if (fours) {
    launch_following(context, map_kernel<F, true>, dim3(blocks), kThreads, 0, a, b, items, out);
  } else {
    launch_following(context, map_kernel<F, false>, dim3(blocks), kThreads, 0, a, b, items, out);
  }
  TANDEM_CUDA_LAUNCHED(name);
}

__device__ inline float add_squares(float4 x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

struct Norm {
  const float* x;
  int64_t groups;
  int64_t width;
  const float* weight;
  float eps;
  float* out;
  const float* addend = nullptr;
  float* sum = nullptr;  // x + addend; may be x
};

// One block a group of at most 4 * kBlock * kEach values, which stay in registers; a multiple of four. kAdds: the
// values are x + addend.
template <int kBlock, int kEach, bool kAdds>
__global__ void __launch_bounds__(kBlock) rms_norm_kernel(const Norm args) {
  let_next_start();
  __shared__ float sums[kBlock / 32];
  const int64_t width = args.width;
  const int64_t first = blockIdx.x * width;
  const float* weight = args.weight + blockIdx.x % args.groups * width;
  const float4 zero = {0, 0, 0, 0};
  float4 values[kEach];
  float4 addends[kEach];
  float4 scales[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = 4 * (i * kBlock + static_cast<int64_t>(threadIdx.x));
    scales[i] = at < width ? load4(weight + at) : zero;
  }
  await_previous();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = 4 * (i * kBlock + static_cast<int64_t>(threadIdx.x));
    values[i] = at < width ? load4(args.x + first + at) : zero;
    if (kAdds) addends[i] = at < width ? load4(args.addend + first + at) : zero;
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = 4 * (i * kBlock + static_cast<int64_t>(threadIdx.x));
    if constexpr (kAdds) {
      values[i] = map4(Sum(), values[i], addends[i]);
      if (at < width) store4(args.sum + first + at, values[i]);
    }
    squares = add_squares(values[i], squares);
  }
  const float scale = inverse_rms(block_sum<kBlock>(squares, sums), width, args.eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = 4 * (i * kBlock + static_cast<int64_t>(threadIdx.x));
    if (at >= width) continue;
    store4(args.out + first + at,
           {values[i].x * scale * (scales[i].x + 1.0F), values[i].y * scale * (scales[i].y + 1.0F),
            values[i].z * scale * (scales[i].z + 1.0F), values[i].w * scale * (scales[i].w + 1.0F)});
  }
}

// Any width; the second read of the values comes from the first-level cache.
__global__ void __launch_bounds__(kThreads) rms_norm_any_kernel(const Norm args) {
  follow();
  __shared__ float sums[kThreads / 32];
  const float* in = args.x + blockIdx.x * args.width;
  const float* scales = args.weight + blockIdx.x % args.groups * args.width;
  float* out = args.out + blockIdx.x * args.width;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < args.width; i += kThreads) squares = fmaf(in[i], in[i], squares);
  const float scale = inverse_rms(block_sum<kThreads>(squares, sums), args.width, args.eps);
  for (int64_t i = threadIdx.x; i < args.width; i += kThreads) out[i] = in[i] * scale * (scales[i] + 1.0F);
}

// The width alone chooses the kernel: it decides the order of the sum.
template <bool kAdds>
bool norm_by_fours(const Context& context, const Norm& args, unsigned blocks) {
  if (!by_fours(args.width, args.x, args.weight, args.out, args.addend, args.sum)) return false;
  const auto launch = [&](auto kernel, unsigned threads) {
    launch_following(context, kernel, dim3(blocks), dim3(threads), 0, args);
  };
  if (args.width <= 4 * 256 * 3) {
    launch(rms_norm_kernel<256, 3, kAdds>, 256);
  } else if (args.width <= 4 * 512 * 3) {
    launch(rms_norm_kernel<512, 3, kAdds>, 512);
  } else if (args.width <= 4 * 1024 * 3) {
    launch(rms_norm_kernel<1024, 3, kAdds>, 1024);
  } else {
    return false;
  }
  return true;
}

// Every thread the same places of all streams: y[t, s, i] = fma(x[t, i], factors[t, s], y[t, s, i]), and a factor of 1,
// which rounds as the sum does, without `factors`.
template <bool kFours>
__global__ void __launch_bounds__(kThreads) add_to_streams_kernel(float* y, const float* x, const float* factors,
                                                                  int64_t tokens, int64_t streams, int64_t hidden) {
  follow();
  constexpr int kEach = kFours ? 4 : 1;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t width = hidden / kEach;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * width; i += step) {
    const int64_t t = i / width;
    const int64_t at = i % width * kEach;
    float* row = y + t * streams * hidden + at;
    for (int64_t s = 0; s < streams; ++s) {
      const float factor = factors != nullptr ? factors[t * streams + s] : 1.0F;
      const auto sum = [&](float old, float v) { return fmaf(v, factor, old); };
      if constexpr (kFours) {
        store4(row + s * hidden, map4(sum, load4(row + s * hidden), load4(x + t * hidden + at)));
      } else {
        row[s * hidden] = sum(row[s * hidden], x[t * hidden + at]);
      }
    }
  }
}

template <bool kFours>
__global__ void __launch_bounds__(kThreads)
    concatenate_kernel(const float* left, const float* right, int64_t tokens, int64_t width, float* out) {
  follow();
  constexpr int kEach = kFours ? 4 : 1;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t part = width / kEach;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < tokens * part; i += step) {
    const int64_t t = i / part;
    const int64_t at = i % part * kEach;
    if constexpr (kFours) {
      store4(out + 2 * t * width + at, load4(left + t * width + at));
      store4(out + (2 * t + 1) * width + at, load4(right + t * width + at));
    } else {
      out[2 * t * width + at] = left[t * width + at];
      out[(2 * t + 1) * width + at] = right[t * width + at];
    }
  }
}

__device__ inline float activation(float x, bool sigmoid_gate) {
  return sigmoid_gate ? sigmoid(x) : silu(x);
}

// One warp a head of at most 128 values, a multiple of four.
__global__ void __launch_bounds__(128) gated_norm_kernel(float* x, const float* z, int64_t heads, int64_t dim,
                                                         const float* weight, float eps, bool sigmoid_gate) {
  follow();
  const int64_t head = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (head >= heads) return;
  const int64_t at = 4 * (threadIdx.x % 32);
  const bool here = at < dim;
  const float4 zero = {0, 0, 0, 0};
  const float4 v = here ? load4(x + head * dim + at) : zero;
  const float4 g = here ? load4(z + head * dim + at) : zero;
  const float4 w = here ? load4(weight + at) : zero;
  const float scale = inverse_rms(warp_sum(add_squares(v, 0.0F)), dim, eps);
  if (!here) return;
  store4(x + head * dim + at,
         {v.x * scale * w.x * activation(g.x, sigmoid_gate), v.y * scale * w.y * activation(g.y, sigmoid_gate),
          v.z * scale * w.z * activation(g.z, sigmoid_gate), v.w * scale * w.w * activation(g.w, sigmoid_gate)});
}

__global__ void __launch_bounds__(128) gated_norm_any_kernel(float* x, const float* z, int64_t heads, int64_t dim,
                                                             const float* weight, float eps, bool sigmoid_gate) {
  follow();
  const int64_t head = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (head >= heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* values = x + head * dim;
  float squares = 0;
  for (int64_t i = lane; i < dim; i += 32) squares = fmaf(values[i], values[i], squares);
  const float scale = inverse_rms(warp_sum(squares), dim, eps);
  for (int64_t i = lane; i < dim; i += 32) {
    values[i] = values[i] * scale * weight[i] * activation(z[head * dim + i], sigmoid_gate);
  }
}

}  // namespace

void rms_norm(const Context& context, const float* x, int64_t tokens, int64_t groups, int64_t width,
              const float* weight, float eps, float* out) {
  if (context.plans() || tokens * groups == 0) return;
  const auto blocks = static_cast<unsigned>(tokens * groups);
  const Norm args{x, groups, width, weight, eps, out};
  if (!norm_by_fours<false>(context, args, blocks))
    launch_following(context, rms_norm_any_kernel, dim3(blocks), kThreads, 0, args);
  TANDEM_CUDA_LAUNCHED("rms_norm");
}

void add_rms_norm(const Context& context, float* y, const float* x, int64_t tokens, int64_t width, const float* weight,
                  float eps, float* out) {
  if (context.plans() || tokens == 0) return;
  const Norm args{y, 1, width, weight, eps, out, x, y};
  if (!norm_by_fours<true>(context, args, static_cast<unsigned>(tokens))) {
    add(context, y, x, tokens * width);
    rms_norm(context, y, tokens, 1, width, weight, eps, out);
    return;
  }
  TANDEM_CUDA_LAUNCHED("add_rms_norm");
}

void add(const Context& context, float* y, const float* x, int64_t count) {
  map<Sum>(context, y, x, count, y, "add");
}

void hyper_inject(const Context& context, float* state, const float* y, const float* inject, int64_t tokens,
                  int64_t streams, int64_t hidden) {
  if (context.plans() || tokens == 0) return;
  const bool fours = by_fours(hidden, state, y);
  const auto kernel = fours ? add_to_streams_kernel<true> : add_to_streams_kernel<false>;
  const int64_t items = tokens * hidden / (fours ? 4 : 1);
  launch_following(context, kernel, dim3(grid_blocks(context, items, kThreads)), kThreads, 0, state, y, inject, tokens,
                   streams, hidden);
  TANDEM_CUDA_LAUNCHED("add_to_streams");
}

void add_to_streams(const Context& context, float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) {
  hyper_inject(context, y, x, nullptr, tokens, streams, hidden);
}

void concatenate(const Context& context, const float* left, const float* right, int64_t tokens, int64_t width,
                 float* out) {
  if (context.plans() || tokens == 0) return;
  if (by_fours(width, left, right, out)) {
    launch_following(context, concatenate_kernel<true>, dim3(grid_blocks(context, tokens * width / 4, kThreads)),
                     kThreads, 0, left, right, tokens, width, out);
  } else {
    launch_following(context, concatenate_kernel<false>, dim3(grid_blocks(context, tokens * width, kThreads)), kThreads,
                     0, left, right, tokens, width, out);
  }
  TANDEM_CUDA_LAUNCHED("concatenate");
}

void silu_multiply(const Context& context, const float* gate, const float* up, int64_t count, float* y) {
  map<SiluTimes>(context, gate, up, count, y, "silu_multiply");
}

void gated_norm(const Context& context, float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim,
                const float* weight, float eps, bool sigmoid) {
  if (context.plans() || tokens == 0) return;
  const auto blocks = static_cast<unsigned>((tokens * heads + 3) / 4);
  if (dim <= 128 && by_fours(dim, x, z, weight)) {
    launch_following(context, gated_norm_kernel, dim3(blocks), dim3(128), 0, x, z, tokens * heads, dim, weight, eps,
                     sigmoid);
  } else {
    launch_following(context, gated_norm_any_kernel, dim3(blocks), dim3(128), 0, x, z, tokens * heads, dim, weight, eps,
                     sigmoid);
  }
  TANDEM_CUDA_LAUNCHED("gated_norm");
}

}  // namespace tandem::ops::cuda
