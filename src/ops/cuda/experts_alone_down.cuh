// Down of a single column's NVFP4 experts, of the shared expert, and the sum of all (experts_alone.cu). A job is a tile
// of 16 rows of one expert. A block has consecutive jobs, tile by tile, a worker one of them, and ends a tile whose
// last job it has: the blocks that have others of it give it their sums.
#pragma once

#include "ops/cuda/experts_alone.cuh"

namespace tandem::ops::cuda::expert {

struct Jobs {
  Share share;
  int top_k;
  int first_tile;
  int ended, ended_end;  // tiles that the block ends

  __device__ explicit Jobs(const AloneArgs& a)
      : share(share_of(all(a), blockIdx.x, a.blocks)), top_k(static_cast<int>(a.args.top_k)) {
    first_tile = static_cast<int>(a.top_k.quotient(share.at));
    // Of tiles whose last job lies behind `at`.
    ended = first_tile;
    ended_end = static_cast<int>(a.top_k.quotient(share.end));
  }
  __device__ static int all(const AloneArgs& a) {
    return static_cast<int>(a.args.top_k) * static_cast<int>(a.args.table.hidden) / kTileRows;
  }
};

// A worker's job.
struct Job {
  int run = 0, tile = 0;
  bool any = false;
  std::byte* weights = nullptr;

  __device__ Job(const AloneArgs& a, const Jobs& jobs, std::byte* down, int warp) {
    const int job = jobs.share.at + warp;
    any = job < jobs.share.end;
    if (!any) return;
    tile = static_cast<int>(a.top_k.quotient(job));
    run = job - tile * jobs.top_k;
    weights = down + warp * a.down_parts * kPartBytes;
  }
  // By one thread.
  __device__ void ask(const AloneArgs& a, const std::byte* record, Arrival& arrival) const {
    const auto& table = a.args.table;
    const int bytes = static_cast<int>(table.inner) / kNvfp4UnitInputs * kNvfp4UnitBytes;
    Arrival::take_over();
    arrival.expect(bytes);
    arrival.ask(weights, record + (table.record.matrices[2].offset + tile * bytes), bytes);
  }
};

// Down's inputs of all experts into shared memory, when they are there; in a rehearsal whatever is.
__noinline__ __device__ void fetch_inputs(const AloneArgs& a, std::byte* columns, bool rehearsal) {
  const int blocks = a.down_parts * kBlocksOfPart;  // of a column
  const auto tiles = static_cast<int>(a.tiles.value);
  const int all = static_cast<int>(a.args.top_k) * blocks;
#pragma unroll 1
  for (auto i = static_cast<int>(rehearsal ? threadIdx.x % 32 : threadIdx.x); i < all + all / 4; i += kWorkThreads) {
    const bool scales = i >= all;
    const int at = scales ? (i - all) * 4 : i;  // the first block
    const auto run = static_cast<int>(a.down_blocks.quotient(at));
    const int block = at - run * blocks;
    uint4 words = {};
    if (block < tiles) {
      words = await_given(rehearsal, scales ? a.scales + run * tiles + block : a.columns + (run * tiles + block) * 4);
      if (scales) {
        words = {words.x - 1, words.y - 1, words.z - 1, words.w - 1};
      } else {
        words = {words.x ^ kChangedSigns, words.y ^ kChangedSigns, words.z ^ kChangedSigns, words.w ^ kChangedSigns};
        if (block % 2 == 1) words = {words.z, words.w, words.x, words.y};
      }
    }
    const int unit = (run * a.down_parts * kPartUnits + block / 4) * static_cast<int>(sizeof(Nvfp4Inputs));
    reinterpret_cast<uint4*>(columns + (rehearsal ? 0 : unit))[scales ? 4 : block % 4] = words;
  }
}

// The terms of the worker's job, which stand in the place of its weights.
__device__ inline void multiply_down(const AloneArgs& a, const Job& job, AloneShared& block, const std::byte* columns,
                                     int warp, int lane) {
  const float* scalars = block.scalars[job.run];
  const float scale = scalars[2] * scalars[5];
  const float weight = block.weights[job.run];
  auto* terms = reinterpret_cast<int64_t*>(job.weights);
  block.jobs[warp].await();
  // The parts behind the middle as a second row of them.
  const int half = (a.down_parts + 1) / 2;
  const int others = a.down_parts - half;
  sum_parts(job.weights, half * kPartBytes, columns + job.run * a.down_parts * kPartColumnBytes,
            half * kPartColumnBytes, others, half - others, nullptr, terms);
  if (lane >= kTileRows) return;
  const float term = weight * (__ll2float_rn(terms[lane] + terms[kTileRows + lane]) * 0x1p-20F * scale);
  const bool held = fabsf(term) < numeric::kLargestExpertTerm;
  terms[lane] = held ? __float2ll_rn(term * 0x1p32F) : 0;
  if (!held) mark_fault(a.args.faults, 0, a.args.fault);
}

// Of each of the block's tiles the sums of even and odd experts: given to the block that ends the tile, or ended. A
// warp a tile, its lanes 16 p + r.
__noinline__ __device__ void end_tiles(const AloneArgs& a, const AloneShared& block, const std::byte* down, float gate,
                                       int warp, bool rehearsal) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Jobs jobs(a);
  const int tile = jobs.first_tile + warp;
  const int row = lane % kTileRows;
  const int odd = lane / kTileRows;
  const int first = max(jobs.share.at, tile * jobs.top_k);
  const int end = min(jobs.share.end, (tile + 1) * jobs.top_k);
  if (first >= end) return;
  int64_t sum = 0;
#pragma unroll 1
  for (int job = first; job < end; ++job) {
    const auto* terms = reinterpret_cast<const int64_t*>(down + (job - jobs.share.at) * a.down_parts * kPartBytes);
    const bool own = (block.choice.of_warp.ranked[job - tile * jobs.top_k].id & 1) == odd;
    sum += own ? terms[row] : 0;
  }
  if (end < (tile + 1) * jobs.top_k) {
    if (!rehearsal) give_whole(a.sums + static_cast<int64_t>(blockIdx.x) * 32 + lane, sum);
    return;
  }
  if (first > tile * jobs.top_k) {
    for (int other = static_cast<int>(blockIdx.x) - 1; other >= 0; --other) {
      const Share share = share_of(Jobs::all(a), other, a.blocks);
      if (share.end <= tile * jobs.top_k) break;
      if (share.at < share.end) sum += await_whole(rehearsal, a.sums + static_cast<int64_t>(other) * 32 + lane);
    }
  }
  const float routed = __ll2float_rn(sum) * 0x1p-32F;
  const float half = routed + gate * block.shared_sums[odd][(tile - jobs.ended) * kTileRows + row];
  const float other = __shfl_xor_sync(kWholeWarp, half, 16);
  if (odd == 0 && !rehearsal) a.around.out[tile * kTileRows + row] = half + other;
}

// Halves of `rows` rows of the shared expert's down, eight lanes each; none: a rehearsal. They begin with the last
// workers, which have less to do of other things. Sums are those of sum_shared().
__noinline__ __device__ void multiply_shared_rows(const uint16_t* weights, const float* inner, int inputs, int rows,
                                                  AloneShared& block) {
  const int task = (kWorkThreads - 1 - static_cast<int>(threadIdx.x)) / kSharedLanes;
  if (rows > 0 && task / (32 / kSharedLanes) * (32 / kSharedLanes) >= 2 * rows) return;
  const int middle = inputs / 2;
  const int lane = static_cast<int>(threadIdx.x) % kSharedLanes;
  const int from = max(0, min(task, 2 * rows - 1));
  float sum = 0;
#pragma unroll 1
  for (int at = lane * 8; at < middle; at += kSharedLanes * 8) {
    const uint4 w = *reinterpret_cast<const uint4*>(weights + from * middle + at);
    const float4 low = load4(inner + from % 2 * middle + at);
    const float4 high = load4(inner + from % 2 * middle + at + 4);
    sum = add_two(w.x, low.x, low.y, sum);
    sum = add_two(w.y, low.z, low.w, sum);
    sum = add_two(w.z, high.x, high.y, sum);
    sum = add_two(w.w, high.z, high.w, sum);
  }
  sum += __shfl_xor_sync(kWholeWarp, sum, 4);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  sum += __shfl_xor_sync(kWholeWarp, sum, 1);
  if (rows > 0 && task < 2 * rows && lane == 0) block.shared_sums[task % 2][task / 2] = sum;
}

}  // namespace tandem::ops::cuda::expert
