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

// Parts of a tile of gate and of up, which a worker multiplies: every `step`-th from `first` on.
struct Chunk {
  int run = 0, tile = 0;
  int own = 0;  // which of the block's tiles
  int first = 0, step = 1, parts = 0;
  bool rest = false;  // of a tile that blocks share
  std::byte* weights = nullptr;
  int up = 0;  // from a part of gate to that of up

  __device__ Chunk(const AloneArgs& a, const AlonePlaces& places, std::byte* shared, int warp) {
    own = static_cast<int>(a.warps_each.quotient(warp));
    int item;
    if (own < a.whole) {
      step = static_cast<int>(a.warps_each.value);
      first = warp - own * step;
      item = static_cast<int>(blockIdx.x) * a.whole + own;
      up = a.chunk * step * kPartBytes;
      weights = shared + own * 2 * up + first * kPartBytes;
      parts = first < a.gate_parts ? static_cast<int>(a.warps_each.quotient(a.gate_parts - 1 - first)) + 1 : 0;
    } else {
      own = kWorkers - 1;
      const RestShare share(a);
      if (warp < kWorkers - 1 || share.item < 0 || share.piece >= a.pieces) return;
      rest = true;
      item = share.item;
      first = share.piece * a.rest_chunk;
      up = a.rest_chunk * kPartBytes;
      weights = shared + places.rest;
      parts = max(0, min(a.rest_chunk, a.gate_parts - first));
    }
    run = static_cast<int>(a.tiles.quotient(item));
    tile = item - run * static_cast<int>(a.tiles.value);
  }
};
// Asks for `parts` parts of either matrix from `first` on. By one thread.
__device__ inline void ask_parts(const AloneArgs& a, const std::byte* record, int tile, int first, int parts,
                                 std::byte* to, int up, Arrival& arrival) {
  const auto& table = a.args.table;
  const int tile_bytes = static_cast<int>(table.hidden) / kNvfp4UnitInputs * kNvfp4UnitBytes;
  const int bytes = min(parts * kPartBytes, tile_bytes - first * kPartBytes);
  if (bytes <= 0) return;
  const std::byte* from = record + (tile * tile_bytes + first * kPartBytes);
  arrival.expect(2 * bytes);
  arrival.ask(to, from + table.record.matrices[0].offset, bytes);
  arrival.ask(to + up, from + table.record.matrices[1].offset, bytes);
}

__device__ inline bool same_inputs(const float* scalars) {
  return __float_as_uint(scalars[3]) == __float_as_uint(scalars[4]);
}

// The warp's lanes have a block of 16 inputs each, from `first` on and below `end`, of x in shared memory. Down to a
// rehearsal where there are none.
__noinline__ __device__ void quantise_blocks(const AloneArgs& a, const float* x, int first, int end, float scale,
                                             std::byte* column) {
  const int block = first + static_cast<int>(threadIdx.x) % 32;
  const float* from = x + block * kBlockFloats;
  const float4 own[4] = {load4(from), load4(from + 4), load4(from + 8), load4(from + 12)};
  if (block < end && !store_block(own, scale, block, reinterpret_cast<Nvfp4Inputs*>(column))) {
    mark_fault(a.args.faults, 0, a.args.fault);
  }
}
// The columns of gate and up of the block's experts: two where these have different scales. `rest`: the last worker's
// of its own alone, from the pair of parts that its own begin in.
__device__ inline void make_columns(const AloneArgs& a, const AloneShared& block, const Chunk& chunk, const float* x,
                                    std::byte* columns, std::byte* rest, int warp) {
  if (a.whole > 0 && warp < kWorkers - 1) {
    const int first = static_cast<int>(blockIdx.x) * a.whole;
    const auto first_run = static_cast<int>(a.tiles.quotient(first));
    const auto last_run = static_cast<int>(a.tiles.quotient(first + a.whole - 1));
    const int blocks = a.pairs * 16;
    int task = warp;
#pragma unroll 1
    for (int column = 0; column < 2 * (last_run - first_run + 1); ++column) {
      const float* scalars = block.scalars[first_run + column / 2];
      if (column % 2 == 1 && same_inputs(scalars)) continue;
      for (; task * 32 < blocks; task += kWorkers - 1) {
        quantise_blocks(a, x, task * 32, blocks, scalars[3 + column % 2], columns + column * a.pairs * kPairBytes);
      }
      task -= (blocks + 31) / 32;
    }
  }
  if (!chunk.rest) return;
  const float* scalars = block.scalars[chunk.run];
  const int first = chunk.first / 2;
  const int end = (chunk.first + chunk.parts + 1) / 2;
#pragma unroll 1
  for (int kind = 0; kind < (same_inputs(scalars) ? 1 : 2); ++kind) {
    std::byte* column = rest + (kind * (a.rest_chunk / 2 + 1) - first) * kPairBytes;
    for (int pair = first; pair < end; pair += 2) {
      quantise_blocks(a, x, pair * 16, end * 16, scalars[3 + kind], column);
    }
  }
}

// SwiGLU of a tile's sums, which lanes 16 m + r have of gate (m = 0) and up and row r, and the inputs of down, which
// stand at tile `at` of all; below 0: a rehearsal.
__noinline__ __device__ void finish_tile(const AloneArgs& a, std::byte* handed, const float* scalars, int at,
                                         int64_t sum) {
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
  if (lane < 16 && lane % 4 == 0) give_word(handed + a.handed.columns, at * 4 + lane / 4, word ^ kChangedSigns);
  if (lane == 1) give_word(handed + a.handed.scales, at, static_cast<uint32_t>(step.t + 1));
  if (lane == 0 && largest >= kInfinityBits) mark_fault(a.args.faults, 0, a.args.fault);
}

// Gate and up of the worker's chunk, and SwiGLU where it is the last of its tile.
__device__ inline void multiply_gate_and_up(const AloneArgs& a, const Chunk& chunk, AloneShared& block,
                                            const std::byte* columns, const std::byte* rest, int lane) {
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
  sum_parts(chunk.weights, chunk.up, column + chunk.first * kPartColumnBytes, same ? 0 : to_up, chunk.step,
            chunk.parts * kPartUnits, 0, block.turns[chunk.own], given);
  if (chunk.rest) {
    const RestShare share(a);
    auto* to = reinterpret_cast<int64_t*>(block.handed + a.handed.rest);
    give(to + (share.tile * a.pieces + share.piece) * 32 + lane, given[lane] * 2 + 1);
    return;
  }
  int before = 0;
  if (lane == 0) {
    __threadfence_block();
    before = atomicAdd(&block.tickets[chunk.own], 1);
    __threadfence_block();
  }
  if (__shfl_sync(kWholeWarp, before, 0) < a.givers - 1) return;
  __syncwarp();
  const int64_t* from = given - chunk.first * kPartBytes / 8;
  int64_t sum = 0;
#pragma unroll 4
  for (int i = 0; i < a.givers; ++i) sum += from[i * kPartBytes / 8 + lane];
  finish_tile(a, block.handed, scalars, chunk.run * static_cast<int>(a.tiles.value) + chunk.tile, sum);
}

// SwiGLU of a tile that blocks share, by the last worker of one of them.
__device__ inline void finish_rest(const AloneArgs& a, const AloneShared& block, int lane) {
  const RestShare share(a);
  if (share.item < 0 || share.piece != min(a.pieces, static_cast<int>(a.span.value) - 1)) return;
  const auto* from = reinterpret_cast<const int64_t*>(block.handed + a.handed.rest) + share.tile * a.pieces * 32 + lane;
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
  finish_tile(a, block.handed, block.scalars[a.tiles.quotient(share.item)], share.item, sum);
}

}  // namespace tandem::ops::cuda::expert
