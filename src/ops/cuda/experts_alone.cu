// The feed-forward of NVFP4 experts for a single column, behind the router's logits: a launch whose blocks, one a
// multiprocessor, are all there at once (experts_few.cu says why they are). It is to take what latencies and the
// reading of the chosen records take:
//
// A worker, one of sixteen warps, has a part of gate and up, and one tile of down of one expert, each of them small
// enough to be asked for whole: 210 KB a block of Flash-Next, gate and up as soon as the experts are known, and down
// when gate's inputs are made. Another warp does the asking, for a thread waits in it as long as there is too much
// under way; and two go through code before it is needed. Blocks hand each other values that are never zero, in memory
// that was zero before, so that no one waits for a signal and then for the values. Numbers are those of experts_few.cu,
// bit by bit.
#include <algorithm>

#include "ops/cuda/experts_alone_down.cuh"
#include "ops/cuda/experts_alone_gate.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda::expert {

namespace {

// Where choose_by_block() does not: experts few or alike. By the first warp.
__noinline__ __device__ void choose_slowly(const AloneArgs& a, AloneShared& block) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto experts = static_cast<int>(a.args.table.experts);
  const auto top_k = static_cast<int>(a.args.top_k);
  uint32_t keys[kMostFewExperts / 32];
#pragma unroll
  for (int i = 0; i < kMostFewExperts / 32; ++i) {
    keys[i] = i * 32 + lane < experts ? order_key(__ldcg(a.around.logits + i * 32 + lane)) : 0;
  }
  const Choice mine = choose(keys, top_k, block.choice.of_warp);
  __syncwarp();
  block.choice.of_warp.ranked[lane] = mine;
  if (lane >= top_k) return;
  const int expert = mine.id >= 0 && mine.id < experts ? mine.id : 0;
  for (int i = 0; i < kScalars; ++i) block.scalars[lane][i] = __ldg(a.args.table.scalars + expert * kScalars + i);
}

// The experts, behind the next barrier, in block.choice.of_warp.ranked, and their scalars, which are those of number 0
// where there is no such expert, as may happen if logits are no numbers. `own`: the scalars of the thread's expert.
__device__ void choose_experts(const AloneArgs& a, AloneShared& block, const float (&own)[kScalars], int warp) {
  const auto experts = static_cast<int>(a.args.table.experts);
  const auto top_k = static_cast<int>(a.args.top_k);
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const auto keep = [&](int, int place) {
#pragma unroll
    for (int i = 0; i < kScalars; ++i) block.candidate_scalars[place][i] = own[i];
  };
  const auto rank = [&](int place, int rank) {
    if (rank < top_k && lane < kScalars) block.scalars[rank][lane] = block.candidate_scalars[place][lane];
  };
  if (!choose_by_block<kWorkers>(
          a.around.logits, experts, top_k, block.choice, kWorkers, [] { meet_workers(); }, keep, rank)) {
    meet_workers();
    if (warp == 0) choose_slowly(a, block);
  }
}
__device__ inline const std::byte* record_of(const AloneArgs& a, const AloneShared& block, int run) {
  const int id = block.choice.of_warp.ranked[run].id;
  return a.args.table.records + (id >= 0 && id < a.args.table.experts ? id : 0) * a.args.table.record.bytes;
}
// The weights of the chosen, which stand behind the next barrier, and all of it in memory. By one warp.
__device__ void weigh_experts(const AloneArgs& a, AloneShared& block, int lane) {
  const auto top_k = static_cast<int>(a.args.top_k);
  const Choice mine = block.choice.of_warp.ranked[lane];
  const Chosen chosen = weigh(mine, top_k, block.choice.of_warp.exponents);
  if (lane >= top_k) return;
  const bool exists = mine.id >= 0 && mine.id < a.args.table.experts;
  block.weights[lane] = exists ? chosen.weight : 0;
  if (blockIdx.x > 0) return;
  a.around.ids[lane] = mine.id;
  a.around.weights[lane] = chosen.weight;
  if (!exists) mark_fault(a.args.faults, 0, a.args.fault);
}

// What the column brings: x and the shared expert's inputs, into shared memory. They stand behind the next barrier.
__device__ void load_columns(const AloneArgs& a, float* x, float* inner) {
  const auto fours = static_cast<int>(a.args.table.hidden / 4);
  const auto i = static_cast<int>(threadIdx.x);
  constexpr int kMost = kMostAloneHidden / 4 / kWorkThreads;
  float4 values[kMost];
  float4 of_inner = {};
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int at = i + k * kWorkThreads;
    values[k] = at < fours ? __ldcg(reinterpret_cast<const float4*>(a.args.x) + at) : float4{0, 0, 0, 0};
  }
  if (i < a.around.inputs / 4) of_inner = __ldcg(reinterpret_cast<const float4*>(a.around.inner) + i);
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int at = i + k * kWorkThreads;
    if (at < a.pairs * 64) store4(x + 4 * at, values[k]);
  }
  if (i >= a.around.inputs / 4) return;
  if (a.around.round) {
    of_inner = rounded_to_bf16(of_inner);
  }
  store4(inner + 4 * i, of_inner);
}

// All weights, by one warp that has nothing else to do: a thread waits in asking as long as there is too much under
// way. A lane has a chunk of gate and up, those of tiles that blocks share first, and later a job.
__device__ void ask_all(const AloneArgs& a, AloneShared& block, const AlonePlaces& places, std::byte* shared,
                        int lane) {
  const int worker = (lane + kWorkers - 1) % kWorkers;
  const Chunk chunk(a, places, shared, worker);
  const Job job(a, Jobs(a), shared + places.down, lane);
  await_previous();
  meet_asking();
  if (lane < kWorkers) {
    const std::byte* record = record_of(a, block, chunk.run);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) chunk.ask(a, record, half, block.halves[worker][half]);
  }
  __syncwarp();
  await_release();
  if (lane < kWorkers && job.any) job.ask(a, record_of(a, block, job.run), block.jobs[lane]);
}
// What comes behind the asking.
__device__ void rehearse_all(const AloneArgs& a, AloneShared& block, std::byte* shared, int warp) {
  if (warp == kAsking + 1) {
    rehearse(block.rehearsal);
    finish_tile(a, block.scalars[0], -1, 0);
    end_tiles(a, block, shared, 0, 0, true);
  } else {
    sum_parts(shared, kPartBytes, block.rehearsal, 0, 1, 1, nullptr, reinterpret_cast<int64_t*>(block.rehearsal));
    multiply_shared_rows(reinterpret_cast<uint16_t*>(shared), reinterpret_cast<float*>(shared), 64, 0, block);
    fetch_inputs(a, block.rehearsal, true);
  }
}

__device__ void work(const AloneArgs& a, AloneShared& block, const AlonePlaces& places, std::byte* shared, int warp,
                     int lane) {
  std::byte* columns = shared + places.columns;
  std::byte* rest_columns = shared + places.rest_columns;
  auto* x = reinterpret_cast<float*>(shared + places.down);
  auto* inner = reinterpret_cast<float*>(shared + places.inner);
  auto* shared_rows = reinterpret_cast<uint16_t*>(shared + places.shared_rows);
  const Jobs jobs(a);
  const int rows = (jobs.ended_end - jobs.ended) * kTileRows;
  if (threadIdx.x == 0 && rows > 0) {
    const int bytes = rows * a.around.inputs * 2;
    block.shared_rows.expect(bytes);
    block.shared_rows.ask(shared_rows, a.around.down + static_cast<int64_t>(jobs.ended) * kTileRows * a.around.inputs,
                          bytes);
  }
  float own_scalars[kScalars] = {};
  if (threadIdx.x < a.args.table.experts) {
#pragma unroll
    for (int i = 0; i < kScalars; ++i) own_scalars[i] = __ldg(a.args.table.scalars + threadIdx.x * kScalars + i);
  }
  const Chunk chunk(a, places, shared, warp);
  const Job job(a, jobs, shared + places.down, warp);
  await_previous();
  load_columns(a, x, inner);
  choose_experts(a, block, own_scalars, warp);
  meet_asking();
  make_columns(a, block, chunk, x, columns, rest_columns, warp);
  if (rows > 0) {
    block.shared_rows.await();
    multiply_shared_rows(shared_rows, inner, a.around.inputs, rows, block);
  }
  meet_workers();
  release_asking();
  const float gate_logit = __ldcg(a.around.gates);
  if (chunk.parts > 0) multiply_gate_and_up(a, chunk, block, columns, rest_columns, warp, lane);
  if (warp == kWorkers - 1) {
    weigh_experts(a, block, lane);
    finish_rest(a, block, lane);
  }
  const float gate = sigmoid(gate_logit);
  meet_workers();
  fetch_inputs(a, columns, false);
  meet_workers();
  if (job.any) multiply_down(a, job, block, columns, warp, lane);
  meet_workers();
  end_tiles(a, block, shared + places.down, gate, warp, false);
}

__global__ void __launch_bounds__(kAloneThreads, 1) experts_alone(const __grid_constant__ AloneArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ AloneShared block;
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const AlonePlaces places(a);
  if (warp < kWorkers && lane == 0) {
    block.halves[warp][0].open();
    block.halves[warp][1].open();
    block.jobs[warp].open();
    if (warp == 0) block.shared_rows.open();
    announce_barriers();
    block.tickets[warp] = 0;
  }
  __syncwarp();
  if (warp < kWorkers) return work(a, block, places, shared, warp, lane);
  if (warp == kAsking) return ask_all(a, block, places, shared, lane);
  rehearse_all(a, block, shared, warp);
}

struct Plan {
  AloneArgs alone;
  int shared;
  int64_t scales, rest, sums, all;  // places among the zeros, in bytes
  bool fits;
};

Plan plan_of(const Context& context, const Ops::Experts& args, const Around& around) {
  const int blocks = context.multiprocessors;
  const auto parts_in = [](int64_t all, int64_t each) { return static_cast<int>(base::ceil_div(all, each)); };
  const auto tiles = static_cast<int>(args.table.inner / kTileRows);
  const auto items = static_cast<int>(args.top_k) * tiles;
  Plan plan{};
  AloneArgs& alone = plan.alone;
  alone.args = args;
  alone.around = around;
  alone.gate_parts = static_cast<int>(few_parts(args.table.hidden));
  alone.down_parts = static_cast<int>(few_parts(args.table.inner));
  alone.pairs = parts_in(alone.gate_parts, 2);
  alone.blocks = Divisor(blocks);
  alone.tiles = Divisor(tiles);
  alone.top_k = Divisor(args.top_k);
  alone.down_blocks = Divisor(alone.down_parts * kBlocksOfPart);
  constexpr int kWarps = kWorkers - 1;  // the last one has parts of tiles that are left
  alone.whole = items / blocks;
  const int warps_each = alone.whole > 0 && alone.whole <= kWarps ? kWarps / alone.whole : 1;
  alone.warps_each = Divisor(warps_each);
  alone.chunk = parts_in(alone.gate_parts, warps_each);
  alone.givers = parts_in(alone.gate_parts, alone.chunk);
  alone.rest_tiles = items % blocks;
  const int span = alone.rest_tiles > 0 ? blocks / alone.rest_tiles : 1;
  alone.span = Divisor(span);
  alone.rest_chunk = parts_in(alone.gate_parts, span);
  alone.pieces = parts_in(alone.gate_parts, alone.rest_chunk);
  alone.most_jobs = parts_in(args.top_k * (args.table.hidden / kTileRows), blocks);
  alone.most_ended = parts_in(alone.most_jobs, args.top_k);
  plan.shared = AlonePlaces(alone).end;
  plan.scales = items * 16;
  plan.rest = static_cast<int64_t>(base::round_up(static_cast<uint64_t>(plan.scales + items * 4), 16));
  plan.sums = plan.rest + static_cast<int64_t>(alone.rest_tiles) * alone.pieces * 32 * 8;
  plan.all = plan.sums + static_cast<int64_t>(blocks) * 32 * 16;
  plan.fits = context.capability / 10 == 9 && args.tokens == 1 && args.table.scalars_each == kScalars &&
              args.top_k <= kMostAloneTopK && alone.whole <= std::min(kWarps, tiles + 1) &&
              (alone.whole == 0 || alone.chunk <= kMostChunk) &&
              (alone.rest_tiles == 0 || alone.rest_chunk <= kMostChunk) && alone.most_jobs <= kWorkers &&
              alone.most_ended <= 2 && args.table.hidden <= kMostAloneHidden &&
              plan.shared <= (227 << 10) - static_cast<int>(sizeof(AloneShared));
  return plan;
}

}  // namespace

int64_t alone_zeros(const Context& context, const Ops::Experts& args, const Around& around) {
  const Plan plan = plan_of(context, args, around);
  return plan.fits ? plan.all : 0;
}

void run_alone(const Context& context, const Ops::Experts& args, const Around& around, std::byte* zeros) {
  if (context.plans()) return;
  Plan plan = plan_of(context, args, around);
  AloneArgs& alone = plan.alone;
  alone.columns = reinterpret_cast<uint32_t*>(zeros);
  alone.scales = reinterpret_cast<uint32_t*>(zeros + plan.scales);
  alone.rest = reinterpret_cast<int64_t*>(zeros + plan.rest);
  alone.sums = reinterpret_cast<uint4*>(zeros + plan.sums);
  allow_shared(experts_alone, plan.shared);
  launch_following(context, experts_alone, dim3(static_cast<unsigned>(context.multiprocessors)), dim3(kAloneThreads),
                   static_cast<size_t>(plan.shared), alone);
  TANDEM_CUDA_LAUNCHED("experts_alone");
}

}  // namespace tandem::ops::cuda::expert
