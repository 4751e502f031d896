// Layers of NVFP4 experts for few columns: bound by reading the chosen records once, 2.76 MB a (column, expert) of
// Flash-Next, 27.6 MB a column. Four launches, each started while the one before runs, so that its first weights are
// on their way when that ends:
//   inputs       quantises x for each pair's gate and up
//   gate and up  a block has some (expert, tile of 16 rows), and its warps share the units of 16 rows x 64 inputs of
//                these evenly: the sums R are exact in int64, so their order is free. SwiGLU and the quantisation of
//                down's inputs follow at once: a tile is a block of 16 of them.
//   down         the same with (tile, expert), and the weighted terms into the layer's sums
//   convert      these to FP32
// Warps read units through rings in shared memory, with the columns' inputs beside them. A unit costs a warp about 80
// operations and a column; the integer pipes are half as wide as the others, so that tables, shifts and products are
// spread over both (experts_nvfp4.cuh).
#include <algorithm>

#include "ops/cuda/experts_nvfp4.cuh"
#include "ops/cuda/experts_quantise.cuh"

namespace tandem::ops::cuda::expert {

namespace {

constexpr int kMostPairs = 128;
constexpr int kColumnBytes = static_cast<int>(sizeof(Nvfp4Inputs));
constexpr int kColumnPieces = kColumnBytes / 16;

struct FewArgs {
  Ops::Experts args;
  Nvfp4Inputs* gate = nullptr;    // [columns, hidden / 64], columns of tokens where scales are dynamic, else of pairs
  Nvfp4Inputs* up = nullptr;      // the same; not written where it would equal gate's
  Nvfp4Inputs* down = nullptr;    // [pairs, inner / 64]
  float* inner = nullptr;         // [pairs, inner], dynamic scales only
  float* input_scales = nullptr;  // [tokens], dynamic scales only
  float* down_scales = nullptr;   // [pairs], dynamic scales only
  int64_t* sums = nullptr;        // [tokens, even and odd experts, hidden]
  int together = 1;               // columns of an expert that are computed at once: 1, 2 or 4
};

__device__ inline bool is_dynamic(const FewArgs& a) {
  return a.args.table.scalars_each == 3;
}
__device__ inline const float* scalars_of(const FewArgs& a, int expert) {
  return a.args.table.scalars + expert * a.args.table.scalars_each;
}
__device__ inline bool shares_inputs(const FewArgs& a, const float* scalars) {
  return is_dynamic(a) || __float_as_uint(scalars[3]) == __float_as_uint(scalars[4]);
}

// Pairs sorted by expert, cut into runs of one expert and at most `together` columns. Every block sorts for itself.
struct SharedRuns {
  int32_t id[kMostPairs];
  int32_t position[kMostPairs];  // of the pairs that begin a run, else INT32_MAX
  int32_t order[kMostPairs];     // pairs by slot
  int32_t expert[kMostPairs];    // of runs
  int32_t first[kMostPairs];     // slot
  int32_t count[kMostPairs];
  int runs;
};
__device__ void sort_pairs(const FewArgs& a, SharedRuns& to) {
  const int pairs = static_cast<int>(a.args.tokens * a.args.top_k);
  const int p = static_cast<int>(threadIdx.x);
  bool valid = false;
  if (p < pairs) {
    const int32_t id = a.args.ids[p];
    valid = id >= 0 && id < a.args.table.experts;
    to.id[p] = valid ? id : INT32_MAX;
  }
  __syncthreads();
  int below = 0;
  int same = 0;
  int before = 0;
  const int32_t own = p < pairs ? to.id[p] : 0;
  if (p < pairs) {
#pragma unroll 4
    for (int q = 0; q < pairs; ++q) {
      const int32_t id = to.id[q];
      below += id < own;
      same += id == own;
      before += id == own && q < p;
    }
    to.position[p] = valid && before % a.together == 0 ? below + before : INT32_MAX;
    to.order[below + before] = p;
  }
  __syncthreads();
  if (p < pairs) {
    const int32_t position = to.position[p];
    int rank = 0;
    int runs = 0;
#pragma unroll 4
    for (int q = 0; q < pairs; ++q) {
      rank += to.position[q] < position;
      runs += to.position[q] != INT32_MAX;
    }
    if (position != INT32_MAX) {
      to.expert[rank] = own;
      to.first[rank] = position;
      to.count[rank] = min(a.together, same - before);
    }
    if (p == 0) to.runs = runs;
  }
  __syncthreads();
}

// ---- Inputs ----

// The scale of a column without a calibrated one; all threads of a block of kCount work on it.
template <int kCount>
__device__ float column_scale(const float* x, int64_t inputs) {
  __shared__ uint32_t shared[kCount / 32];
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < inputs; i += kCount) largest = max(largest, magnitude_bits(x[i]));
  largest = lanes_max<32>(largest);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const uint32_t other : shared) largest = max(largest, other);
  return dynamic_input_scale(largest);
}

constexpr int kInputThreads = 128;
constexpr int64_t kInputsOfBlock = kInputThreads * 4;

// Block (part, column, gate or up). Its parts of a token's sums become zero.
__global__ void __launch_bounds__(kInputThreads) quantise_inputs(FewArgs a) {
  let_next_kernel_start();
  const int64_t hidden = a.args.table.hidden;
  const int64_t column = blockIdx.y;
  const int64_t token = is_dynamic(a) ? column : column / a.args.top_k;
  if (token * (is_dynamic(a) ? 1 : a.args.top_k) == column) {
    const int64_t first = blockIdx.x * kInputsOfBlock;
    for (int64_t i = first + threadIdx.x; i < min(first + kInputsOfBlock, hidden); i += kInputThreads) {
      for (int64_t half = blockIdx.z; half < 2; half += gridDim.z) a.sums[(token * 2 + half) * hidden + i] = 0;
    }
  }
  const float* x = a.args.x + token * hidden;
  float scale = 1.0F;
  const auto exists = [&](int32_t expert) { return expert >= 0 && expert < a.args.table.experts; };
  if (is_dynamic(a)) {
    if (threadIdx.x < a.args.top_k && !exists(a.args.ids[token * a.args.top_k + threadIdx.x])) {
      mark_fault(a.args.faults, token, a.args.fault);
    }
    scale = column_scale<kInputThreads>(x, hidden);
    if (threadIdx.x == 0 && blockIdx.x == 0) a.input_scales[column] = scale;
  } else {
    const int32_t expert = a.args.ids[column];
    if (!exists(expert)) {
      mark_fault(a.args.faults, token, a.args.fault);
      return;
    }
    const float* scalars = scalars_of(a, expert);
    if (blockIdx.z == 1 && shares_inputs(a, scalars)) return;
    scale = scalars[3 + blockIdx.z];
  }
  // Lanes behind the end repeat the last block.
  const int64_t block = min(static_cast<int64_t>(blockIdx.x * kInputThreads + threadIdx.x) / 4, hidden / 16 - 1);
  const int quarter = static_cast<int>(threadIdx.x % 4);
  const float4 values = *reinterpret_cast<const float4*>(x + block * 16 + quarter * 4);
  Nvfp4Inputs* to = (blockIdx.z == 0 ? a.gate : a.up) + column * (hidden / 64);
  if (!store_quarter(values, scale, quarter, block, to)) mark_fault(a.args.faults, token, a.args.fault);
}

// Sums in shared memory that several warps add to: two atomic additions of 32 bits, with the carry between them.
__device__ inline void add_shared(int64_t* to, int64_t value) {
  auto* halves = reinterpret_cast<uint32_t*>(to);
  const auto low = static_cast<uint32_t>(value);
  const uint32_t old = atomicAdd(halves, low);
  const uint32_t carry = old + low < old ? 1 : 0;
  atomicAdd(halves + 1, static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32) + carry);
}
using Sums = int64_t[kTileRows];

// ---- Gate and up ----

constexpr int kGateStages = 4;

// A stage: the units of gate and up, then for each column its inputs for gate and for up.
template <int kTogether>
inline constexpr int kGateStageBytes = 2 * kNvfp4UnitBytes + 2 * kTogether * kColumnBytes;

// The (run, tile) items of a block; its warps share their units evenly.
struct GateBlock {
  const FewArgs& a;
  const SharedRuns& runs;
  int units;  // of a tile
  int tiles;  // of an expert
  int begin, end;
};

// Where the copies of a warp are: a unit of gate and the same of up, through the items.
template <int kTogether>
class GateCopies {
 public:
  __device__ GateCopies(const GateBlock& block, int first, int count)
      : block_(block), unit_(first % block.units), left_(count) {
    const int item = block.begin + first / block.units;
    run_ = item / block.tiles;
    tile_ = item % block.tiles;
    const auto& matrices = block.a.args.table.record.matrices;
    const int64_t up = matrices[1].offset - matrices[0].offset;
    second_ = lane() < 4 ? 512 : up - 64;  // of 72 pieces of 16 bytes, gate has 36
    third_ = up + 448;
    place();
  }
  __device__ void copy_weights(std::byte* stage) const {
    if (left_ <= 0) return;
    std::byte* to = stage + lane() * 16;
    copy_async_16(to, weights_);
    copy_async_16(to + 512, weights_ + second_);
    if (lane() < 8) copy_async_16(to + 1024, weights_ + third_);
  }
  __device__ void copy_columns(std::byte* stage) const {
    if (left_ <= 0 || lane() >= pieces_) return;
    std::byte* to = stage + 2 * kNvfp4UnitBytes + lane() * 16;
    copy_async_16(to, columns_);
    copy_async_16(to + kTogether * kColumnBytes, columns_ + up_columns_);
  }
  __device__ void step() {
    weights_ += kNvfp4UnitBytes;
    columns_ += kColumnBytes;
    --left_;
    if (++unit_ < block_.units) return;
    unit_ = 0;
    if (++tile_ == block_.tiles) {
      tile_ = 0;
      ++run_;
    }
    place();
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ void place() {
    if (left_ <= 0) return;
    const FewArgs& a = block_.a;
    const int expert = block_.runs.expert[run_];
    weights_ = a.args.table.records + expert * a.args.table.record.bytes + a.args.table.record.matrices[0].offset +
               static_cast<int64_t>(tile_ * block_.units + unit_) * kNvfp4UnitBytes + lane() * 16;
    pieces_ = kColumnPieces * block_.runs.count[run_];
    const int pair = block_.runs.order[min(block_.runs.first[run_] + lane() / kColumnPieces, kMostPairs - 1)];
    const int64_t column = is_dynamic(a) ? pair / a.args.top_k : pair;
    columns_ = reinterpret_cast<const std::byte*>(a.gate + column * block_.units + unit_) + lane() % kColumnPieces * 16;
    up_columns_ = shares_inputs(a, scalars_of(a, expert))
                      ? 0
                      : reinterpret_cast<const std::byte*>(a.up) - reinterpret_cast<const std::byte*>(a.gate);
  }

  const GateBlock& block_;
  const std::byte* weights_ = nullptr;
  const std::byte* columns_ = nullptr;
  int64_t second_, third_;
  int64_t up_columns_ = 0;
  int pieces_ = 0;
  int run_;
  int tile_;
  int unit_;
  int left_;
};

// The last step of an item, by one warp: SwiGLU of the sums [gate, up][column][row], and down's inputs.
__device__ void finish_item(const GateBlock& block, int item, const Sums* sums, int together) {
  const FewArgs& a = block.a;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int run = item / block.tiles;
  const int64_t tile = item % block.tiles;
  const int count = block.runs.count[run];
  const int row = lane % 16;
  const float* scalars = scalars_of(a, block.runs.expert[run]);
  const int64_t inner = a.args.table.inner;
  for (int c0 = 0; c0 < count; c0 += 2) {
    const int c = min(c0 + lane / 16, count - 1);  // an odd last column is computed twice
    const int pair = block.runs.order[block.runs.first[run] + c];
    const int64_t token = pair / a.args.top_k;
    const float gate_scale = is_dynamic(a) ? a.input_scales[token] : scalars[3];
    const float up_scale = is_dynamic(a) ? a.input_scales[token] : scalars[4];
    const float h = swiglu(nvfp4_scaled(sums[c][row], scalars[0], gate_scale),
                           nvfp4_scaled(sums[together + c][row], scalars[1], up_scale));
    if (is_dynamic(a)) {
      a.inner[pair * inner + tile * 16 + row] = h;
      continue;
    }
    const uint32_t largest = lanes_max<16>(magnitude_bits(h));
    const Nvfp4Step step = nvfp4_step(largest, scalars[5]);
    Nvfp4Inputs* column = a.down + pair * (inner / 64);
    nvfp4_byte(column, tile, row) = static_cast<int8_t>(nvfp4_value(h, step));
    if (row == 0) nvfp4_scale(column, tile) = step.t;
    if (largest >= kInfinityBits) mark_fault(a.args.faults, token, a.args.fault);
  }
}

// `units` units of one item into its sums.
template <int C, int kTogether>
__device__ void sum_item(int units, GateCopies<kTogether>& copies, std::byte* ring, unsigned& head,
                         const Nvfp4Tables& tables, Sums* sums) {
  constexpr int kBytes = kGateStageBytes<kTogether>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Nvfp4Sums<C> gate;
  Nvfp4Sums<C> up;
  gate.clear();
  up.clear();
  for (int u = 0; u < units; ++u) {
    std::byte* free_stage = ring + (head + kGateStages - 1) % kGateStages * kBytes;
    copies.copy_weights(free_stage);
    copies.copy_columns(free_stage);
    commit_copies();
    copies.step();
    wait_for_copies<kGateStages - 1>();
    __syncwarp();
    const std::byte* stage = ring + head * kBytes;
    const auto* columns = reinterpret_cast<const Nvfp4Inputs*>(stage + 2 * kNvfp4UnitBytes);
    gate.add_unit(tables, stage, lane, columns, 1);
    up.add_unit(tables, stage + kNvfp4UnitBytes, lane, columns + kTogether, 1);
    __syncwarp();
    head = (head + 1) % kGateStages;
  }
  gate.gather();
  up.gather();
  if (lane >= 8) return;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    add_shared(&sums[c][2 * lane], gate.rows[0][c]);
    add_shared(&sums[c][2 * lane + 1], gate.rows[1][c]);
    add_shared(&sums[kTogether + c][2 * lane], up.rows[0][c]);
    add_shared(&sums[kTogether + c][2 * lane + 1], up.rows[1][c]);
  }
}

template <int kTogether, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) gate_and_up(FewArgs a, int most_items) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ SharedRuns runs;
  let_next_kernel_start();
  constexpr int kBytes = kGateStageBytes<kTogether>;
  constexpr int kSums = 2 * kTogether;  // of an item
  auto* sums = reinterpret_cast<Sums*>(shared);
  for (int i = static_cast<int>(threadIdx.x); i < most_items * kSums * kTileRows; i += 32 * kWarps) sums[0][i] = 0;
  sort_pairs(a, runs);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tiles = static_cast<int>(a.args.table.inner / kTileRows);
  const int64_t items = static_cast<int64_t>(runs.runs) * tiles;
  const GateBlock block{.a = a,
                        .runs = runs,
                        .units = static_cast<int>(a.args.table.hidden / kNvfp4UnitInputs),
                        .tiles = tiles,
                        .begin = static_cast<int>(items * blockIdx.x / gridDim.x),
                        .end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x)};
  std::byte* ring = shared + most_items * kSums * sizeof(Sums) + warp * kGateStages * kBytes;
  const int all = (block.end - block.begin) * block.units;
  int at = static_cast<int>(static_cast<int64_t>(all) * warp / kWarps);
  const int end = static_cast<int>(static_cast<int64_t>(all) * (warp + 1) / kWarps);
  GateCopies<kTogether> copies(block, at, end - at);
  {
    // The first weights come before the columns are ready.
    GateCopies<kTogether> first = copies;
#pragma unroll 1
    for (int s = 0; s < kGateStages - 1; ++s) {
      first.copy_weights(ring + s * kBytes);
      first.step();
    }
  }
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int s = 0; s < kGateStages - 1; ++s) {
    copies.copy_columns(ring + s * kBytes);
    commit_copies();
    copies.step();
  }
  const Nvfp4Tables tables = Nvfp4Tables::make();
  unsigned head = 0;
  int item = at / block.units;  // of the block's
  while (at < end) {
    const int here = min(end, (item + 1) * block.units) - at;
    const int count = runs.count[(block.begin + item) / tiles];
    if (count == 1) {
      sum_item<1>(here, copies, ring, head, tables, sums + item * kSums);
    } else if (count == 2 && kTogether >= 2) {
      sum_item<kTogether >= 2 ? 2 : 1>(here, copies, ring, head, tables, sums + item * kSums);
    } else {
      sum_item<kTogether>(here, copies, ring, head, tables, sums + item * kSums);
    }
    at += here;
    ++item;
  }
  __syncthreads();
  for (int i = warp; i < block.end - block.begin; i += kWarps) {
    finish_item(block, block.begin + i, sums + i * kSums, kTogether);
  }
}

// The columns of down that need the whole of one to be scaled: a pair a block.
__global__ void __launch_bounds__(kInputThreads) quantise_inner(FewArgs a) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int64_t inner = a.args.table.inner;
  const int64_t pair = blockIdx.x;
  if (a.args.ids[pair] < 0 || a.args.ids[pair] >= a.args.table.experts) return;
  const float* h = a.inner + pair * inner;
  const float scale = column_scale<kInputThreads>(h, inner);
  if (threadIdx.x == 0) a.down_scales[pair] = scale;
  bool finite = true;
  const int quarter = static_cast<int>(threadIdx.x % 4);
  for (int64_t first = 0; first < inner / 16; first += kInputThreads / 4) {
    const int64_t block = min(first + threadIdx.x / 4, inner / 16 - 1);  // the last one is repeated
    finite = store_quarter(*reinterpret_cast<const float4*>(h + block * 16 + quarter * 4), scale, quarter, block,
                           a.down + pair * (inner / 64)) &&
             finite;
  }
  if (!finite) mark_fault(a.args.faults, pair / a.args.top_k, a.args.fault);
}

// ---- Down ----

constexpr int kDownStages = 8;

template <int kTogether>
inline constexpr int kDownStageBytes = kNvfp4UnitBytes + kTogether * kColumnBytes;

// The (tile, run) jobs of a block, numbered tile by tile; its warps share their units evenly.
struct DownBlock {
  const FewArgs& a;
  const SharedRuns& runs;
  int units;  // of a tile of an expert
  int begin, end;
};

// Where the copies of a warp are.
template <int kTogether>
class DownCopies {
 public:
  __device__ DownCopies(const DownBlock& block, int first, int count)
      : block_(block), unit_(first % block.units), left_(count) {
    const int job = block.begin + first / block.units;
    tile_ = job / block.runs.runs;
    run_ = job % block.runs.runs;
    place();
  }
  __device__ void copy_weights(std::byte* stage) const {
    if (left_ <= 0) return;
    copy_async_16(stage + lane() * 16, weights_);
    if (lane() < 4) copy_async_16(stage + 512 + lane() * 16, weights_ + 512);
  }
  __device__ void copy_columns(std::byte* stage) const {
    if (left_ > 0 && lane() < pieces_) copy_async_16(stage + kNvfp4UnitBytes + lane() * 16, columns_);
  }
  __device__ void step() {
    weights_ += kNvfp4UnitBytes;
    columns_ += kColumnBytes;
    --left_;
    if (++unit_ < block_.units) return;
    unit_ = 0;
    if (++run_ == block_.runs.runs) {
      run_ = 0;
      ++tile_;
    }
    place();
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ void place() {
    if (left_ <= 0) return;
    const SharedRuns& runs = block_.runs;
    const auto& table = block_.a.args.table;
    weights_ = table.records + runs.expert[run_] * table.record.bytes + table.record.matrices[2].offset +
               static_cast<int64_t>(tile_ * block_.units + unit_) * kNvfp4UnitBytes + lane() * 16;
    pieces_ = kColumnPieces * runs.count[run_];
    const int pair = runs.order[min(runs.first[run_] + lane() / kColumnPieces, kMostPairs - 1)];
    columns_ = reinterpret_cast<const std::byte*>(block_.a.down + static_cast<int64_t>(pair) * block_.units + unit_) +
               lane() % kColumnPieces * 16;
  }

  const DownBlock& block_;
  const std::byte* weights_ = nullptr;
  const std::byte* columns_ = nullptr;
  int pieces_ = 0;
  int tile_;
  int run_;
  int unit_;
  int left_;
};

// `units` units of one job into its sums [column][row].
template <int C, int kTogether>
__device__ void sum_job(int units, DownCopies<kTogether>& copies, std::byte* ring, unsigned& head,
                        const Nvfp4Tables& tables, Sums* sums) {
  constexpr int kBytes = kDownStageBytes<kTogether>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Nvfp4Sums<C> down;
  down.clear();
  for (int u = 0; u < units; ++u) {
    std::byte* free_stage = ring + (head + kDownStages - 1) % kDownStages * kBytes;
    copies.copy_weights(free_stage);
    copies.copy_columns(free_stage);
    commit_copies();
    copies.step();
    wait_for_copies<kDownStages - 1>();
    __syncwarp();
    const std::byte* stage = ring + head * kBytes;
    down.add_unit(tables, stage, lane, reinterpret_cast<const Nvfp4Inputs*>(stage + kNvfp4UnitBytes), 1);
    __syncwarp();
    head = (head + 1) % kDownStages;
  }
  down.gather();
  if (lane >= 8) return;
#pragma unroll
  for (int c = 0; c < C; ++c) {
    add_shared(&sums[c][2 * lane], down.rows[0][c]);
    add_shared(&sums[c][2 * lane + 1], down.rows[1][c]);
  }
}

// The block's weighted terms, first by tile and token, then into the sums of the layer.
__device__ void sum_terms(const DownBlock& block, const Sums* sums, int together, Sums (*halves)[2]) {
  const FewArgs& a = block.a;
  const SharedRuns& runs = block.runs;
  const int tokens = static_cast<int>(a.args.tokens);
  const int top_k = static_cast<int>(a.args.top_k);
  const int first_tile = block.begin / runs.runs;
  const int threads = static_cast<int>(blockDim.x);
  const int row = static_cast<int>(threadIdx.x) % kTileRows;
  const int jobs = block.end - block.begin;
  for (int i = static_cast<int>(threadIdx.x) / kTileRows; i < jobs * together; i += threads / kTileRows) {
    const int job = block.begin + i / together;
    const int run = job % runs.runs;
    if (i % together >= runs.count[run]) continue;
    const int expert = runs.expert[run];
    const int pair = runs.order[runs.first[run] + i % together];
    const float* scalars = scalars_of(a, expert);
    const float input_scale = is_dynamic(a) ? a.down_scales[pair] : scalars[5];
    const float term = a.args.weights[pair] * nvfp4_scaled(sums[i][row], scalars[2], input_scale);
    if (fabsf(term) < numeric::kLargestExpertTerm) {
      add_shared(&halves[(job / runs.runs - first_tile) * tokens + pair / top_k][expert & 1][row],
                 __float2ll_rn(term * 0x1p32F));
    } else {
      mark_fault(a.args.faults, pair / top_k, a.args.fault);
    }
  }
  __syncthreads();
  const int tiles = (block.end - 1) / runs.runs - first_tile + 1;
  for (int i = static_cast<int>(threadIdx.x) / kTileRows; i < tiles * tokens * 2; i += threads / kTileRows) {
    const int64_t value = halves[i / 2][i % 2][row];
    const int64_t token = i / 2 % tokens;
    int64_t* to = a.sums + (token * 2 + i % 2) * a.args.table.hidden + (first_tile + i / 2 / tokens) * kTileRows + row;
    if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }
}

template <int kTogether, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kTogether == 1 ? 2 : 1)
    down_and_sum(FewArgs a, int most_jobs, int most_tiles) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ SharedRuns runs;
  let_next_kernel_start();
  const int tokens = static_cast<int>(a.args.tokens);
  auto* sums = reinterpret_cast<Sums*>(shared);
  auto* halves = reinterpret_cast<Sums(*)[2]>(shared + most_jobs * kTogether * sizeof(Sums));
  std::byte* rings = shared + (most_jobs * kTogether + most_tiles * tokens * 2) * sizeof(Sums);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(rings - shared) / 8; i += 32 * kWarps) {
    sums[0][i] = 0;
  }
  sort_pairs(a, runs);
  constexpr int kBytes = kDownStageBytes<kTogether>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* ring = rings + warp * kDownStages * kBytes;
  const int64_t jobs = a.args.table.hidden / kTileRows * runs.runs;
  const DownBlock block{.a = a,
                        .runs = runs,
                        .units = static_cast<int>(a.args.table.inner / kNvfp4UnitInputs),
                        .begin = static_cast<int>(jobs * blockIdx.x / gridDim.x),
                        .end = static_cast<int>(jobs * (blockIdx.x + 1) / gridDim.x)};
  if (block.begin == block.end) return wait_for_earlier_kernels();
  const int all = (block.end - block.begin) * block.units;
  int at = static_cast<int>(static_cast<int64_t>(all) * warp / kWarps);
  const int end = static_cast<int>(static_cast<int64_t>(all) * (warp + 1) / kWarps);
  DownCopies<kTogether> copies(block, at, end - at);
  {
    DownCopies<kTogether> first = copies;
#pragma unroll 1
    for (int s = 0; s < kDownStages - 1; ++s) {
      first.copy_weights(ring + s * kBytes);
      first.step();
    }
  }
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int s = 0; s < kDownStages - 1; ++s) {
    copies.copy_columns(ring + s * kBytes);
    commit_copies();
    copies.step();
  }
  const Nvfp4Tables tables = Nvfp4Tables::make();
  unsigned head = 0;
  int job = at / block.units;  // of the block's
  while (at < end) {
    const int here = min(end, (job + 1) * block.units) - at;
    const int count = runs.count[(block.begin + job) % runs.runs];
    if (count == 1) {
      sum_job<1>(here, copies, ring, head, tables, sums + job * kTogether);
    } else if (count == 2 && kTogether >= 2) {
      sum_job<kTogether >= 2 ? 2 : 1>(here, copies, ring, head, tables, sums + job * kTogether);
    } else {
      sum_job<kTogether>(here, copies, ring, head, tables, sums + job * kTogether);
    }
    at += here;
    ++job;
  }
  __syncthreads();
  sum_terms(block, sums, kTogether, halves);
}

__global__ void __launch_bounds__(256) convert_sums(FewArgs a) {
  start_after_earlier_kernels();
  const int64_t hidden = a.args.table.hidden;
  const int64_t row = blockIdx.x * 256 + threadIdx.x;
  const int64_t token = blockIdx.y;
  if (row >= hidden) return;
  a.args.lower[token * hidden + row] = __ll2float_rn(a.sums[token * 2 * hidden + row]) * 0x1p-32F;
  a.args.upper[token * hidden + row] = __ll2float_rn(a.sums[(token * 2 + 1) * hidden + row]) * 0x1p-32F;
}

// Grids and shared memory of the products: a block a multiprocessor, of fewer warps where that has less memory.
struct FewPlan {
  bool small;
  int64_t together;
  int64_t gate_blocks, most_items, gate_shared;
  int64_t down_blocks, most_jobs, most_tiles, down_shared;

  FewPlan(const Context& context, const Ops::Experts& args) : small(context.capability / 10 != 9) {
    constexpr int64_t kSums = static_cast<int64_t>(sizeof(Sums));
    const int64_t pairs = args.tokens * args.top_k;
    together = args.tokens == 1 ? 1 : args.tokens == 2 ? 2 : 4;
    const int64_t items = pairs * (args.table.inner / kTileRows);
    gate_blocks = std::min<int64_t>(items, context.multiprocessors);
    most_items = base::ceil_div(items, gate_blocks);
    gate_shared = most_items * 2 * together * kSums +
                  (small ? 8 : 16) * kGateStages * 2 * (kNvfp4UnitBytes + together * kColumnBytes);
    const int64_t tiles = args.table.hidden / kTileRows;
    down_blocks = std::min<int64_t>(tiles * pairs, context.multiprocessors);
    most_jobs = base::ceil_div(tiles * pairs, down_blocks);
    most_tiles = tiles / down_blocks + 3;
    down_shared = (most_jobs * together + most_tiles * args.tokens * 2) * kSums +
                  (small ? 4 : 12) * kDownStages * (kNvfp4UnitBytes + together * kColumnBytes);
  }
  bool fits() const {
    const int64_t most = (small ? 99 << 10 : 227 << 10) - static_cast<int64_t>(sizeof(SharedRuns)) - 1024;
    return gate_shared <= most && down_shared <= most;
  }
};

template <int kTogether, int kGateWarps, int kDownWarps>
void launch_products(const Context& context, const FewPlan& plan, const FewArgs& few) {
  const Ops::Experts& args = few.args;
  const auto grid = [](int64_t x, int64_t y = 1) { return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)); };
  launch_early(context, "gate_and_up", gate_and_up<kTogether, kGateWarps>, grid(plan.gate_blocks), 32 * kGateWarps,
               plan.gate_shared, few, static_cast<int>(plan.most_items));
  if (args.table.scalars_each == 3) {
    launch_early(context, "quantise_inner", quantise_inner, grid(args.tokens * args.top_k), kInputThreads, 0, few);
  }
  launch_early(context, "down_and_sum", down_and_sum<kTogether, kDownWarps>, grid(plan.down_blocks), 32 * kDownWarps,
               plan.down_shared, few, static_cast<int>(plan.most_jobs), static_cast<int>(plan.most_tiles));
  launch_early(context, "convert_sums", convert_sums, grid(base::ceil_div(args.table.hidden, 256), args.tokens), 256, 0,
               few);
}
template <int kTogether>
void launch_products(const Context& context, const FewPlan& plan, const FewArgs& few) {
  if (plan.small) {
    launch_products<kTogether, 8, 4>(context, plan, few);
  } else {
    launch_products<kTogether, 16, 12>(context, plan, few);
  }
}

}  // namespace

bool takes_few_nvfp4(const Context& context, const Ops::Experts& args) {
  const auto& matrices = args.table.record.matrices;
  return args.quantise_activations && args.tokens <= kMostFewColumns && args.tokens * args.top_k <= kMostPairs &&
         std::all_of(matrices.begin(), matrices.end(),
                     [](const auto& matrix) { return matrix.format == numeric::ExpertFormat::kNvfp4; }) &&
         FewPlan(context, args).fits();
}

void run_few_nvfp4(const Context& context, const Ops::Experts& args) {
  const Scratch::Scope scope(context.scratch);
  const int64_t pairs = args.tokens * args.top_k;
  const bool dynamic = args.table.scalars_each == 3;
  const int64_t columns = dynamic ? args.tokens : pairs;
  FewArgs few{.args = args};
  const FewPlan plan(context, args);
  few.together = static_cast<int>(plan.together);
  few.gate = context.scratch.take<Nvfp4Inputs>(columns * args.table.hidden / 64);
  few.up = dynamic ? few.gate : context.scratch.take<Nvfp4Inputs>(columns * args.table.hidden / 64);
  few.down = context.scratch.take<Nvfp4Inputs>(pairs * args.table.inner / 64);
  few.sums = context.scratch.take<int64_t>(args.tokens * 2 * args.table.hidden);
  if (dynamic) {
    few.inner = context.scratch.take<float>(pairs * args.table.inner);
    few.input_scales = context.scratch.take<float>(columns);
    few.down_scales = context.scratch.take<float>(pairs);
  }
  if (context.plans()) return;

  const dim3 parts(static_cast<unsigned>(base::ceil_div(args.table.hidden, kInputsOfBlock)),
                   static_cast<unsigned>(columns), dynamic ? 1 : 2);
  quantise_inputs<<<parts, kInputThreads, 0, context.stream>>>(few);
  TANDEM_CUDA_LAUNCHED("quantise_inputs");

  if (few.together == 1) {
    launch_products<1>(context, plan, few);
  } else if (few.together == 2) {
    launch_products<2>(context, plan, few);
  } else {
    launch_products<4>(context, plan, few);
  }
}

}  // namespace tandem::ops::cuda::expert
