// The chunks of a run one behind the other (delta_chunks.cuh).
//
// A block has 64 columns of a value head's state, a warp 16 of them, as the transposed M^T [columns, key_dim] in the
// tensor cores' sums: sums of one product are then, split in two BF16, rows of the next without leaving their lanes.
// Everything with a token in it is transposed too: V'^T and out^T [columns, tokens]. A chunk costs a warp about 700
// tensor-core instructions and a block 96 KB from the second-level cache.
#include "ops/cuda/delta_chunks.cuh"
#include "ops/cuda/delta_tiles.cuh"
#include "ops/cuda/follow.cuh"
#include "ops/cuda/lanes.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int kThreads = kChunkColumns / 16 * 32;
constexpr int kTokenTiles = kChunk / 8;
constexpr int kKeyTiles = kChunkKeyDim / 8;

// Floats from one token's values to the next: a warp's reads of a tile fill all banks.
constexpr int kValueStride = kChunkColumns + 4;

// With two buffers of keys there is also room for the values.
template <int kKeyBuffers>
struct Shared {
  __nv_bfloat16 key[kKeyBuffers][2][kChunk * kChunkKeyDim];
  __nv_bfloat16 query[2][kChunk * kChunkKeyDim];
  __nv_bfloat16 inverse[2][kChunk * kChunk];
  __nv_bfloat16 scores[2][kChunk * kChunk];
  float factors[2][3][kChunk];  // of this chunk and the next: beta, past, rest
  float values[kKeyBuffers == 2 ? kChunk * kValueStride : 1];
};

using TokenSums = float[kTokenTiles][4];
using KeySums = float[kKeyTiles][4];

// sums += a b for kTiles tiles of eight columns from `first` on; b_of(part, pair) gives sixteen columns.
template <int kTiles, typename F>
__device__ inline void multiply(float (*sums)[4], const SplitQuad& a, int first, const F& b_of) {
  Quad b[kTiles / 2];
#pragma unroll
  for (int pair = 0; pair < kTiles / 2; ++pair) {
    if (2 * pair >= first) b[pair] = b_of(0, pair);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile >= first) mma_quad(sums[tile], a.high, b[tile / 2], tile % 2);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile >= first) mma_quad(sums[tile], a.low, b[tile / 2], tile % 2);
  }
#pragma unroll
  for (int pair = 0; pair < kTiles / 2; ++pair) {
    if (2 * pair >= first) b[pair] = b_of(1, pair);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile >= first) mma_quad(sums[tile], a.high, b[tile / 2], tile % 2);
  }
}

// sums^T = M^T rows^T for the tiles of keys and of queries.
__device__ inline void multiply_by_state(const KeySums& state, const __nv_bfloat16 (*key)[kChunk * kChunkKeyDim],
                                         const __nv_bfloat16 (*query)[kChunk * kChunkKeyDim], TokenSums& recalled,
                                         TokenSums& answer) {
#pragma unroll
  for (int k = 0; k < kChunkKeyDim / 16; ++k) {
    const SplitQuad a = sums_as_rows(state[2 * k], state[2 * k + 1]);
    multiply<kTokenTiles>(recalled, a, 0, [&](int part, int pair) {
      return rows_as_columns<kChunkKeyDim>(key[part], 16 * pair, 16 * k);
    });
    multiply<kTokenTiles>(answer, a, 0, [&](int part, int pair) {
      return rows_as_columns<kChunkKeyDim>(query[part], 16 * pair, 16 * k);
    });
  }
}

// sums^T += values^T lower^T for a lower triangular tile [tokens, tokens].
__device__ inline void multiply_by_lower(const TokenSums& values, const __nv_bfloat16 (*lower)[kChunk * kChunk],
                                         TokenSums& sums) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    const SplitQuad a = sums_as_rows(values[2 * k], values[2 * k + 1]);
    multiply<kTokenTiles>(sums, a, 2 * k,
                          [&](int part, int pair) { return rows_as_columns<kChunk>(lower[part], 16 * pair, 16 * k); });
  }
}

// M^T += values^T keys.
__device__ inline void add_keys(const TokenSums& values, const __nv_bfloat16 (*key)[kChunk * kChunkKeyDim],
                                KeySums& state) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    const SplitQuad a = sums_as_rows(values[2 * k], values[2 * k + 1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply<kTokenTiles>(state + half * kTokenTiles, a, 0, [&](int part, int pair) {
        return rows_as_inputs<kChunkKeyDim>(key[part], 16 * k, 64 * half + 16 * pair);
      });
    }
  }
}

// Scales each token's column; `factors` is this lane's first token's.
__device__ inline void scale_tokens(TokenSums& sums, const float* factors) {
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const float2 factor = *reinterpret_cast<const float2*>(factors + 8 * tile);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile][i] *= i % 2 == 0 ? factor.x : factor.y;
  }
}

// Where sum i of a tile lies in a C-order array of rows `stride` apart: rows are the tile's columns.
__device__ inline int64_t place(int tile, int i, int64_t stride) {
  return (8 * tile + i % 2) * stride + i / 2 * 8;
}

// `from` is the block's columns of the chunk's first token.
__device__ inline void copy_values(float* values, const float* from, int64_t stride) {
  constexpr int kPieces = kChunkColumns / 4;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kPieces; i += kThreads) {
    copy_16(shared_address(values + i / kPieces * kValueStride + 4 * (i % kPieces)),
            from + i / kPieces * stride + 4 * (i % kPieces));
  }
}
template <int kKeyBuffers>
__device__ inline void copy_query_side(Shared<kKeyBuffers>& shared, const ChunkKeys& keys, const ChunkHead& head,
                                       int parity) {
  copy_tile<kChunkKeyDim, kThreads>(shared.query[0], keys.query[0][0], kChunk);
  copy_tile<kChunkKeyDim, kThreads>(shared.query[1], keys.query[1][0], kChunk);
  copy_tile<kChunk, kThreads>(shared.inverse[0], head.inverse[0][0], kChunk);
  copy_tile<kChunk, kThreads>(shared.inverse[1], head.inverse[1][0], kChunk);
  if (threadIdx.x < 3 * kChunk / 4)
    copy_16(shared_address(&shared.factors[parity][0][0] + 4 * threadIdx.x), head.beta + 4 * threadIdx.x);
  commit_copies();
}
template <int kKeyBuffers>
__device__ inline void copy_keys(Shared<kKeyBuffers>& shared, const ChunkKeys& keys, int64_t chunk) {
  copy_tile<kChunkKeyDim, kThreads>(shared.key[chunk % kKeyBuffers][0], keys.key[0][0], kChunk);
  copy_tile<kChunkKeyDim, kThreads>(shared.key[chunk % kKeyBuffers][1], keys.key[1][0], kChunk);
  commit_copies();
}
template <int kKeyBuffers>
__device__ inline void copy_scores(Shared<kKeyBuffers>& shared, const ChunkHead& head) {
  copy_tile<kChunk, kThreads>(shared.scores[0], head.scores[0][0], kChunk);
  copy_tile<kChunk, kThreads>(shared.scores[1], head.scores[1][0], kChunk);
  commit_copies();
}

// Blocks (columns of the state by 64, value heads). With two buffers of keys the next chunk's are under way throughout.
template <int kKeyBuffers>
__global__ void __launch_bounds__(kThreads) advance_kernel(const Chunks args) {
  follow();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kKeyBuffers>*>(memory);
  const Ops::DeltaNet& net = args.net;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int64_t head = blockIdx.y;
  const int64_t key_head = head / (net.value_heads / net.key_heads);
  const int64_t column = blockIdx.x * kChunkColumns + threadIdx.x / 32 * 16 + g;
  const int64_t stride = 2 * net.key_heads * kChunkKeyDim + net.value_heads * net.value_dim;
  const int64_t out_stride = net.value_heads * net.value_dim;
  const float* values = net.qkv + 2 * net.key_heads * kChunkKeyDim + head * net.value_dim;
  constexpr bool kStaged = kKeyBuffers == 2;
  const auto copy_values_of = [&](int64_t chunk) {
    if constexpr (kStaged) {
      copy_values(shared.values, values + blockIdx.x * kChunkColumns + chunk * kChunk * stride, stride);
    }
  };
  float* out = net.out + head * net.value_dim + column + 2 * t * out_stride;
  float* matrix = args.state + head * kChunkKeyDim * net.value_dim + column + 2 * t * net.value_dim;
  const auto keys_of = [&](int64_t chunk) -> const ChunkKeys& { return args.keys[chunk * net.key_heads + key_head]; };
  const auto head_of = [&](int64_t chunk) -> const ChunkHead& { return args.heads[chunk * net.value_heads + head]; };

  copy_values_of(0);
  copy_query_side(shared, keys_of(0), head_of(0), 0);
  copy_keys(shared, keys_of(0), 0);
  KeySums state;
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state[tile][i] = matrix[place(tile, i, net.value_dim)];
  }
  for (int64_t chunk = 0; chunk < args.count; ++chunk) {
    const bool more = chunk + 1 < args.count;
    const auto& key = shared.key[chunk % kKeyBuffers];
    const auto& factors = shared.factors[chunk % 2];
    await_copies<0>();
    __syncthreads();
    copy_scores(shared, head_of(chunk));
    if (kKeyBuffers == 2 && more) copy_keys(shared, keys_of(chunk + 1), chunk + 1);
    TokenSums recalled = {};
    TokenSums answer = {};
    multiply_by_state(state, key, shared.query, recalled, answer);
    scale_tokens(recalled, factors[1] + 2 * t);
    scale_tokens(answer, factors[1] + 2 * t);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float v =
            kStaged ? shared.values[2 * t * kValueStride + place(tile, i, kValueStride) + column % kChunkColumns]
                    : values[(chunk * kChunk + 2 * t) * stride + place(tile, i, stride) + column];
        recalled[tile][i] = v - recalled[tile][i];
      }
    }
    scale_tokens(recalled, factors[0] + 2 * t);
    TokenSums change = {};
    multiply_by_lower(recalled, shared.inverse, change);
    __syncthreads();
    if (more) {
      copy_values_of(chunk + 1);
      copy_query_side(shared, keys_of(chunk + 1), head_of(chunk + 1), static_cast<int>((chunk + 1) % 2));
    }
    // The scores were asked for before one or two other groups.
    if (!more) {
      await_copies<0>();
    } else {
      await_copies<kKeyBuffers>();
    }
    __syncthreads();
    multiply_by_lower(change, shared.scores, answer);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[chunk * kChunk * out_stride + place(tile, i, out_stride)] = answer[tile][i];
      }
    }
    scale_tokens(change, factors[2] + 2 * t);
    const float decay = factors[1][kChunk - 1];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state[tile][i] *= decay;
    }
    add_keys(change, key, state);
    if (kKeyBuffers == 1 && more) {
      __syncthreads();
      copy_keys(shared, keys_of(chunk + 1), chunk + 1);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) matrix[place(tile, i, net.value_dim)] = state[tile][i];
  }
}

template <int kKeyBuffers>
void launch(const Context& context, const Chunks& chunks) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared<kKeyBuffers>));
  TANDEM_CUDA_CHECK(
      cudaFuncSetAttribute(advance_kernel<kKeyBuffers>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>(chunks.net.value_dim / kChunkColumns),
                  static_cast<unsigned>(chunks.net.value_heads));
  launch_following(context, advance_kernel<kKeyBuffers>, grid, kThreads, kBytes, chunks);
  TANDEM_CUDA_LAUNCHED("delta_net advance");
}

}  // namespace

void advance_chunks(const Context& context, const Chunks& chunks) {
  // 150 KB of shared memory a block are there on the large cards of each generation, 98 KB everywhere.
  if (context.capability == 80 || context.capability == 90 || context.capability == 100) {
    launch<2>(context, chunks);
  } else {
    launch<1>(context, chunks);
  }
}

}  // namespace tandem::ops::cuda
