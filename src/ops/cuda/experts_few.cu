// Layers of NVFP4 experts for few columns: bound by reading the chosen records once, 2.76 MB a (column, expert) of
// Flash-Next, 27.6 MB a column.
//
// One kernel does it, a block a multiprocessor: the choice of the experts, where it has their logits; gate and up; a
// meeting of all blocks; down. Weights of down are asked for before the meeting, so that the memory has always
// something to do, and while a block waits for the others it multiplies its rows of the shared expert's down. All
// blocks have to be there at once: a card runs one such kernel at a time (it has one stream), those before it end
// whether it has begun or not, and those that follow begin when all of its blocks have. A second kernel converts the
// sums and adds the shared expert's.
#include <algorithm>

#include "ops/cuda/experts_few_down.cuh"
#include "ops/cuda/experts_few_gate.cuh"
#include "ops/cuda/experts_few_shared.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda::expert {

namespace {

// Blocks that have come to meetings of the kernel that runs; convert_sums makes it zero again.
__device__ unsigned int arrived;

// A meeting of all blocks: what they wrote before they arrived can be read past the first-level cache behind the wait
// for the `meeting`-th of a kernel.
__device__ void arrive() {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&arrived) : "memory");
}
__device__ void await_all(unsigned int meeting) {
  if (threadIdx.x == 0) {
    unsigned int now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&arrived) : "memory");
    } while (now < meeting * gridDim.x);
  }
  __syncthreads();
}

// The block's pieces: tiles of 16 rows of a run. The scalars that were asked for stand behind it, too.
__device__ void find_pieces(const FewArgs& a, const Runs& runs, Share items, Share jobs, Piece* item_pieces,
                            Piece* job_pieces) {
  const auto& table = a.args.table;
  const int64_t gate_bytes = table.hidden / kNvfp4UnitInputs * kNvfp4UnitBytes;
  const int64_t down_bytes = table.inner / kNvfp4UnitInputs * kNvfp4UnitBytes;
  const auto record = [&](int run) { return table.records + runs.expert[run] * table.record.bytes; };
  const auto threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < items.end - items.at; i += threads) {
    const auto run = static_cast<int>(a.tiles.quotient(items.at + i));
    const int tile = items.at + i - run * static_cast<int>(a.tiles.value);
    item_pieces[i] = {record(run) + table.record.matrices[0].offset + tile * gate_bytes, run, tile};
  }
  // From the other end, so that other threads have them.
  for (int i = threads - 1 - static_cast<int>(threadIdx.x); i < jobs.end - jobs.at; i += threads) {
    const int tile = (jobs.at + i) / runs.all;
    const int run = jobs.at + i - tile * runs.all;
    job_pieces[i] = {record(run) + table.record.matrices[2].offset + tile * down_bytes, run, tile};
  }
  await_copies<0>();  // of the scalars
  __syncthreads();
}

// The columns of down that need the whole of one to be scaled, a pair a block.
__device__ void quantise_inner(const FewArgs& a, const Runs& runs, float* scratch) {
  const int64_t inner = a.args.table.inner;
  for (auto pair = static_cast<int>(blockIdx.x); pair < a.args.tokens * a.args.top_k; pair += gridDim.x) {
    if (runs.id[pair] < 0) continue;
    const float* h = a.inner + pair * inner;
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x; i < inner; i += blockDim.x) largest = max(largest, magnitude_bits(__ldcg(h + i)));
    largest = lanes_max<32>(largest);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = __uint_as_float(largest);
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; ++w) largest = max(largest, __float_as_uint(scratch[w]));
    const float scale = dynamic_input_scale(largest);
    if (threadIdx.x == 0) a.down_scales[pair] = scale;
    Nvfp4Inputs* column = a.down + pair * few_parts(inner) * kPartUnits;
    const auto halves = static_cast<int>(inner / 8);
    bool finite = true;
    for (int first = 0; first < halves; first += static_cast<int>(blockDim.x)) {
      const int half = min(first + static_cast<int>(threadIdx.x), halves - 2 + static_cast<int>(threadIdx.x % 2));
      const auto* from = reinterpret_cast<const float4*>(h + half * 8);
      finite = store_half(__ldcg(from), __ldcg(from + 1), scale, half, column) && finite;
    }
    if (!finite) mark_fault(a.args.faults, a.top_k.quotient(pair), a.args.fault);
  }
}

// Faults of experts that do not exist.
__device__ void mark_missing(const FewArgs& a, const Runs& runs) {
  const auto p = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && p < a.args.tokens * a.args.top_k && runs.id[p] < 0) {
    mark_fault(a.args.faults, a.top_k.quotient(p), a.args.fault);
  }
}

// The sums of the layer made zero.
__device__ void clear_sums(const FewArgs& a) {
  const int64_t all = a.args.tokens * 2 * a.args.table.hidden;
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) a.sums[i] = 0;
}

// Places in shared memory, in bytes.
struct Places {
  int64_t columns, gate_sums, down_sums, halves, items, jobs, end;

  __host__ __device__ Places(const FewArgs& a, int warps) {
    constexpr int64_t kSums = sizeof(RowSums);
    const int64_t pairs = a.args.tokens * a.args.top_k;
    items = static_cast<int64_t>(warps) * kStages * kStageBytes;
    jobs = items + a.most_items * static_cast<int64_t>(sizeof(Piece));
    halves = jobs + a.most_jobs * static_cast<int64_t>(sizeof(Piece));
    down_sums = halves + a.most_tiles * a.args.tokens * 2 * kSums;
    columns = down_sums + (a.whole_jobs ? 0 : a.most_jobs * a.together * kSums);
    gate_sums = columns + static_cast<int64_t>(kRunsOfPass) * 2 * a.together * a.column_stride;
    const int64_t gate_end = gate_sums + static_cast<int64_t>(a.most_items) * 2 * a.together * kSums;
    // What takes the place of gate's: the shared expert's columns, then those of down.
    const int64_t shared_end = columns + a.args.tokens * a.around.inputs * 4;
    const int64_t down_end = columns + pairs * a.column_bytes;
    end = std::max(std::max(gate_end, down_end), shared_end);
  }
};

__device__ void make_zero(std::byte* from, int64_t bytes) {
  auto* words = reinterpret_cast<uint4*>(from);
  for (auto i = static_cast<int>(threadIdx.x); i < bytes / 16; i += static_cast<int>(blockDim.x)) words[i] = {};
}

// The pairs and their runs. kAlone: there is one token, where logits are given.
template <bool kAlone>
__device__ void find_choice(const FewArgs& a, Runs& runs, Factors& factors, std::byte* memory, std::byte* columns) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (a.around.logits == nullptr) {
    read_choice(a, runs, factors);
    if (warp >= kMostFewPairs / 32) rehearse(columns);
  } else {
    if constexpr (kAlone) {
      auto& of_block = *reinterpret_cast<BlockChoiceMemory*>(memory);
      const auto top_k = static_cast<int>(a.args.top_k);
      if (choose_by_block<4>(a.around.logits, static_cast<int>(a.args.table.experts), top_k, of_block,
                             static_cast<int>(blockDim.x) / 32)) {
        if (warp > 0) rehearse(columns);
        __syncthreads();
        Chosen mine;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        if (warp == 0) mine = weigh(of_block.of_warp.ranked[lane], top_k, of_block.of_warp.exponents);
        return keep_alone(a, runs, factors, mine);
      }
      __syncthreads();
    } else if (warp >= a.args.tokens) {
      rehearse(columns);
    }
    choose_pairs(a, runs, factors, reinterpret_cast<ChoiceMemory*>(memory));
  }
  find_runs(a, runs);
}

// This warp's first of the columns of gate and up.
__device__ void load_first_tasks(const Block& block, Share items, ColumnTask (&tasks)[2]) {
  if (items.at == items.end) return;
  const Divisor& tiles = block.a.tiles;
  const Pass pass(block.runs, static_cast<int>(tiles.quotient(items.at)),
                  static_cast<int>(tiles.quotient(items.end - 1)));
  tasks[0] = load_task(block, pass, block.warp);
  tasks[1] = load_task(block, pass, block.warp + block.warps);
}

template <int kTogether>
__global__ void __launch_bounds__(kMostFewThreads, 1) few_experts(FewArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Runs runs;
  __shared__ Factors factors;
  __shared__ float token_scales[kMostFewColumns];
  __shared__ Cursor cursors[kMostFewThreads / 32];
  __shared__ float scratch[kMostFewThreads / 32];
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const Places places(a, warps);
  const Block block{.a = a,
                    .runs = runs,
                    .token_scales = token_scales,
                    .columns = shared + places.columns,
                    .items = reinterpret_cast<Piece*>(shared + places.items),
                    .jobs = reinterpret_cast<Piece*>(shared + places.jobs),
                    .lane = lane,
                    .warp = warp,
                    .warps = warps};
  auto* gate_sums = reinterpret_cast<RowSums*>(shared + places.gate_sums);
  auto* down_sums = reinterpret_cast<RowSums*>(shared + places.down_sums);
  auto* halves = reinterpret_cast<Halves*>(shared + places.halves);
  make_zero(shared + places.halves, places.columns - places.halves);
  make_zero(shared + places.gate_sums, static_cast<int64_t>(a.most_items) * 2 * a.together * sizeof(RowSums));
  const Share shared_rows = share_of(static_cast<uint32_t>(a.args.table.hidden), blockIdx.x, a.blocks);
  expect_around(a, shared_rows);
  await_previous();
  if (is_dynamic(a)) find_token_scales(a, block, token_scales);
  find_choice<kTogether == 1>(a, runs, factors, shared, block.columns);  // in the place of weights to come
  ask_for_scalars(a, runs);
  Share items;
  if constexpr (kTogether == 1) {
    items = share_of(runs.all * a.tiles.value, blockIdx.x, a.blocks);
  } else {
    items = share_items(a, runs);
  }
  const Share jobs = share_of(runs.all * static_cast<int>(a.args.table.hidden / kTileRows), blockIdx.x, a.blocks);
  ColumnTask tasks[2];
  load_first_tasks(block, items, tasks);
  clear_sums(a);
  find_pieces(a, runs, items, jobs, block.items, block.jobs);
  if (lane == 0) cursors[warp] = down_share(a, jobs.end - jobs.at, warp, block.jobs);
  __syncwarp();
  Stream stream{shared + warp * kStages * kStageBytes, lane, cursors + warp,
                static_cast<int>(a.args.table.hidden / kNvfp4UnitInputs),
                a.args.table.record.matrices[1].offset - a.args.table.record.matrices[0].offset};
  const Nvfp4Tables tables = Nvfp4Tables::make();
  if (items.at < items.end) {
    multiply_gate_and_up<kTogether>(block, items.end - items.at, stream, tables, tasks, gate_sums);
  } else {
    stream.last = true;
    stream.ask_all(a);
  }
  find_factors(a, runs, factors);
  mark_missing(a, runs);
  arrive();
  if (a.around.logits != nullptr) multiply_shared(a, shared_rows, reinterpret_cast<float*>(block.columns));
  await_all(1);
  if (is_dynamic(a)) {
    quantise_inner(a, runs, scratch);
    arrive();
    await_all(2);
    const auto p = static_cast<int>(threadIdx.x);
    if (p < a.args.tokens * a.args.top_k) factors.scale[p] *= __ldcg(a.down_scales + p);
  }
  if (jobs.at == jobs.end) return;
  fetch_columns(block);
  __syncthreads();
  multiply_down<kTogether>(block, factors, jobs.end - jobs.at, stream, tables, down_sums, halves);
}

// What the sums give, and with the shared expert what both together do.
__global__ void __launch_bounds__(256) convert_sums(FewArgs a) {
  follow();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) arrived = 0;
  const int64_t hidden = a.args.table.hidden;
  const int64_t row = blockIdx.x * 256 + threadIdx.x;
  const int64_t token = blockIdx.y;
  if (row >= hidden) return;
  const float lower = __ll2float_rn(a.sums[token * 2 * hidden + row]) * 0x1p-32F;
  const float upper = __ll2float_rn(a.sums[(token * 2 + 1) * hidden + row]) * 0x1p-32F;
  const int64_t to = token * hidden + row;
  if (a.around.logits == nullptr) {
    a.args.lower[to] = lower;
    a.args.upper[to] = upper;
  } else {
    const float shared_lower = a.around.lower[to];
    const float shared_upper = a.around.upper[to];
    const float g = sigmoid(a.around.gates[token]);
    a.around.out[to] = (lower + g * shared_lower) + (upper + g * shared_upper);
  }
}

struct Plan {
  FewArgs few;
  int blocks, threads;
  int64_t shared;
  bool fits;
};

Plan plan_of(const Context& context, const Ops::Experts& args, const Around& around) {
  const bool small = context.capability / 10 != 9;
  // Less what the kernel has besides.
  const int64_t most = (small ? 99 << 10 : 227 << 10) - 9 * 1024;
  const int64_t pairs = args.tokens * args.top_k;
  const int64_t tiles = args.table.hidden / kTileRows;
  Plan plan{};
  FewArgs& few = plan.few;
  few.args = args;
  few.around = around;
  few.chunks = Divisor(base::ceil_div(args.table.hidden, 256));
  few.column_stride = static_cast<int>((few_parts(args.table.hidden) * kPartColumnBytes + 127) / 128 * 128 + 16);
  few.column_bytes = static_cast<int>(few_parts(args.table.inner) * kPartColumnBytes);
  plan.blocks = context.multiprocessors;
  few.blocks = Divisor(plan.blocks);
  few.tiles = Divisor(args.table.inner / kTileRows);
  few.gate_parts = Divisor(few_parts(args.table.hidden));
  few.down_parts = Divisor(few_parts(args.table.inner));
  few.top_k = Divisor(args.top_k);
  few.most_items = static_cast<int>(base::ceil_div(pairs * few.tiles.value, plan.blocks)) + 1;
  few.most_jobs = static_cast<int>(base::ceil_div(pairs * tiles, plan.blocks));
  few.most_tiles = static_cast<int>(tiles / plan.blocks + 3);
  for (few.together = args.tokens == 1 ? 1 : kMostTogether; few.together > 0; few.together /= 2) {
    for (int warps = kMostFewThreads / 32; warps >= 4; warps /= 2) {
      few.warps = Divisor(warps);
      few.whole_jobs = few.most_jobs >= 2 * warps;
      plan.threads = 32 * warps;
      // A kernel of single columns chooses for one token alone.
      const bool chooses_for_all = around.inputs == 0 || few.together > 1 || args.tokens == 1;
      plan.shared = Places(few, warps).end;
      plan.fits = plan.shared <= most && chooses_for_all;
      if (plan.fits) return plan;
    }
  }
  return plan;
}

}  // namespace

bool takes_few_nvfp4(const Context& context, const Ops::Experts& args, const Around& around) {
  const auto& matrices = args.table.record.matrices;
  return args.quantise_activations && args.tokens <= kMostFewColumns && args.tokens * args.top_k <= kMostFewPairs &&
         std::all_of(matrices.begin(), matrices.end(),
                     [](const auto& matrix) { return matrix.format == numeric::ExpertFormat::kNvfp4; }) &&
         plan_of(context, args, around).fits;
}

void run_few_nvfp4(const Context& context, const Ops::Experts& args, const Around& around) {
  const Scratch::Scope scope(context.scratch);
  const int64_t pairs = args.tokens * args.top_k;
  Plan plan = plan_of(context, args, around);
  FewArgs& few = plan.few;
  few.down = context.scratch.take<Nvfp4Inputs>(pairs * few_parts(args.table.inner) * kPartUnits);
  few.sums = context.scratch.take<int64_t>(args.tokens * 2 * args.table.hidden);
  if (args.table.scalars_each == 3) {
    few.inner = context.scratch.take<float>(pairs * args.table.inner);
    few.down_scales = context.scratch.take<float>(pairs);
  }
  if (context.plans()) return;
  const auto kernel = few.together == 1 ? few_experts<1> : few_experts<kMostTogether>;
  allow_shared(kernel, plan.shared);
  launch_following(context, kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(static_cast<unsigned>(plan.threads)),
                   static_cast<size_t>(plan.shared), few);
  const dim3 grid(static_cast<unsigned>(base::ceil_div(args.table.hidden, 256)), static_cast<unsigned>(args.tokens));
  launch_following(context, convert_sums, grid, dim3(256), 0, few);
}

}  // namespace tandem::ops::cuda::expert
