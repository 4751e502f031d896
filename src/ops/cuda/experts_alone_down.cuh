// Down of a single column's NVFP4 experts, of the shared expert, and the sum of all (experts_alone.cu). A job is a tile
// of 16 rows of one expert. A block has consecutive jobs, tile by tile, whose units its workers share evenly, and ends
// a tile whose last job it has: the blocks that have others of it give it their sums.
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

// The block's job of number `number`, if there is one.
struct Job {
  int run = 0, tile = 0;
  bool any = false;

  __device__ Job(const AloneArgs& a, const Jobs& jobs, int number) {
    const int job = jobs.share.at + number;
    any = job < jobs.share.end;
    if (!any) return;
    tile = static_cast<int>(a.top_k.quotient(job));
    run = job - tile * jobs.top_k;
  }
  __device__ static std::byte* place(const AloneArgs& a, std::byte* down, int number) {
    return down + number * a.down_parts * kPartBytes;
  }
  // By one thread.
  __device__ void ask(const AloneArgs& a, const std::byte* record, std::byte* to, Arrival& arrival) const {
    const auto& table = a.args.table;
    const int bytes = static_cast<int>(table.inner) / kNvfp4UnitInputs * kNvfp4UnitBytes;
    Arrival::take_over();
    arrival.expect(bytes);
    arrival.ask(to, record + (table.record.matrices[2].offset + tile * bytes), bytes);
  }
};

// In the place of the weights of gate and up, when these are done.
struct DownSums {
  int64_t jobs[kWorkers][kTileRows];     // of a job, and then its terms
  int64_t own[kWorkers][2 * kTileRows];  // of a worker
};
__device__ inline void clear_sums(DownSums& sums) {
  if (threadIdx.x < kWorkers * kTileRows) sums.jobs[threadIdx.x / kTileRows][threadIdx.x % kTileRows] = 0;
}

// Down's inputs of all experts into shared memory, when they are there; in a rehearsal whatever is.
__noinline__ __device__ void fetch_inputs(const AloneArgs& a, const std::byte* handed, std::byte* columns,
                                          bool rehearsal) {
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
      const int at_block = run * tiles + block;
      words =
          await_given(rehearsal, handed + (scales ? a.handed.scales + at_block * 4 : a.handed.columns + at_block * 16));
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

// The worker's share of the jobs' units, into their sums.
__device__ inline void multiply_down(const AloneArgs& a, const Jobs& jobs, AloneShared& block, const std::byte* columns,
                                     std::byte* down, DownSums& sums, int warp, int lane) {
  const auto units = static_cast<int>(a.down_units.value);
  const int all = (jobs.share.end - jobs.share.at) * units;
  int at = all * warp / kWorkers;
  const int end = all * (warp + 1) / kWorkers;
  auto number = static_cast<int>(a.down_units.quotient(at));
#pragma unroll 1
  for (; at < end; ++number) {
    const int first = at - number * units;
    const int count = min(end - at, units - first);
    const Job job(a, jobs, number);
    block.jobs[number].await();
    // The units behind the middle as a second row of them.
    const int half = (count + 1) / 2;
    constexpr auto kColumnBytes = static_cast<int>(sizeof(Nvfp4Inputs));
    sum_parts(Job::place(a, down, number) + first * kNvfp4UnitBytes, half * kNvfp4UnitBytes,
              columns + job.run * a.down_parts * kPartColumnBytes + first * kColumnBytes, half * kColumnBytes, 1,
              count - half, 2 * half - count, nullptr, sums.own[warp]);
    if (lane < kTileRows) {
      add_shared(&sums.jobs[number][lane], sums.own[warp][lane] + sums.own[warp][kTileRows + lane]);
    }
    __syncwarp();
    at += count;
  }
}
// The terms of the jobs, a thread each.
__device__ inline void find_terms(const AloneArgs& a, const Jobs& jobs, const AloneShared& block, DownSums& sums) {
  const auto number = static_cast<int>(threadIdx.x) / kTileRows;
  const Job job(a, jobs, number);
  if (!job.any || number >= kWorkers) return;
  int64_t& sum = sums.jobs[number][threadIdx.x % kTileRows];
  const float* scalars = block.scalars[job.run];
  const float scale = scalars[2] * scalars[5];
  const float term = block.weights[job.run] * (__ll2float_rn(sum) * 0x1p-20F * scale);
  const bool held = fabsf(term) < numeric::kLargestExpertTerm;
  sum = held ? __float2ll_rn(term * 0x1p32F) : 0;
  if (!held) mark_fault(a.args.faults, 0, a.args.fault);
}

// Of each of the block's tiles the sums of even and odd experts: given to the block that ends the tile, or ended. A
// warp a tile, its lanes 16 p + r.
__noinline__ __device__ void end_tiles(const AloneArgs& a, const AloneShared& block, std::byte* handed,
                                       const DownSums& terms, float gate, int warp, bool rehearsal) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Jobs jobs(a);
  const int tile = jobs.first_tile + warp;
  const int row = lane % kTileRows;
  const int odd = lane / kTileRows;
  const int first = max(jobs.share.at, tile * jobs.top_k);
  const int end = min(jobs.share.end, (tile + 1) * jobs.top_k);
  if (first >= end) return;
  int64_t sum = 0;
#pragma unroll 4
  for (int job = first; job < end; ++job) {
    const bool own = (block.ranked[job - tile * jobs.top_k].id & 1) == odd;
    sum += own ? terms.jobs[job - jobs.share.at][row] : 0;
  }
  auto* sums = reinterpret_cast<uint4*>(handed + a.handed.sums) + lane;
  if (end < (tile + 1) * jobs.top_k) {
    if (!rehearsal) give_whole(sums + static_cast<int>(blockIdx.x) * 32, sum);
    return;
  }
  if (first > tile * jobs.top_k) {
    for (int other = static_cast<int>(blockIdx.x) - 1; other >= 0; --other) {
      const Share share = share_of(Jobs::all(a), other, a.blocks);
      if (share.end <= tile * jobs.top_k) break;
      if (share.at < share.end) sum += await_whole(rehearsal, sums + other * 32);
    }
  }
  const float routed = __ll2float_rn(sum) * 0x1p-32F;
  const float half = routed + gate * block.shared_sums[odd][(tile - jobs.ended) * kTileRows + row];
  const float other = __shfl_xor_sync(kWholeWarp, half, 16);
  if (odd == 0 && !rehearsal) a.around.out[tile * kTileRows + row] = half + other;
}

// Halves of `rows` rows of the shared expert's down, eight lanes each, by the warps aside. Sums are those of
// sum_shared().
__device__ inline void multiply_shared_rows(const uint16_t* weights, const float* inner, int inputs, int rows,
                                            AloneShared& block) {
  const int middle = inputs / 2;
  const int lane = static_cast<int>(threadIdx.x) % kSharedLanes;
  constexpr int kTasks = kAside * 32 / kSharedLanes;
#pragma unroll 1
  for (int first = 0; first < 2 * rows; first += 2 * kTasks) {  // rows are a multiple of 16
    const int task = first + static_cast<int>(threadIdx.x) % (kAside * 32) / kSharedLanes;
    const int other = min(task + kTasks, 2 * rows - 1);
    const float* of_half = inner + task % 2 * middle;  // kTasks is even
    float sums[2] = {};
#pragma unroll 2
    for (int at = lane * 8; at < middle; at += kSharedLanes * 8) {
      const float4 low = load4(of_half + at);
      const float4 high = load4(of_half + at + 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 w = *reinterpret_cast<const uint4*>(weights + (i == 0 ? task : other) * middle + at);
        float sum = sums[i];
        sum = add_two(w.x, low.x, low.y, sum);
        sum = add_two(w.y, low.z, low.w, sum);
        sum = add_two(w.z, high.x, high.y, sum);
        sums[i] = add_two(w.w, high.z, high.w, sum);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] += __shfl_xor_sync(kWholeWarp, sums[i], 4);
      sums[i] += __shfl_xor_sync(kWholeWarp, sums[i], 2);
      sums[i] += __shfl_xor_sync(kWholeWarp, sums[i], 1);
    }
    if (lane != 0) continue;
    block.shared_sums[task % 2][task / 2] = sums[0];
    if (task + kTasks < 2 * rows) block.shared_sums[other % 2][other / 2] = sums[1];
  }
}

}  // namespace tandem::ops::cuda::expert
