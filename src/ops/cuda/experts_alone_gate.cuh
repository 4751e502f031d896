// Gate and up of a single column's NVFP4 experts, SwiGLU and the inputs of down (experts_alone.cu).
#pragma once

#include "ops/cuda/experts_alone.cuh"

namespace tandem::ops::cuda::expert {

// The tile that the block shares with others, and the place among these; none where tile < 0.
struct RestShare {
  int item = -1;
  int tile;   // of those that are left
  int piece;  // from a.pieces on: it has none
  __device__ explicit RestShare(const AloneArgs& a) {
    const auto block = static_cast<int>(blockIdx.x);
    tile = static_cast<int>(a.span.quotient(block));
    piece = block - tile * static_cast<int>(a.span.value);
    if (tile < a.rest_tiles) item = a.whole * static_cast<int>(gridDim.x) + tile;
  }
};

// Parts of a tile of gate and of up, which a worker multiplies.
struct Chunk {
  int run = 0, tile = 0;
  int first = 0, parts = 0;
  bool rest = false;  // of a tile that blocks share
  std::byte* weights = nullptr;
  int up = 0;  // from a part of gate to that of up

  __device__ Chunk(const AloneArgs& a, const AlonePlaces& places, std::byte* shared, int warp) {
    const auto own = static_cast<int>(a.warps_each.quotient(warp));
    int most = a.chunk;
    int item;
    if (own < a.whole) {
      item = static_cast<int>(blockIdx.x) * a.whole + own;
      first = (warp - own * static_cast<int>(a.warps_each.value)) * most;
      weights = shared + warp * most * 2 * kPartBytes;
    } else {
      const RestShare share(a);
      if (warp < kWorkers - 1 || share.item < 0 || share.piece >= a.pieces) return;
      rest = true;
      most = a.rest_chunk;
      item = share.item;
      first = share.piece * most;
      weights = shared + places.rest;
    }
    parts = max(0, min(most, a.gate_parts - first));
    run = static_cast<int>(a.tiles.quotient(item));
    tile = item - run * static_cast<int>(a.tiles.value);
    up = most * kPartBytes;
  }
  // Two parts of either, the first ones or those behind them. By one thread.
  __device__ void ask(const AloneArgs& a, const std::byte* record, int half, Arrival& arrival) const {
    const auto& table = a.args.table;
    const int tile_bytes = static_cast<int>(table.hidden) / kNvfp4UnitInputs * kNvfp4UnitBytes;
    const int at = half * 2 * kPartBytes;
    const int bytes = min(min(2, parts - 2 * half) * kPartBytes, tile_bytes - first * kPartBytes - at);
    if (bytes <= 0) return;
    const std::byte* from = record + (tile * tile_bytes + first * kPartBytes + at);
    arrival.expect(2 * bytes);
    arrival.ask(weights + at, from + table.record.matrices[0].offset, bytes);
    arrival.ask(weights + up + at, from + table.record.matrices[1].offset, bytes);
  }
};

__device__ inline bool same_inputs(const float* scalars) {
  return __float_as_uint(scalars[3]) == __float_as_uint(scalars[4]);
}

// Inputs 256 pair to 256 pair + 255 of x by a warp.
__device__ inline void quantise_pair(const AloneArgs& a, const float* x, int pair, float scale, std::byte* column) {
  const int half = pair * 32 + static_cast<int>(threadIdx.x) % 32;
  if (!quantise_half(load4(x + half * 8), load4(x + half * 8 + 4), scale, half,
                     reinterpret_cast<Nvfp4Inputs*>(column))) {
    mark_fault(a.args.faults, 0, a.args.fault);
  }
}
// The columns of gate and up of the block's experts: two where these have different scales. `rest`: the last worker's
// of its own, from the pair that its parts begin in.
__device__ inline void make_columns(const AloneArgs& a, const AloneShared& block, const Chunk& chunk, const float* x,
                                    std::byte* columns, std::byte* rest, int warp) {
  if (a.whole > 0) {
    const int first = static_cast<int>(blockIdx.x) * a.whole;
    const auto first_run = static_cast<int>(a.tiles.quotient(first));
    const auto last_run = static_cast<int>(a.tiles.quotient(first + a.whole - 1));
    int task = warp;
#pragma unroll 1
    for (int column = 0; column < 2 * (last_run - first_run + 1); ++column) {
      const float* scalars = block.scalars[first_run + column / 2];
      if (column % 2 == 1 && same_inputs(scalars)) continue;
      for (; task < a.pairs; task += kWorkers) {
        quantise_pair(a, x, task, scalars[3 + column % 2], columns + column * a.pairs * kPairBytes);
      }
      task -= a.pairs;
    }
  }
  if (!chunk.rest) return;
  const float* scalars = block.scalars[chunk.run];
  const int first = chunk.first / 2;
#pragma unroll 1
  for (int kind = 0; kind < (same_inputs(scalars) ? 1 : 2); ++kind) {
    std::byte* column = rest + (kind * (a.rest_chunk / 2 + 1) - first) * kPairBytes;
    for (int pair = first; pair <= (chunk.first + chunk.parts - 1) / 2; ++pair) {
      quantise_pair(a, x, pair, scalars[3 + kind], column);
    }
  }
}

// SwiGLU of a tile's sums, which lanes 16 m + r have of gate (m = 0) and up and row r, and the inputs of down, which
// stand at tile `at` of all; below 0: a rehearsal.
__noinline__ __device__ void finish_tile(const AloneArgs& a, const float* scalars, int64_t at, int64_t sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int m = lane / 16;
  const float own = nvfp4_scaled(sum, scalars[m], scalars[3 + m]);
  const float other = __shfl_xor_sync(kWholeWarp, own, 16);
  const float h = m == 0 ? swiglu(own, other) : swiglu(other, own);
  const uint32_t largest = lanes_max<16>(magnitude_bits(h));
  const Nvfp4Step step = nvfp4_step(largest, scalars[5]);
  uint32_t word = static_cast<uint32_t>(nvfp4_value(h, step)) & 255;
  word |= __shfl_down_sync(kWholeWarp, word, 1) << 8;
  word |= __shfl_down_sync(kWholeWarp, word, 2) << 16;
  if (at < 0) return;
  if (lane < 16 && lane % 4 == 0) give(a.columns + at * 4 + lane / 4, word ^ kChangedSigns);
  if (lane == 1) give(a.scales + at, static_cast<uint32_t>(step.t + 1));
  if (lane == 0 && largest >= kInfinityBits) mark_fault(a.args.faults, 0, a.args.fault);
}

// Gate and up of the worker's chunk, and SwiGLU where it is the last of its tile.
__device__ inline void multiply_gate_and_up(const AloneArgs& a, const Chunk& chunk, AloneShared& block,
                                            const std::byte* columns, const std::byte* rest, int warp, int lane) {
  const float* scalars = block.scalars[chunk.run];
  const bool same = same_inputs(scalars);
  const std::byte* column;
  int to_up;
  if (chunk.rest) {
    column = rest - chunk.first / 2 * kPairBytes;
    to_up = (a.rest_chunk / 2 + 1) * kPairBytes;
  } else {
    const auto first_run = static_cast<int>(a.tiles.quotient(blockIdx.x * a.whole));
    to_up = a.pairs * kPairBytes;
    column = columns + (chunk.run - first_run) * 2 * to_up;
  }
  // In the place of weights that were read.
  auto* given = reinterpret_cast<int64_t*>(chunk.weights);
  sum_parts(chunk.weights, chunk.up, column + chunk.first * kPartColumnBytes, same ? 0 : to_up, chunk.parts, 0,
            block.halves[warp], given);
  if (chunk.rest) {
    const RestShare share(a);
    give(a.rest + (static_cast<int64_t>(share.tile) * a.pieces + share.piece) * 32 + lane, given[lane] * 2 + 1);
    return;
  }
  const auto own = static_cast<int>(a.warps_each.quotient(warp));
  int before = 0;
  if (lane == 0) {
    __threadfence_block();
    before = atomicAdd(&block.tickets[own], 1);
    __threadfence_block();
  }
  if (__shfl_sync(kWholeWarp, before, 0) < a.givers - 1) return;
  __syncwarp();
  const int stride = a.chunk * 2 * kPartBytes / 8;
  const int64_t* from = given - (warp - own * static_cast<int>(a.warps_each.value)) * stride;
  int64_t sum = 0;
#pragma unroll 4
  for (int i = 0; i < a.givers; ++i) sum += from[i * stride + lane];
  finish_tile(a, scalars, chunk.run * static_cast<int64_t>(a.tiles.value) + chunk.tile, sum);
}

// SwiGLU of a tile that blocks share, by the last worker of one of them.
__device__ inline void finish_rest(const AloneArgs& a, const AloneShared& block, int lane) {
  const RestShare share(a);
  if (share.item < 0 || share.piece != min(a.pieces, static_cast<int>(a.span.value) - 1)) return;
  const int64_t* from = a.rest + static_cast<int64_t>(share.tile) * a.pieces * 32 + lane;
  int64_t sum = 0;
  for (int i = 0; i < a.pieces;) {
    constexpr int kTogether = 4;
    int64_t values[kTogether];
    bool here = true;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      values[j] = i + j < a.pieces ? load_given_sum(from + (i + j) * 32) : 1;
      here = here && values[j] != 0;
    }
    if (!__all_sync(kWholeWarp, here)) continue;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) sum += values[j] >> 1;
    i += kTogether;
  }
  finish_tile(a, block.scalars[a.tiles.quotient(share.item)], share.item, sum);
}

}  // namespace tandem::ops::cuda::expert
