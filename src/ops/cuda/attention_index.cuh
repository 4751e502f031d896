// What the choice of blocks begins with: a step's index queries, and pooled keys of the blocks that it completes.
#pragma once

#include "ops/cuda/attention_rows.cuh"
#include "ops/cuda/follow.cuh"

namespace tandem::ops::cuda {

inline constexpr int kRowWarps = 4;  // of a block that makes rows

struct IndexArgs {
  KvView kv;
  const Run* runs;
  int each;
  int heads;
  bool round;
  float eps;
  const float* qk;
  const float* q_norm;
  const float* k_norm;
  int64_t recent;
  float* q;
  int32_t* everything;  // counts of the selection, where all columns see everything and nobody asks for queries

  IndexArgs() : kv(KvLayer{}) {}
  IndexArgs(const Columns& columns, const Ops::IndexInputs& from, bool round_queries, int32_t* counts)
      : kv(from.kv),
        runs(columns.table),
        each(static_cast<int>(columns.each)),
        heads(static_cast<int>(from.heads)),
        round(round_queries),
        eps(from.eps),
        qk(from.qk),
        q_norm(from.q_norm),
        k_norm(from.k_norm),
        recent(from.recent),
        q(from.q),
        everything(counts) {
    if (kv.index_dim > kMostDim || kv.index_dim % 4 != 0) {
      base::internal_error("cuda", "index keys of {} dimensions", kv.index_dim);
    }
  }
  unsigned blocks(const Columns& columns) const {
    return static_cast<unsigned>((columns.each + 1) * static_cast<int64_t>(columns.runs.size()));
  }
#ifdef __CUDACC__
  __device__ const float* raw(int64_t column) const { return qk + (column * (heads + 1) + heads) * kv.index_dim; }
#endif
};

#ifdef __CUDACC__
// Of each warp.
struct RowMemory {
  float place[kRowWarps][kMostDim];
  float2 angles[kRowWarps][kMostPairs];
};

// The pooled key of the block that ends at column `last` of the run, whose columns begin at `first_column`; angles are
// those of the block's first position.
__device__ inline void pool_block(const IndexArgs& args, const RotaryTable& rotary, const Run& run,
                                  int64_t first_column, int64_t last, const float2* angles, float* place,
                                  bool for_good) {
  const int dim = args.kv.index_dim;
  const int ratio = args.kv.ratio;
  const int64_t first = last + 1 - ratio;  // before the run where negative
  const auto* recent = reinterpret_cast<const float*>(run.slot + args.recent);
  const auto parts = static_cast<float>(ratio);
  Row weight;
  load_row(weight, args.k_norm, dim);
  Row row;
#pragma unroll
  for (int i = 0; i < kRowParts; ++i) {
    row[i] = {0, 0, 0, 0};
    if (row_place(i) >= dim) continue;
    for (int64_t t = first; t <= last; ++t) {
      const float* from = !for_good ? args.k_norm
                          : t >= 0  ? args.raw(first_column + t)
                                    : recent + (run.position + t) % Ops::kRecentKeys * dim;
      const float4 x = load4(from + row_place(i));
      row[i] = {row[i].x + x.x, row[i].y + x.y, row[i].z + x.z, row[i].w + x.w};
    }
    row[i] = {row[i].x / parts, row[i].y / parts, row[i].z / parts, row[i].w / parts};
    if (args.kv.type != KvType::kF32) row[i] = rounded_to_bf16(row[i]);
  }
  norm_row(row, dim, weight, args.eps);
  rotate_row(row, rotary.pairs, angles, place);
  if (!for_good) return;
  store_row(args.kv.index_key(run.block_table, static_cast<int>(static_cast<unsigned>(run.position + first) /
                                                                static_cast<unsigned>(ratio))),
            row, dim, args.kv.type);
}

// A column's queries, and the block among its run's own tokens that it completes.
template <bool kFew>
__device__ inline void make_column_index(const IndexArgs& args, const RotaryTable& rotary, const Run& run,
                                         int64_t first_column, int64_t t, RowMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int dim = args.kv.index_dim;
  const int ratio = args.kv.ratio;
  const int64_t column = first_column + t;
  const int64_t position = run.position + t;
  float2* angles = memory.angles[warp];
  const bool whole =
      static_cast<unsigned>(position + 1) % static_cast<unsigned>(ratio) == 0 && t + 1 >= ratio && t < run.tokens;
  const int heads = args.everything == nullptr ? args.heads : 0;
  const bool pools = whole && warp == args.heads % kRowWarps;
  // Those of queries; of a pooled key, after them.
  if (warp < heads) make_angles(rotary, position, angles);
  rehearse<kFew>([&](bool for_good) {
    if (for_good && args.everything != nullptr && threadIdx.x == 0) {
      args.everything[column] = BlockSelection::kEverything;
    }
    __syncwarp();
    for (int head = warp; head < heads; head += kRowWarps) {
      Row weight;
      load_row(weight, args.q_norm, dim);
      Row row;
      load_row(row, for_good ? args.qk + (column * (args.heads + 1) + head) * dim : args.q_norm, dim);
      norm_row(row, dim, weight, args.eps);
      rotate_row(row, rotary.pairs, angles, memory.place[warp]);
      if (!for_good) return;
      float* q = args.q + (column * args.heads + head) * dim;
#pragma unroll
      for (int i = 0; i < kRowParts; ++i) {
        if (row_place(i) < dim) store4(q + row_place(i), args.round ? rounded_to_bf16(row[i]) : row[i]);
      }
    }
  });
  if (!pools) return;
  __syncwarp();
  make_angles(rotary, position + 1 - ratio, angles);
  __syncwarp();
  pool_block(args, rotary, run, first_column, t, angles, memory.place[warp], true);
}

// Pools what was begun before the run, then moves the ring on: in this order, for the ring's new rows may be those that
// the block reads.
template <bool kFew>
__device__ inline void move_recent_keys(const IndexArgs& args, const RotaryTable& rotary, const Run& run,
                                        int64_t first_column, RowMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int dim = args.kv.index_dim;
  const int ratio = args.kv.ratio;
  const int64_t begun =
      static_cast<unsigned>(run.position) % static_cast<unsigned>(ratio);  // tokens of the block that the run begins in
  const int64_t last = ratio - 1 - begun;
  const bool pools = warp == 0 && begun > 0 && last < run.tokens;
  if (pools) make_angles(rotary, run.position - begun, memory.angles[warp]);
  __syncwarp();
  rehearse<kFew>([&](bool for_good) {
    if (pools) {
      pool_block(args, rotary, run, first_column, last, memory.angles[warp], memory.place[warp], for_good);
    }
    __syncthreads();
    auto* recent = reinterpret_cast<float*>(run.slot + args.recent);
    for (int64_t t = max(int64_t{0}, run.tokens - Ops::kRecentKeys) + warp; t < run.tokens; t += kRowWarps) {
      float* to = recent + (run.position + t) % Ops::kRecentKeys * dim;
      const float* from = for_good ? args.raw(first_column + t) : args.k_norm;
#pragma unroll
      for (int i = 0; i < kRowParts; ++i) {
        if (row_place(i) >= dim) continue;
        const float4 x = load4(from + row_place(i));
        if (for_good) store4(to + row_place(i), x);
      }
    }
  });
}

// By block `index` of IndexArgs::blocks(): those of a run are its columns' and, last, one for its ring.
template <bool kFew>
__device__ inline void make_index(const IndexArgs& args, const RotaryTable& rotary, unsigned index, RowMemory& memory) {
  const unsigned r = index / (args.each + 1);
  const auto part = static_cast<int>(index - r * (args.each + 1));
  const Run run = args.runs[r];
  const int64_t first_column = static_cast<int64_t>(r) * args.each;
  if (part == args.each) return move_recent_keys<kFew>(args, rotary, run, first_column, memory);
  make_column_index<kFew>(args, rotary, run, first_column, part, memory);
}
#endif

}  // namespace tandem::ops::cuda
