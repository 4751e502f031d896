// Down of NVFP4 experts for few columns, and the weighted sum over a token's experts. A job is a tile of 16 rows of one
// run; a block has consecutive jobs, tile by tile, so that most terms meet in shared memory.
#pragma once

#include "ops/cuda/experts_few.cuh"

namespace tandem::ops::cuda::expert {

__device__ inline int factor_of_thread() {
  return static_cast<int>(blockDim.x - 1 - threadIdx.x);  // the last warps have the least to do
}
// The scales, as far as they are known before gate and up end.
__device__ inline void find_factors(const FewArgs& a, const Runs& runs, Factors& to) {
  const int p = factor_of_thread();
  if (p >= a.args.tokens * a.args.top_k || runs.id[p] < 0) return;
  const float* scalars = runs.scalars[p];
  to.scale[p] = is_dynamic(a) ? scalars[2] : scalars[2] * scalars[5];
}

// One of the sums of a layer that a block makes: [tile of the block][token][even and odd experts].
using Halves = RowSums[2];

// The weighted term of a row of a job and a column, into the block's sums.
__device__ inline void add_term(const Block& block, const Factors& factors, const Piece& job, int first_tile, int c,
                                int row, int64_t sum, Halves* halves) {
  const FewArgs& a = block.a;
  const int pair = block.runs.pair[job.run][c];
  const auto token = static_cast<int>(a.top_k.quotient(pair));
  const float term = factors.weight[pair] * (__ll2float_rn(sum) * 0x1p-20F * factors.scale[pair]);
  if (fabsf(term) < numeric::kLargestExpertTerm) {
    add_shared(
        &halves[(job.tile - first_tile) * static_cast<int>(a.args.tokens) + token][block.runs.expert[job.run] & 1][row],
        __float2ll_rn(term * 0x1p32F));
  } else {
    mark_fault(a.args.faults, token, a.args.fault);
  }
}

// `parts` parts of a job from `first` on: add(column, row, sum) takes their sums.
template <int C, typename Add>
__device__ void sum_job(const Block& block, int run, int first, int parts, Stream& stream, const Nvfp4Tables& tables,
                        const Add& add) {
  const FewArgs& a = block.a;
  const int last = block.runs.count[run] - 1;
  const ColumnPlaces<C> places(
      block.lane, [&](int c) { return block.columns + block.runs.pair[run][min(c, last)] * a.column_bytes; });
  TileSums<C> down;
  down.clear();
#pragma unroll 1
  for (int at = first * kPartColumnBytes; at < (first + parts) * kPartColumnBytes; at += kPartColumnBytes) {
    PartInputs<C> inputs;
    inputs.load(places, at, block.lane);
    down.add_part(tables, stream.wait(), inputs, block.lane);
    stream.release(a);
  }
  down.gather(block.lane, [&](int c, int row, int64_t sum) {
    if (c <= last) add(c, row, sum);
  });
}

// The columns of all pairs into shared memory.
__device__ inline void fetch_columns(const Block& block) {
  const FewArgs& a = block.a;
  const auto pairs = static_cast<int>(a.args.tokens * a.args.top_k);
  const auto threads = static_cast<int>(blockDim.x);
  const auto* from = reinterpret_cast<const uint4*>(a.down);
  auto* to = reinterpret_cast<uint4*>(block.columns);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < pairs * a.column_bytes / 16; i += threads) to[i] = __ldcg(from + i);
  const int64_t units = a.args.table.inner / kNvfp4UnitInputs;
  if (units % kPartUnits == 0) return;
  __syncthreads();
  constexpr int kWords = sizeof(Nvfp4Inputs) / 4;
  for (int i = static_cast<int>(threadIdx.x); i < pairs * kWords; i += threads) {
    std::byte* column = block.columns + i / kWords * a.column_bytes;
    reinterpret_cast<uint32_t*>(column + units * sizeof(Nvfp4Inputs))[i % kWords] = 0;
  }
}

// The parts of a warp.
__device__ inline Cursor down_share(const FewArgs& a, int jobs, int warp, const Piece* pieces) {
  const auto parts = static_cast<int>(a.down_parts.value);
  Share share = share_of(a.whole_jobs ? jobs : jobs * parts, warp, a.warps);
  if (a.whole_jobs) share = {share.at * parts, share.end * parts};
  const auto job = static_cast<int>(a.down_parts.quotient(share.at));
  return {pieces + job, share.at - job * parts, share.end - share.at};
}

// The block's jobs; sums [job][column], where jobs are shared by warps, and halves are zero before.
template <int kTogether>
__device__ void multiply_down(const Block& block, const Factors& factors, int jobs, Stream& stream,
                              const Nvfp4Tables& tables, RowSums* sums, Halves* halves) {
  const FewArgs& a = block.a;
  const int first_tile = block.jobs[0].tile;
  Cursor at = *stream.then;
#pragma unroll 1
  for (; at.left > 0; ++at.piece, at.part = 0) {
    const int here = min(at.left, static_cast<int>(a.down_parts.value) - at.part);
    const Piece job = *at.piece;
    RowSums* to = sums + (at.piece - block.jobs) * a.together;
    const auto add = [&](int c, int row, int64_t sum) {
      if (a.whole_jobs) {
        add_term(block, factors, job, first_tile, c, row, sum, halves);
      } else {
        add_shared(&to[c][row], sum);
      }
    };
    const int count = block.runs.count[job.run];
    if (kTogether == 1 || count == 1) {
      sum_job<1>(block, job.run, at.part, here, stream, tables, add);
    } else {
      sum_job<kTogether>(block, job.run, at.part, here, stream, tables, add);
    }
    at.left -= here;
  }
  __syncthreads();
  const int rows = block.warps * 2;
  const auto thread_row = static_cast<int>(threadIdx.x) / kTileRows;
  const int row = static_cast<int>(threadIdx.x) % kTileRows;
  if (!a.whole_jobs) {
    for (int i = thread_row; i < jobs * a.together; i += rows) {
      const Piece job = block.jobs[i / a.together];
      const int c = i % a.together;
      if (c < block.runs.count[job.run]) {
        add_term(block, factors, job, first_tile, c, row, sums[i][row], halves);
      }
    }
    __syncthreads();
  }
  const auto tokens = static_cast<int>(a.args.tokens);
  const int tiles = block.jobs[jobs - 1].tile - first_tile + 1;
  for (int i = thread_row; i < tiles * tokens * 2; i += rows) {
    const int64_t value = halves[i / 2][i % 2][row];
    const int64_t token = i / 2 % tokens;
    int64_t* to = a.sums + (token * 2 + i % 2) * a.args.table.hidden + (first_tile + i / 2 / tokens) * kTileRows + row;
    if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }
}

}  // namespace tandem::ops::cuda::expert
