// The feed-forward of NVFP4 experts for a single column, from the router's logits to the sum of all: a launch whose
// blocks, one a multiprocessor, are all there at once (experts_few.cu says why they are). It is to take what latencies
// and the reading of the chosen records take:
//
// A worker, one of sixteen warps, has a part of gate and up, and one tile of down of one expert, each of them small
// enough to be asked for whole: 210 KB a block of Flash-Next, gate and up as soon as the experts are known, and down
// when gate's inputs are made. Another warp does the asking, for a thread waits in it as long as there is too much
// under way; and two do the shared expert's down, and go through all other code before it is needed. Blocks hand each
// other values that are never zero, in memory that was zero before, so that no one waits for a signal and then for the
// values. Numbers are those of router_few.cu and experts_few.cu, bit by bit.
#include <algorithm>

#include "ops/cuda/experts_alone_choice.cuh"
#include "ops/cuda/experts_alone_down.cuh"
#include "ops/cuda/experts_alone_gate.cuh"
#include "ops/cuda/experts_alone_rows.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda::expert {

namespace {

// Memory for what blocks hand each other, in turns: while a launch takes one half, its blocks make the other one zero.
// A card runs one such kernel at a time.
__device__ __align__(16) std::byte handed_bytes[2][kHandedBytes];
__device__ unsigned int turn;   // whose half the launch takes
__device__ unsigned int begun;  // blocks of the launch that know of it

__device__ unsigned int load_turn() {
  unsigned int out;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(out) : "l"(&turn) : "memory");
  return out;
}
// The block's share of the half that the next launch takes. By one warp.
__device__ void clear_next(unsigned int own, int lane) {
  auto* words = reinterpret_cast<uint4*>(handed_bytes[1 - own]);
  for (int i = static_cast<int>(blockIdx.x) * 32 + lane; i < kHandedBytes / 16; i += static_cast<int>(gridDim.x) * 32) {
    words[i] = {};
  }
}
// By a thread of each block, when the block knows its turn: the last one begins the next.
__device__ void end_turn(unsigned int own) {
  if (atomicInc(&begun, gridDim.x - 1) == gridDim.x - 1) turn = 1 - own;
}

__device__ inline const std::byte* record_of(const AloneArgs& a, const AloneShared& block, int run) {
  const int id = block.ranked[run].id;
  return a.args.table.records + (id >= 0 && id < a.args.table.experts ? id : 0) * a.args.table.record.bytes;
}
// The weights of the chosen, which stand behind the next barrier, and all of it in memory. By one warp.
__device__ void weigh_experts(const AloneArgs& a, AloneShared& block, int lane) {
  const auto top_k = static_cast<int>(a.args.top_k);
  const Choice mine = block.ranked[lane];
  const Chosen chosen = weigh(mine, top_k, block.exponents);
  if (lane >= top_k) return;
  const bool exists = mine.id >= 0 && mine.id < a.args.table.experts;
  block.weights[lane] = exists ? chosen.weight : 0;
  if (blockIdx.x > 0) return;
  a.around.ids[lane] = mine.id;
  a.around.weights[lane] = chosen.weight;
  if (!exists) mark_fault(a.args.faults, 0, a.args.fault);
}

// What a lane of the asking warp asks for: a turn of one of the block's tiles, but for the expert.
struct TurnOfTile {
  int run, tile, first, up;
  int arrival;  // among all of the block's
  std::byte* to;
  // Of `count` that there are.
  __device__ TurnOfTile(const AloneArgs& a, const AlonePlaces& places, std::byte* shared, int number, int count) {
    const auto warps = static_cast<int>(a.warps_each.value);
    number = max(0, min(number, count - 1));
    const int turn = count > 0 ? number / a.whole : 0;
    const Chunk chunk(a, places, shared, (number - turn * a.whole) * warps);
    run = chunk.run;
    tile = chunk.tile;
    first = turn * warps;
    up = chunk.up;
    arrival = chunk.own * kMostChunk + turn;
    to = chunk.weights + first * kPartBytes;
  }
};

// All weights, by one warp that has nothing else to do: a thread waits in asking as long as there is too much under
// way. Those of tiles that blocks share come first, for others wait for their sums; then turn by turn, no more at once
// than keeps the memory busy, for it serves in any order what it has been asked for.
__device__ void ask_all(const AloneArgs& a, AloneShared& block, const AlonePlaces& places, std::byte* shared,
                        int lane) {
  const unsigned int own = load_turn();
  clear_next(own, lane);
  const Chunk rest(a, places, shared, kWorkers - 1);
  const Job job(a, Jobs(a), lane);
  const int turns = a.chunk * a.whole;
  TurnOfTile mine(a, places, shared, lane, turns);
  meet_asking();
  Arrival::take_over();
  if (lane < rest.parts && rest.rest) {
    ask_parts(a, record_of(a, block, rest.run), rest.tile, rest.first + lane, 1, rest.weights + lane * kPartBytes,
              rest.up, block.turns[kWorkers - 1][lane]);
  }
  Arrival* arrivals = &block.turns[0][0];
#pragma unroll 1
  for (int begin = 0; begin < turns; begin += 32) {
    if (begin > 0) mine = TurnOfTile(a, places, shared, begin + lane, turns);
    const std::byte* record = record_of(a, block, mine.run);
#pragma unroll 1
    for (int i = 0; i < min(32, turns - begin); ++i) {
      if (i >= a.ahead) arrivals[__shfl_sync(kWholeWarp, mine.arrival, i - a.ahead)].await();
      if (lane == i) {
        ask_parts(a, record, mine.tile, mine.first, static_cast<int>(a.warps_each.value), mine.to, mine.up,
                  arrivals[mine.arrival]);
      }
      __syncwarp();
    }
  }
  if (lane == 0) end_turn(own);
  await_release();
  if (job.any) {
    job.ask(a, record_of(a, block, job.run), Job::place(a, shared + places.down, lane), block.jobs[lane]);
  }
}
__device__ Ranking& ranking_of(std::byte* columns) {
  return *reinterpret_cast<Ranking*>(columns);
}

// What comes behind the asking, or behind the wait for the kernels before.
__device__ void rehearse_all(const AloneArgs& a, AloneShared& block, const AlonePlaces& places, std::byte* shared,
                             int warp) {
  auto* anything = reinterpret_cast<float(*)[kRowsOfPart]>(block.rehearsal);
  if (warp == kAsking + 1) {
    multiply_rows(a, block, shared, {}, {}, {}, {}, a.row_parts, anything, true);
    quantise_blocks(a, reinterpret_cast<float*>(shared), 0, 0, 1.0F, block.rehearsal);
    finish_tile(a, nullptr, block.scalars[0], -1, 0);
    end_tiles(a, block, handed_bytes[0], *reinterpret_cast<DownSums*>(shared), 0, 0, true);
  } else {
    rank_experts(static_cast<int>(a.args.top_k), block, ranking_of(shared + places.columns), 0, {}, true);
    sum_parts(shared, kPartBytes, block.rehearsal, 0, 1, 1, 1, nullptr, reinterpret_cast<int64_t*>(block.rehearsal));
    fetch_inputs(a, handed_bytes[0], block.rehearsal, true);
  }
}

// The shared expert's down of the tiles that the block ends, by two warps, who rehearse the others' work before.
__device__ void work_aside(const AloneArgs& a, AloneShared& block, const AlonePlaces& places, std::byte* shared,
                           int warp) {
  const int thread = static_cast<int>(threadIdx.x) % (kAside * 32);
  const Jobs jobs(a);
  const int rows = (jobs.ended_end - jobs.ended) * kTileRows;
  auto* weights = reinterpret_cast<uint16_t*>(shared + places.shared_rows);
  auto* inner = reinterpret_cast<float*>(shared + places.inner);
  rehearse_all(a, block, places, shared, warp);
  learn_aside();  // the turn may have ended already
  if (warp == kAsking + 1 && thread % 32 == 0 && rows > 0) {
    const int bytes = rows * a.around.inputs * 2;
    block.shared_rows.open();
    announce_barriers();
    block.shared_rows.expect(bytes);
    block.shared_rows.ask(weights, a.around.down + static_cast<int64_t>(jobs.ended) * kTileRows * a.around.inputs,
                          bytes);
  }
  const std::byte* given = block.handed + a.handed.inner;
  constexpr int kTogether = 5;
  for (int begin = thread; begin < a.around.inputs; begin += kTogether * kAside * 32) {
    int64_t words[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      words[i] = load_given_float(given, min(begin + i * kAside * 32, a.around.inputs - 1));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = min(begin + i * kAside * 32, a.around.inputs - 1);
      const float value = await_float(given, at, words[i]);
      inner[at] = a.around.round ? rounded_to_bf16(value) : value;
    }
  }
  meet_aside();
  if (rows > 0) {
    block.shared_rows.await();
    multiply_shared_rows(weights, inner, a.around.inputs, rows, block);
  }
  release_asking();
  end_aside();
}

// Those of the weights that the asking warp asks for later.
__device__ void open_barriers(AloneShared& block, int warp, int lane) {
  if (lane > 0) return;
#pragma unroll
  for (int turn = 0; turn < kMostChunk; ++turn) block.turns[warp][turn].open();
  block.jobs[warp].open();
  announce_barriers();
  block.tickets[warp] = 0;
}

__device__ void work(const AloneArgs& a, AloneShared& block, const AlonePlaces& places, std::byte* shared, int warp,
                     int lane) {
  std::byte* columns = shared + places.columns;
  std::byte* rest_columns = shared + places.rest_columns;
  auto* x = reinterpret_cast<float*>(shared + places.down);
  const auto thread = static_cast<int>(threadIdx.x);
  await_previous();  // before all that can be done behind it: code comes slowly at the beginning
  const int half = thread / kRowThreads;
  const RowInputs row_inputs = load_row_inputs(a);
  const unsigned int own_turn = thread % kRowThreads == 0 ? load_turn() : 0;
  ExpertScalars own = {};
  if (thread < a.args.table.experts) {
#pragma unroll
    for (int i = 0; i < kScalars; ++i) own.values[i] = __ldg(a.args.table.scalars + thread * kScalars + i);
  }
  open_barriers(block, warp, lane);
  learn_of_rows();
  if (thread % kRowThreads == 0) block.handed = handed_bytes[own_turn];
  tell_aside();
  if (half == 0) store_row_inputs(a, row_inputs, x);
  multiply_slots(a, block, shared, row_inputs, half);
  if (warp == 0) choose_none(block, own);
  const Chunk chunk(a, places, shared, warp);
  const uint32_t key = thread < a.args.table.experts ? order_key(await_float(block.handed, thread)) : 0;
  rank_experts(static_cast<int>(a.args.top_k), block, ranking_of(columns), key, own, false);
  meet_asking();
  make_columns(a, block, chunk, x, columns, rest_columns, warp);
  meet_workers();
  release_asking();
  const int64_t gate_word = load_given_float(block.handed + a.handed.gate, 0);
  if (chunk.parts > 0) multiply_gate_and_up(a, chunk, block, columns, rest_columns, lane);
  if (warp == kWorkers - 1) {
    weigh_experts(a, block, lane);
    finish_rest(a, block, lane);
  }
  meet_workers();
  auto& sums = *reinterpret_cast<DownSums*>(shared);
  clear_sums(sums);
  fetch_inputs(a, block.handed, columns, false);
  const Jobs jobs(a);
  meet_workers();
  multiply_down(a, jobs, block, columns, shared + places.down, sums, warp, lane);
  const float gate = sigmoid(await_float(block.handed + a.handed.gate, 0, gate_word));
  meet_workers();
  find_terms(a, jobs, block, sums);
  meet_workers_and_aside();
  end_tiles(a, block, block.handed, sums, gate, warp, false);
}

__global__ void __launch_bounds__(kAloneThreads, 1) experts_alone(const __grid_constant__ AloneArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ AloneShared block;
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == kAsking) {
    // At once, by the code that comes first, for code comes slowly: the router's rows, and a while later the others,
    // which would delay them, for the memory serves in any order what it has been asked for.
    if (lane < kRowSlots) {
      block.rows[lane].open();
      announce_barriers();
    }
    __syncwarp();
    if (lane == 0) ask_rows(a, shared, 0, block.rows[0]);
    tell_of_rows();
    await_previous();
    if (lane > 0 && lane < kRowSlots) ask_rows(a, shared, lane, block.rows[lane]);
  }
  const AlonePlaces places(a);
  if (warp < kWorkers) return work(a, block, places, shared, warp, lane);
  if (warp == kAsking) return ask_all(a, block, places, shared, lane);
  work_aside(a, block, places, shared, warp);
}

struct Plan {
  AloneArgs alone;
  int shared;
  bool fits;
};

Plan plan_of(const Context& context, const Ops::Experts& args, const Around& around, const RouterRows& rows) {
  const int blocks = context.multiprocessors;
  const auto parts_in = [](int64_t all, int64_t each) { return static_cast<int>(base::ceil_div(all, each)); };
  const auto tiles = static_cast<int>(args.table.inner / kTileRows);
  const auto items = static_cast<int>(args.top_k) * tiles;
  Plan plan{};
  AloneArgs& alone = plan.alone;
  alone.args = args;
  alone.around = around;
  alone.rows = rows;
  alone.row_parts = rows.parts();
  alone.gate_parts = static_cast<int>(few_parts(args.table.hidden));
  alone.down_parts = static_cast<int>(few_parts(args.table.inner));
  alone.pairs = parts_in(alone.gate_parts, 2);
  alone.blocks = Divisor(blocks);
  alone.tiles = Divisor(tiles);
  alone.top_k = Divisor(args.top_k);
  alone.down_units = Divisor(args.table.inner / kNvfp4UnitInputs);
  alone.down_blocks = Divisor(alone.down_parts * kBlocksOfPart);
  constexpr int kWarps = kWorkers - 1;  // the last one has parts of tiles that are left
  alone.whole = items / blocks;
  const int warps_each = alone.whole > 0 && alone.whole <= kWarps ? kWarps / alone.whole : 1;
  alone.warps_each = Divisor(warps_each);
  alone.chunk = parts_in(alone.gate_parts, warps_each);
  alone.givers = std::min(warps_each, alone.gate_parts);
  constexpr int kMostAhead = 36 << 10;  // bytes
  alone.ahead = std::max(2, kMostAhead / (warps_each * 2 * kPartBytes));
  alone.rest_tiles = items % blocks;
  const int span = alone.rest_tiles > 0 ? blocks / alone.rest_tiles : 1;
  alone.span = Divisor(span);
  alone.rest_chunk = parts_in(alone.gate_parts, span);
  alone.pieces = parts_in(alone.gate_parts, alone.rest_chunk);
  alone.most_jobs = parts_in(args.top_k * (args.table.hidden / kTileRows), blocks);
  alone.most_ended = parts_in(alone.most_jobs, args.top_k);
  plan.shared = AlonePlaces(alone).end;
  int handed = 0;
  const auto take = [&](int64_t bytes) {
    const int at = handed;
    handed += static_cast<int>(base::round_up(static_cast<uint64_t>(bytes), 16));
    return at;
  };
  take(args.table.experts * 8);
  alone.handed = {.gate = take(8),
                  .inner = take(static_cast<int64_t>(around.inputs) * 8),
                  .columns = take(static_cast<int64_t>(items) * 16),
                  .scales = take(static_cast<int64_t>(items) * 4),
                  .rest = take(static_cast<int64_t>(alone.rest_tiles) * alone.pieces * 32 * 8),
                  .sums = take(static_cast<int64_t>(blocks) * 32 * 16)};
  const auto whole_lines = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  plan.fits = context.capability / 10 == 9 && args.tokens == 1 && args.table.scalars_each == kScalars &&
              args.top_k <= kMostAloneTopK && alone.whole <= std::min(kWarps, tiles + 1) &&
              (alone.whole == 0 || alone.chunk <= kMostChunk) &&
              (alone.rest_tiles == 0 || alone.rest_chunk <= kMostChunk) && alone.most_jobs <= kWorkers &&
              alone.most_ended <= 2 && args.table.hidden <= kMostAloneHidden && args.table.experts <= kMostFewExperts &&
              rows.inputs % 8 == 0 && alone.row_parts <= kRowSlots * blocks && whole_lines(rows.router) &&
              whole_lines(rows.gate) && whole_lines(rows.inner_gate) && whole_lines(rows.inner_up) &&
              whole_lines(args.x) && handed <= kHandedBytes &&
              plan.shared <= (227 << 10) - static_cast<int>(sizeof(AloneShared));
  return plan;
}

}  // namespace

bool takes_alone(const Context& context, const Ops::Experts& args, const Around& around, const RouterRows& rows) {
  return args.tokens == 1 && plan_of(context, args, around, rows).fits;
}

void run_alone(const Context& context, const Ops::Experts& args, const Around& around, const RouterRows& rows) {
  const Plan plan = plan_of(context, args, around, rows);
  allow_shared(experts_alone, plan.shared);
  launch_following(context, experts_alone, dim3(static_cast<unsigned>(context.multiprocessors)), dim3(kAloneThreads),
                   static_cast<size_t>(plan.shared), plan.alone);
  TANDEM_CUDA_LAUNCHED("experts_alone");
}

}  // namespace tandem::ops::cuda::expert
