// Norms, gates and the depthwise convolution: one pass over their operands, bound by cache bandwidth.
#pragma once

#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

// Calls body(offset) for whole vectors, then body_part for the last elements through a padded copy. Widths of these
// models are multiples of 16; the padded path keeps other widths correct.
template <typename F>
inline void for_lanes(int64_t count, const F& body) {
  for (int64_t i = 0; i < count; i += 16) body(i, count - i < 16 ? count - i : 16);
}
inline f32x16 load_lanes(const float* p, int64_t lanes) {
  return lanes == 16 ? load(p) : load_part(p, lanes);
}
inline void store_lanes(float* p, f32x16 a, int64_t lanes) {
  if (lanes == 16) {
    store(p, a);
    return;
  }
  float all[16];
  store(all, a);
  std::memcpy(p, all, static_cast<size_t>(lanes) * sizeof(float));
}

inline void round_to_bf16(const float* x, int64_t count, float* out) {
  for_lanes(count, [&](int64_t i, int64_t lanes) {
    uint16_t bits[16];
    store_bf16(bits, load_lanes(x + i, lanes));
    store_lanes(out + i, load_bf16(bits), lanes);
  });
}

inline void rms_norm(const float* x, int64_t width, float eps, float one_plus, const float* weight, float* out) {
  f32x16 squares = zero();
  for_lanes(width, [&](int64_t i, int64_t lanes) {
    const f32x16 v = load_lanes(x + i, lanes);
    squares = fma(v, v, squares);
  });
  const float mean = reduce_add(squares) / static_cast<float>(width) + eps;
  const f32x16 scale = set1(1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean))));
  for_lanes(width, [&](int64_t i, int64_t lanes) {
    const f32x16 w = load_lanes(weight + i, lanes) + set1(one_plus);
    store_lanes(out + i, (load_lanes(x + i, lanes) * scale) * w, lanes);
  });
}

inline void silu_scaled(float* x, int64_t count, float scale) {
  for_lanes(count,
            [&](int64_t i, int64_t lanes) { store_lanes(x + i, silu(load_lanes(x + i, lanes) * set1(scale)), lanes); });
}

inline void sigmoid_scaled(float* x, int64_t count, float scale, float factor) {
  for_lanes(count, [&](int64_t i, int64_t lanes) {
    store_lanes(x + i, set1(factor) * sigmoid(load_lanes(x + i, lanes) * set1(scale)), lanes);
  });
}

inline void silu_multiply(const float* gate, const float* up, int64_t count, float* out) {
  for_lanes(count, [&](int64_t i, int64_t lanes) {
    store_lanes(out + i, silu(load_lanes(gate + i, lanes)) * load_lanes(up + i, lanes), lanes);
  });
}

inline void multiply_gate(float* values, const float* gate, int64_t count, bool sigmoid_gate) {
  for_lanes(count, [&](int64_t i, int64_t lanes) {
    const f32x16 g = load_lanes(gate + i, lanes);
    store_lanes(values + i, load_lanes(values + i, lanes) * (sigmoid_gate ? sigmoid(g) : silu(g)), lanes);
  });
}

inline void add_scaled(float* y, const float* x, float scale, int64_t count) {
  for_lanes(count, [&](int64_t i, int64_t lanes) {
    store_lanes(y + i, fma(load_lanes(x + i, lanes), set1(scale), load_lanes(y + i, lanes)), lanes);
  });
}

inline void mix_streams(const float* gate, const float* x, int64_t streams, int64_t width, float* out) {
  const f32x16 share = set1(1.0F / static_cast<float>(streams));
  for_lanes(width, [&](int64_t i, int64_t lanes) {
    f32x16 sum = zero();
    for (int64_t s = 0; s < streams; ++s) {
      const int64_t at = s * width + i;
      sum = fma(sigmoid(load_lanes(gate + at, lanes)), load_lanes(x + at, lanes), sum);
    }
    store_lanes(out + i, sum * share, lanes);
  });
}

inline void convolve(const float* const* taps, int64_t kernel, const float* weight, int64_t channels, float* out) {
  for_lanes(channels, [&](int64_t i, int64_t lanes) {
    f32x16 sum = zero();
    for (int64_t j = 0; j < kernel; ++j) {
      sum = fma(load_lanes(weight + j * channels + i, lanes), load_lanes(taps[j] + i, lanes), sum);
    }
    store_lanes(out + i, silu(sum), lanes);
  });
}

}  // namespace tandem::ops::host::TANDEM_ISA
