// The chunk form of Gated DeltaNet: whole chunks of 64 tokens on the tensor cores.
//
// With k and q normalised, Gamma the running sum of the log decays in a chunk, L_ij = e^(Gamma_i - Gamma_j) for j <= i,
// M the state before it and C = 64:
//   T = (I + strictly lower part of diag(beta) K K^T * L)^-1,  P = lower part of Q K^T * L
//   V' = T diag(beta) (V - diag(e^Gamma) K M)
//   out = diag(e^Gamma) Q M + P V',  M = e^Gamma_C M + K^T diag(e^(Gamma_C - Gamma)) V'
// What does not need M is prepared for all chunks at once (delta_prepare.cu); then the chunks follow each other, by
// value head and 64 columns of M, which stay in registers (delta_advance.cu). Both go in slabs of chunks, so that what
// is prepared stays in the second-level cache.
//
// Every operand of a product is a pair of BF16 (state_mma.cuh), high + low, and the product that of high high, high low
// and low high: 2^-17 of a term is lost.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

inline constexpr int kChunk = 64;
inline constexpr int kChunkKeyDim = 128;
inline constexpr int kChunkColumns = 64;  // of the state, for a block
inline constexpr int64_t kSlabChunks = 16;

// Of one chunk and key head. Rows are tokens.
struct ChunkKeys {
  __nv_bfloat16 key[2][kChunk][kChunkKeyDim];  // high, low
  __nv_bfloat16 query[2][kChunk][kChunkKeyDim];
};
// Of one chunk and value head.
struct ChunkHead {
  __nv_bfloat16 inverse[2][kChunk][kChunk];  // T
  __nv_bfloat16 scores[2][kChunk][kChunk];   // P
  float beta[kChunk];
  float past[kChunk];  // e^Gamma
  float rest[kChunk];  // e^(Gamma_C - Gamma)
};

// Chunks of one run. Inputs and `out` begin at the first one's first token.
struct Chunks {
  Ops::DeltaNet net;
  int64_t count = 0;
  float* state = nullptr;      // [value_heads, key_dim, value_dim], moved on
  ChunkKeys* keys = nullptr;   // [kSlabChunks, key_heads]
  ChunkHead* heads = nullptr;  // [kSlabChunks, value_heads]
};

// Each for at most kSlabChunks.
void prepare_chunks(const Context& context, const Chunks& chunks);
void advance_chunks(const Context& context, const Chunks& chunks);

}  // namespace tandem::ops::cuda
