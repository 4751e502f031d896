// What the two products of the kernel of NVFP4 experts for few columns share (experts_few.cu).
#pragma once

#include "ops/cuda/experts_nvfp4_mma.cuh"
#include "ops/cuda/experts_quantise.cuh"
#include "ops/cuda/router_choose.cuh"

namespace tandem::ops::cuda::expert {

// Columns of an expert that are computed at once. Four would save a second reading of the weights, by way of the
// second-level cache, where three or four columns choose one expert, but take registers and shared memory from all.
inline constexpr int kMostTogether = 2;
inline constexpr int kMostFewThreads = 512;
// Of what a warp has asked for. A third one would take more from the first-level cache than it gains.
inline constexpr int kStages = 2;
inline constexpr int kStageBytes = 2 * kPartBytes;
inline constexpr int kRunsOfPass = 2;  // whose columns gate and up have in shared memory at once: few blocks need more

// Division of numbers below 2^32 / value by multiplication.
struct Divisor {
  uint32_t value = 1;
  uint32_t inverse = 0;
  Divisor() = default;
  explicit Divisor(int64_t by)
      : value(static_cast<uint32_t>(by)), inverse(by == 1 ? 0 : static_cast<uint32_t>(((1LL << 32) + by - 1) / by)) {}
  __device__ uint32_t quotient(uint32_t a) const { return inverse == 0 ? a : __umulhi(a, inverse); }
};

struct FewArgs {
  Ops::Experts args;
  Around around;
  Nvfp4Inputs* down = nullptr;   // [pairs, parts of inner, kPartUnits]
  float* inner = nullptr;        // [pairs, inner], dynamic scales only
  float* down_scales = nullptr;  // [pairs], dynamic scales only
  int64_t* sums = nullptr;       // [tokens, even and odd experts, hidden]
  int together = 1;              // 1 or 2
  int most_items = 1;            // of a block in gate and up
  int most_jobs = 1;             // and in down
  int most_tiles = 1;            // that these touch
  bool whole_jobs = false;       // no job is shared by warps
  int column_stride = 0;         // bytes, of gate and up
  int column_bytes = 0;          // of down
  Divisor blocks, warps, tiles, gate_parts, down_parts, top_k;
  Divisor chunks;  // of 256 of hidden
};

constexpr int64_t few_parts(int64_t inputs) {
  return (inputs + kPartUnits * kNvfp4UnitInputs - 1) / (kPartUnits * kNvfp4UnitInputs);
}

__device__ inline bool is_dynamic(const FewArgs& a) {
  return a.args.table.scalars_each == 3;
}
__device__ inline const float* scalars_of(const FewArgs& a, int expert) {
  return a.args.table.scalars + expert * a.args.table.scalars_each;
}

// What a pair's sums are multiplied by.
struct Factors {
  float scale[kMostFewPairs];  // weight_scale * input_scale
  float weight[kMostFewPairs];
};

// Pairs by expert, cut into runs of one expert and at most `together` columns. Every block finds them for itself.
struct Runs {
  alignas(16) int32_t id[kMostFewPairs];  // of pairs, -1 where there is no such expert
  uint32_t begins[kMostFewPairs / 32];    // bits of the pairs that begin a run
  int32_t expert[kMostFewPairs];          // of runs
  int32_t count[kMostFewPairs];
  int32_t pair[kMostFewPairs][kMostTogether];
  float scalars[kMostFewPairs][6];  // of the pairs' experts
  int all;
};

// The pairs' experts and weights as they are given. By all threads of the block, 128 at least.
__device__ inline void read_choice(const FewArgs& a, Runs& to, Factors& factors) {
  const auto pairs = static_cast<int>(a.args.tokens * a.args.top_k);
  const auto p = static_cast<int>(threadIdx.x);
  if (p >= kMostFewPairs) return;
  const int32_t id = p < pairs ? a.args.ids[p] : -1;
  to.id[p] = id < a.args.table.experts ? id : -1;
  if (p < pairs) factors.weight[p] = a.args.weights[p];
}
// What a warp has chosen for a token; every block chooses for itself, and one tells the world.
__device__ inline void keep_choice(const FewArgs& a, Runs& to, Factors& factors, int token, const Chosen& mine) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= a.args.top_k) return;
  const int pair = token * static_cast<int>(a.args.top_k) + lane;
  to.id[pair] = mine.id < a.args.table.experts ? mine.id : -1;  // of what is no number anything may be chosen
  factors.weight[pair] = mine.weight;
  if (blockIdx.x > 0) return;
  a.around.ids[pair] = mine.id;
  a.around.weights[pair] = mine.weight;
}
// The same as given, but from the router's logits, a warp a token.
__device__ inline void choose_pairs(const FewArgs& a, Runs& to, Factors& factors, ChoiceMemory* memory) {
  const auto p = static_cast<int>(threadIdx.x);
  const auto experts = static_cast<int>(a.args.table.experts);
  const auto top_k = static_cast<int>(a.args.top_k);
  if (p >= a.args.tokens * top_k && p < kMostFewPairs) to.id[p] = -1;
  for (int token = p / 32; token < a.args.tokens; token += static_cast<int>(blockDim.x) / 32) {
    __syncwarp();
    keep_choice(
        a, to, factors, token,
        choose_for_token<kMostFewExperts / 32>(a.around.logits + token * experts, experts, top_k, memory[p / 32]));
  }
}
// What the first warp chose for a single token, by all threads: its runs are its experts one by one. They stand when it
// returns.
__device__ inline void keep_alone(const FewArgs& a, Runs& to, Factors& factors, const Chosen& mine) {
  const auto p = static_cast<int>(threadIdx.x);
  const auto top_k = static_cast<int>(a.args.top_k);
  if (p < 32) keep_choice(a, to, factors, 0, mine);
  if (p < top_k) {
    to.expert[p] = mine.id;
    to.count[p] = 1;
    to.pair[p][0] = p;
  }
  if (p == 0) to.all = top_k;
  if (p >= top_k && p < kMostFewPairs) to.id[p] = -1;
  __syncthreads();
}

// The runs of these; they stand when it returns. By all threads of the block.
__device__ inline void find_runs(const FewArgs& a, Runs& to) {
  const auto pairs = static_cast<int>(a.args.tokens * a.args.top_k);
  const auto p = static_cast<int>(threadIdx.x);
  const int within = a.together - 1;
  if (p < kMostFewPairs) to.count[p] = 0;
  __syncthreads();
  const int32_t own = p < kMostFewPairs ? to.id[p] : -1;
  int before = 0;  // of the same expert
  int first = p;   // the pair that begins this one's run
  if (p < kMostFewPairs) {
#pragma unroll 1
    for (int q = 0; q < min(p, pairs); q += 4) {
      const int4 four = *reinterpret_cast<const int4*>(to.id + q);
      const auto meet = [&](int32_t id, int at) {
        const bool same = id == own && at < p;
        if (same && (before & within) == 0) first = at;
        before += same ? 1 : 0;
      };
      meet(four.x, q);
      meet(four.y, q + 1);
      meet(four.z, q + 2);
      meet(four.w, q + 3);
    }
    if ((before & within) == 0) first = p;
    const unsigned begins = __ballot_sync(kWholeWarp, own >= 0 && first == p);
    if (p % 32 == 0) to.begins[p / 32] = begins;
  }
  __syncthreads();
  if (p < kMostFewPairs) {
    int run = 0;
    int all = 0;
#pragma unroll
    for (int w = 0; w < kMostFewPairs / 32; ++w) {
      const uint32_t bits = to.begins[w];
      all += __popc(bits);
      run += w < first / 32 ? __popc(bits) : w == first / 32 ? __popc(bits & ((1U << first % 32) - 1)) : 0;
    }
    if (p == 0) to.all = all;
    if (own >= 0) {
      to.expert[run] = own;
      to.pair[run][before & within] = p;
      atomicAdd(&to.count[run], 1);
    }
  }
  __syncthreads();
}

// Asks for the scalars of the pairs' experts, which find_pieces() awaits.
__device__ inline void ask_for_scalars(const FewArgs& a, Runs& runs) {
  const auto each = static_cast<int>(a.args.table.scalars_each);
  const auto pairs = static_cast<int>(a.args.tokens * a.args.top_k);
  for (int i = static_cast<int>(threadIdx.x); i < pairs * each; i += static_cast<int>(blockDim.x)) {
    const int pair = each == 6 ? i / 6 : i / each;
    const int which = i - pair * each;
    if (runs.id[pair] >= 0) copy_4(shared_address(&runs.scalars[pair][which]), scalars_of(a, runs.id[pair]) + which);
  }
  commit_copies();
}
__device__ inline const float* scalars_of_run(const Runs& runs, int run) {
  return runs.scalars[runs.pair[run][0]];
}

// What is a worker's of `all` pieces.
struct Share {
  int at, end;
};
__device__ inline Share share_of(uint32_t all, uint32_t worker, const Divisor& workers) {
  return {static_cast<int>(workers.quotient(all * worker)), static_cast<int>(workers.quotient(all * (worker + 1)))};
}

// What a tile of gate and up takes by the columns of its run, in fifths of what it takes with one. It may not be more
// than the columns are: a block's items are bounded by those of single columns.
struct TileCost {
  static constexpr int kOne = 5;
  static constexpr int kTwo = 7;
  __device__ static int of(int columns) { return columns <= 1 ? kOne : kTwo; }
  // all / cost, by divisors that the compiler knows.
  __device__ static int quotient(int all, int cost) { return cost == kOne ? all / kOne : all / kTwo; }
};

// The block's items, tiles of gate and up in order of their runs: of equal cost for all blocks, for these wait for each
// other. By a whole warp.
__device__ inline Share share_items(const FewArgs& a, const Runs& runs) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto tiles = static_cast<int>(a.tiles.value);
  constexpr int kOwn = kMostFewPairs / 32;  // runs of a lane
  int cost[kOwn];
  int own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int run = lane * kOwn + i;
    cost[i] = run < runs.all ? TileCost::of(runs.count[run]) : 0;
    own += cost[i];
  }
  const int behind = sum_up_to_lane(own);
  const Share units = share_of(__shfl_sync(kWholeWarp, behind, 31) * tiles, blockIdx.x, a.blocks);
  // How many items begin before a unit of cost.
  const auto items_before = [&](int unit) {
    int begin = (behind - own) * tiles;
    int items = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int within = max(unit - begin, 0) + cost[i] - 1;
      if (cost[i] > 0) items += min(tiles, TileCost::quotient(within, cost[i]));
      begin += cost[i] * tiles;
    }
    return static_cast<int>(__reduce_add_sync(kWholeWarp, items));
  };
  return {items_before(units.at), items_before(units.end)};
}

// Sums in shared memory that several warps add to: two atomic additions of 32 bits, with the carry between them.
__device__ inline void add_shared(int64_t* to, int64_t value) {
  auto* halves = reinterpret_cast<uint32_t*>(to);
  const auto low = static_cast<uint32_t>(value);
  const uint32_t old = atomicAdd(halves, low);
  const uint32_t carry = old + low < old ? 1 : 0;
  atomicAdd(halves + 1, static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32) + carry);
}
using RowSums = int64_t[kTileRows];

// A tile of 16 rows of a run: of gate (and of up behind it), or of down.
struct Piece {
  const std::byte* from;
  int32_t run;
  int32_t tile;
};

// Parts that a warp asks for, one after the other: of gate's pieces, two matrices each, then of down's.
struct Cursor {
  const Piece* piece;
  int part;
  int left;
};

// The stages of a warp, filled and read in turns; a stage is asked for again as soon as it is read.
struct Stream {
  std::byte* stages;
  int lane;
  const Cursor* then;  // what follows when all of gate and up is asked for
  int units;           // of a tile
  int64_t second;      // from a tile of gate to that of up; 0: down
  bool last = false;   // nothing of gate and up comes after the cursor's
  Cursor cursor{};
  int head = 0;

  // By all lanes; empty stages count too.
  __device__ void ask(const FewArgs& a, int stage) {
    if (cursor.left == 0 && last && second != 0) {
      second = 0;
      cursor = *then;
      units = static_cast<int>(a.args.table.inner / kNvfp4UnitInputs);
    }
    if (cursor.left > 0) {
      --cursor.left;
      const std::byte* from = cursor.piece->from + (cursor.part * kPartBytes + lane * 16);
      std::byte* to = stages + stage * kStageBytes + lane * 16;
      const bool whole = (cursor.part + 1) * kPartUnits <= units;
      copy(to, from, whole);
      if (second != 0) copy(to + kPartBytes, from + second, whole);
      if (++cursor.part * kPartUnits >= units) {
        cursor.part = 0;
        ++cursor.piece;
      }
    }
    commit_copies();
  }
  __device__ void ask_all(const FewArgs& a) {
    for (int s = 0, stage = head; s < kStages; ++s) {
      ask(a, stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }
  __device__ const std::byte* wait() const {
    await_copies<kStages - 1>();
    __syncwarp();
    return stages + head * kStageBytes;
  }
  // When the stage is read.
  __device__ void release(const FewArgs& a) {
    __syncwarp();
    ask(a, head);
    head = head + 1 == kStages ? 0 : head + 1;
  }

 private:
  // A part has 72 pieces of 16 bytes, half of one 36.
  __device__ void copy(std::byte* to, const std::byte* from, bool whole) const {
    copy_16(shared_address(to), from);
    if (whole || lane < 4) copy_16(shared_address(to + 512), from + 512);
    if (whole && lane < 8) copy_16(shared_address(to + 1024), from + 1024);
  }
};

// What the parts of the kernel hand on. All pointers but `a` are to shared memory.
struct Block {
  const FewArgs& a;
  const Runs& runs;
  const float* token_scales;  // dynamic scales only
  std::byte* columns;         // of gate and up: [run of the pass][gate, up][column]; then of down: [pairs]
  Piece* items;
  Piece* jobs;
  int lane, warp, warps;
};

}  // namespace tandem::ops::cuda::expert
