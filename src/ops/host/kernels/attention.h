// Softmax attention of one query head over one piece of at most 256 tokens, and the scores of sparse selection.
//
// A piece reads count * dim * 2 elements once for every query head; the heads of one group follow each other, so only
// the first read comes from memory. Pieces are merged in index order, so the bits depend on the pieces alone.
#pragma once

#include "ops/host/kernels.h"
#include "ops/host/kernels/delta.h"
#include "ops/host/kernels/simd.h"

namespace tandem::ops::host::TANDEM_ISA {

// Four accumulators hide the latency of the FMA; dim is a multiple of 16.
template <typename K>
inline float dot_key(const float* query, const K* key, int64_t dim) {
  f32x16 sum[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 64 <= dim; i += 64) {
    for (int b = 0; b < 4; ++b) sum[b] = fma(load(query + i + 16 * b), load_any(key + i + 16 * b), sum[b]);
  }
  for (; i < dim; i += 16) sum[0] = fma(load(query + i), load_any(key + i), sum[0]);
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename K>
inline void attend(const float* query, int64_t dim, float scale, const AttentionPiece& piece, SoftmaxState& state,
                   float* acc) {
  float weights[kAttentionPiece + 16];
  float largest = -__builtin_inff();
  for (int64_t j = 0; j < piece.count; ++j) {
    weights[j] = dot_key(query, static_cast<const K*>(piece.keys[j]), dim) * scale;
    largest = weights[j] > largest ? weights[j] : largest;
  }
  for (int64_t j = piece.count; j < (piece.count + 15) / 16 * 16; ++j) weights[j] = -__builtin_inff();
  f32x16 sums = zero();
  for (int64_t j = 0; j < piece.count; j += 16) {
    const f32x16 e = exp(load(weights + j) - set1(largest));
    store(weights + j, e);
    sums = sums + e;
  }
  const float sum = reduce_add(sums);
  // The earlier pieces' part is brought to the new largest score; a first piece has no earlier part.
  const float together = state.largest > largest ? state.largest : largest;
  const float before = exp1(state.largest - together);
  const float here = exp1(largest - together);
  state.sum = state.sum * before + sum * here;
  state.largest = together;
  for (int64_t d = 0; d < dim; d += 64) {
    const int blocks = dim - d >= 64 ? 4 : static_cast<int>((dim - d) / 16);
    f32x16 out[4] = {zero(), zero(), zero(), zero()};
    for (int64_t j = 0; j < piece.count; ++j) {
      const K* value = static_cast<const K*>(piece.values[j]) + d;
      const f32x16 weight = set1(weights[j]);
      for (int b = 0; b < blocks; ++b) out[b] = fma(weight, load_any(value + 16 * b), out[b]);
    }
    for (int b = 0; b < blocks; ++b) {
      float* at = acc + d + 16 * b;
      store(at, fma(out[b], set1(here), load(at) * set1(before)));
    }
  }
}

inline void attention_piece(const float* query, int64_t dim, float scale, const AttentionPiece& piece,
                            SoftmaxState& state, float* acc) {
  if (piece.bf16) {
    attend<uint16_t>(query, dim, scale, piece, state, acc);
  } else {
    attend<float>(query, dim, scale, piece, state, acc);
  }
}

// `from` is one piece on its own: its sum and values are those that attend() would have added here, so merging partial
// results in index order gives the bits of running over the pieces in that order.
inline void attention_merge(SoftmaxState& into, float* into_acc, const SoftmaxState& from, const float* from_acc,
                            int64_t dim) {
  const float together = into.largest > from.largest ? into.largest : from.largest;
  const float before = exp1(into.largest - together);
  const float here = exp1(from.largest - together);
  into.sum = into.sum * before + from.sum * here;
  into.largest = together;
  for (int64_t d = 0; d < dim; d += 16) {
    store(into_acc + d, fma(load(from_acc + d), set1(here), load(into_acc + d) * set1(before)));
  }
}

inline void block_scores(const float* queries, int64_t heads, int64_t dim, float scale, const void* const* keys,
                         bool bf16, int64_t count, float* scores) {
  for (int64_t b = 0; b < count; ++b) {
    float sum = 0.0F;
    for (int64_t h = 0; h < heads; ++h) {
      const float* query = queries + h * dim;
      const float score = bf16 ? dot_key(query, static_cast<const uint16_t*>(keys[b]), dim)
                               : dot_key(query, static_cast<const float*>(keys[b]), dim);
      sum += score > 0.0F ? score : 0.0F;
    }
    scores[b] = sum * scale;
  }
}

}  // namespace tandem::ops::host::TANDEM_ISA
