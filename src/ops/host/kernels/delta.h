// Gated DeltaNet of one value head, as single steps and as a chunk of 64 tokens (docs/architecture.md, "Models").
//
// Per step the state M [key_dim, value_dim] is read and written once: 2 * key_dim * value_dim * 4 bytes from L2 and
// 3 * key_dim * value_dim FMAs; bound by L2 bandwidth. The chunk form reads and writes the state once for 64 tokens and
// is bound by FMAs. Both normalise query and key first: x * rsqrt(sum(x^2) + 1e-6), the query also * key_dim^-1/2.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

inline constexpr int64_t kDeltaChunk = 64;
inline constexpr int64_t kLargestKeyDim = 256;

// Scalar e^x through the same lanes.
inline float exp1(float x) {
  float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

inline float dot(const float* a, const float* b, int64_t count) {
  f32x16 sum = zero();
  for (int64_t i = 0; i < count; i += 16) sum = fma(load(a + i), load(b + i), sum);
  return reduce_add(sum);
}

// y[j] += sum over i of a[i] * m[i, j]; columns in blocks of 64 so that the sums stay in registers.
inline void add_vector_matrix(const float* a, int64_t count, const float* m, int64_t width, float* y) {
  int64_t j = 0;
  for (; j + 64 <= width; j += 64) {
    f32x16 sum[4];
    for (int b = 0; b < 4; ++b) sum[b] = load(y + j + 16 * b);
    for (int64_t i = 0; i < count; ++i) {
      const f32x16 factor = set1(a[i]);
      for (int b = 0; b < 4; ++b) sum[b] = fma(factor, load(m + i * width + j + 16 * b), sum[b]);
    }
    for (int b = 0; b < 4; ++b) store(y + j + 16 * b, sum[b]);
  }
  for (; j < width; j += 16) {
    f32x16 sum = load(y + j);
    for (int64_t i = 0; i < count; ++i) sum = fma(set1(a[i]), load(m + i * width + j), sum);
    store(y + j, sum);
  }
}

inline void normalise(const float* x, int64_t count, float factor, float* out) {
  const float scale = factor / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(dot(x, x, count) + 1e-6F)));
  for (int64_t i = 0; i < count; i += 16) store(out + i, load(x + i) * set1(scale));
}

inline float query_factor(int64_t key_dim) {
  return 1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(static_cast<float>(key_dim))));
}

inline void delta_steps(const DeltaHead& head) {
  float query[kLargestKeyDim];
  float key[kLargestKeyDim];
  const float factor = query_factor(head.key_dim);
  for (int64_t t = 0; t < head.tokens; ++t) {
    normalise(head.query + t * head.stride, head.key_dim, factor, query);
    normalise(head.key + t * head.stride, head.key_dim, 1.0F, key);
    const float* value = head.value + t * head.stride;
    const f32x16 decay = set1(exp1(head.decay[t * head.gate_stride]));
    const f32x16 beta = set1(head.beta[t * head.gate_stride]);
    float* out = head.out + t * head.out_stride;
    for (int64_t j = 0; j < head.value_dim; j += 32) {
      const int blocks = head.value_dim - j >= 32 ? 2 : 1;
      f32x16 recalled[2] = {zero(), zero()};
      for (int64_t i = 0; i < head.key_dim; ++i) {
        float* row = head.state + i * head.value_dim + j;
        const f32x16 k = set1(key[i]);
        for (int b = 0; b < blocks; ++b) {
          const f32x16 m = load(row + 16 * b) * decay;
          store(row + 16 * b, m);
          recalled[b] = fma(k, m, recalled[b]);
        }
      }
      f32x16 change[2];
      f32x16 answer[2] = {zero(), zero()};
      for (int b = 0; b < blocks; ++b) change[b] = beta * (load(value + j + 16 * b) - recalled[b]);
      for (int64_t i = 0; i < head.key_dim; ++i) {
        float* row = head.state + i * head.value_dim + j;
        const f32x16 k = set1(key[i]);
        const f32x16 q = set1(query[i]);
        for (int b = 0; b < blocks; ++b) {
          const f32x16 m = fma(k, change[b], load(row + 16 * b));
          store(row + 16 * b, m);
          answer[b] = fma(q, m, answer[b]);
        }
      }
      for (int b = 0; b < blocks; ++b) store(out + j + 16 * b, answer[b]);
    }
  }
}

inline int64_t delta_chunk_workspace(int64_t key_dim, int64_t value_dim) {
  return kDeltaChunk * (4 * key_dim + value_dim + 2 * kDeltaChunk);
}

inline void scale_row(float* x, int64_t count, float scale) {
  for (int64_t i = 0; i < count; i += 16) store(x + i, load(x + i) * set1(scale));
}

// With Gamma the running sum of g inside the chunk and L_ij = e^(Gamma_i - Gamma_j) for j <= i:
//   A = strictly lower part of diag(beta) K K^T * L;  U = (I + A)^-1 diag(beta) V;  W = (I + A)^-1 diag(beta e^Gamma) K
//   V' = U - W M;  O = diag(e^Gamma) Q M + (Q K^T * L) V';  M = e^Gamma_C M + (diag(e^(Gamma_C - Gamma)) K)^T V'
// The inverse is a forward substitution row by row, so row i of U and W needs only the rows above it.
inline void delta_chunk(const DeltaHead& head, float* workspace) {
  constexpr int64_t kC = kDeltaChunk;
  const int64_t kd = head.key_dim;
  const int64_t vd = head.value_dim;
  float* query = workspace;      // [C, kd]
  float* key = query + kC * kd;  // [C, kd]
  float* w = key + kC * kd;      // [C, kd]
  float* negated = w + kC * kd;  // [C, kd]
  float* u = negated + kC * kd;  // [C, vd]: U, then V'
  float* a = u + kC * vd;        // [C, C]
  float* p = a + kC * kC;        // [C, C]
  float gamma[kC];
  float running = 0.0F;
  const float factor = query_factor(kd);
  for (int64_t i = 0; i < kC; ++i) {
    running += head.decay[i * head.gate_stride];
    gamma[i] = running;
    normalise(head.query + i * head.stride, kd, factor, query + i * kd);
    normalise(head.key + i * head.stride, kd, 1.0F, key + i * kd);
  }
  for (int64_t i = 0; i < kC; ++i) {
    const float beta = head.beta[i * head.gate_stride];
    for (int64_t j = 0; j <= i; ++j) {
      const float decay = exp1(gamma[i] - gamma[j]);
      a[i * kC + j] = -(beta * dot(key + i * kd, key + j * kd, kd) * decay);
      p[i * kC + j] = dot(query + i * kd, key + j * kd, kd) * decay;
    }
    const float* value = head.value + i * head.stride;
    for (int64_t d = 0; d < vd; d += 16) store(u + i * vd + d, load(value + d) * set1(beta));
    const float scaled = beta * exp1(gamma[i]);
    for (int64_t d = 0; d < kd; d += 16) store(w + i * kd + d, load(key + i * kd + d) * set1(scaled));
    add_vector_matrix(a + i * kC, i, u, vd, u + i * vd);
    add_vector_matrix(a + i * kC, i, w, kd, w + i * kd);
  }
  for (int64_t i = 0; i < kC; ++i) {
    for (int64_t d = 0; d < kd; d += 16) store(negated + i * kd + d, zero() - load(w + i * kd + d));
    add_vector_matrix(negated + i * kd, kd, head.state, vd, u + i * vd);
  }
  for (int64_t i = 0; i < kC; ++i) {
    float* out = head.out + i * head.out_stride;
    for (int64_t d = 0; d < vd; d += 16) store(out + d, zero());
    scale_row(query + i * kd, kd, exp1(gamma[i]));
    add_vector_matrix(query + i * kd, kd, head.state, vd, out);
    add_vector_matrix(p + i * kC, i + 1, u, vd, out);
  }
  const f32x16 decay = set1(exp1(gamma[kC - 1]));
  float weights[kC];
  float past[kC];
  for (int64_t i = 0; i < kC; ++i) past[i] = exp1(gamma[kC - 1] - gamma[i]);
  for (int64_t i = 0; i < kd; ++i) {
    float* row = head.state + i * vd;
    for (int64_t c = 0; c < kC; ++c) weights[c] = key[c * kd + i] * past[c];
    for (int64_t d = 0; d < vd; d += 16) store(row + d, load(row + d) * decay);
    add_vector_matrix(weights, kC, u, vd, row);
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
