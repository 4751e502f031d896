// Choice of the blocks that a column attends to: scores of all visible blocks, then the best by a radix search.
//
// Scores go to scratch, a row a column, for as many columns at once as the scratch's bound holds. On tensor cores a
// tile is 16 columns by 32 keys for each head, so that the sum over heads stays in one lane and has the host's order; a
// warp reads its keys from memory straight into fragments. Whatever the number of columns is, each of them takes the
// same steps.
#include <algorithm>
#include <cmath>
#include <cuda_bf16.h>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_mma.cuh"
#include "ops/cuda/attention_pages.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int64_t kMostScoreBytes = int64_t{64} << 20;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileColumns = 16;
constexpr int kTileKeys = 32;

struct SelectArgs {
  KvView kv;
  const Run* runs;
  int each;
  int heads;
  float scale;
  const float* q;
  BlockSelection selection;
  float* scores;   // [rows, stride]
  int64_t stride;  // at least the visible blocks of any column
  // A row of scores for every column of a stretch of tiles; tiles cut each run into `tile_columns`.
  int tile_columns;
  int run_tiles;
  int64_t first_tile;
};

// The columns of one tile.
struct Tile {
  Run run;
  int64_t first_column;
  int64_t position;  // of the first column
  int columns;       // that are no padding
  int64_t first_row;

  __device__ Tile(const SelectArgs& args, int64_t index) {
    const int64_t tile = args.first_tile + index;
    const int64_t r = tile / args.run_tiles;
    const auto offset = static_cast<int>(tile % args.run_tiles) * args.tile_columns;
    run = args.runs[r];
    first_column = r * args.each + offset;
    position = run.position + offset;
    columns = max(0, min(args.tile_columns, static_cast<int>(run.tokens) - offset));
    first_row = index * args.tile_columns;
  }
  __device__ int64_t visible(int column, int ratio) const { return (position + column + 1) / ratio; }
};

// Queries of a tile's columns in BF16, [groups of 16 columns, heads, 16, inputs], with the inputs of each 32 in the
// order of the fragments: a lane's 16 bytes of a key are inputs of two products.
template <int kInputs>
__device__ __forceinline__ void load_queries(const SelectArgs& args, const Tile& tile, char* to) {
  constexpr int chunks = kInputs / 8;
  constexpr int quads = kInputs / 4;
  constexpr int ahead = 4;
  const int count = args.tile_columns * args.heads * quads;
  const auto place = [&](int i, int& row, int& d) {
    row = i / quads;
    d = i % quads * 4;
  };
  for (int first = threadIdx.x; first < count; first += ahead * kThreads) {
    float4 q[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      int row = 0;
      int d = 0;
      place(first + i * kThreads, row, d);
      const int head = row / kTileColumns % args.heads;
      const int column = row / (args.heads * kTileColumns) * kTileColumns + row % kTileColumns;
      const float* from = args.q + ((tile.first_column + column) * args.heads + head) * args.kv.index_dim + d;
      q[i] = column < tile.columns && d < args.kv.index_dim ? *reinterpret_cast<const float4*>(from) : float4{};
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      int row = 0;
      int d = 0;
      place(first + i * kThreads, row, d);
      if (first + i * kThreads >= count) continue;
      const int at = d / 32 * 32 + d % 8 / 4 * 16 + d % 32 / 8 * 2;
      char* base = to + at % 8 * 2;
      *reinterpret_cast<uint32_t*>(base + swizzled<chunks>(row, at / 8) * 16) = pack_bf16(q[i].x, q[i].y);
      *reinterpret_cast<uint32_t*>(base + swizzled<chunks>(row, at / 8 + 1) * 16) = pack_bf16(q[i].z, q[i].w);
    }
  }
}

// A block has one tile of columns and `keys` blocks of the context.
template <int kInputs>
__global__ void __launch_bounds__(kThreads, kInputs <= 128 ? 2 : 1)
    score_kernel(const __grid_constant__ SelectArgs args, int keys) {
  extern __shared__ __align__(128) char queries[];
  const Tile tile(args, blockIdx.y);
  if (tile.columns == 0) return;
  const int64_t visible = tile.visible(tile.columns - 1, args.kv.ratio);
  if (visible <= args.selection.budget || blockIdx.x * static_cast<int64_t>(keys) >= visible) return;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int groups = args.tile_columns / kTileColumns;
  const int group = warp % groups;
  const int parts = kWarps / groups;  // warps that share out the keys
  const int64_t end = min(visible, (blockIdx.x + 1) * static_cast<int64_t>(keys));
  constexpr int chunks = kInputs / 8;
  uint4 b[4][kInputs / 32];
  const auto load_keys = [&](int64_t first) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int64_t key = min(first + 8 * n + lane / 4, visible - 1);
      const std::byte* from = args.kv.index_key(tile.run.block_table, key);
#pragma unroll
      for (int i = 0; i < kInputs / 32; ++i) {
        const int d = 32 * i + 8 * (lane % 4);
        b[n][i] = d < args.kv.index_dim ? *reinterpret_cast<const uint4*>(from + 2 * d) : make_uint4(0, 0, 0, 0);
      }
    }
  };
  int64_t first = blockIdx.x * static_cast<int64_t>(keys) + warp / groups * kTileKeys;
  load_keys(first);
  load_queries<kInputs>(args, tile, queries);
  __syncthreads();
  for (; first < end; first += parts * kTileKeys) {
    float sums[4][4] = {};
    for (int h = 0; h < args.heads; ++h) {
      float products[4][4] = {};
      const int row = (group * args.heads + h) * kTileColumns + lane % 16;
#pragma unroll
      for (int s = 0; s < kInputs / 16; ++s) {
        uint32_t a[4];
        load_matrices(a, shared_address(queries) + swizzled<chunks>(row, 2 * s + lane / 16) * 16);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint4& words = b[n][s / 2];
          multiply_add(products[n], a, s % 2 == 0 ? words.x : words.z, s % 2 == 0 ? words.y : words.w);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] += products[n][i] > 0.0F ? products[n][i] : 0.0F;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = group * kTileColumns + 8 * half + lane / 4;
      if (column >= tile.columns) continue;
      float* to = args.scores + (tile.first_row + column) * args.stride + first + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(sums[n][2 * half] * args.scale, sums[n][2 * half + 1] * args.scale);
      }
    }
    if (first + parts * kTileKeys < end) load_keys(first + parts * kTileKeys);
  }
}

// In FP32 on ordinary cores: a warp a block of the context, for one column.
__global__ void __launch_bounds__(kThreads) score_portable_kernel(const __grid_constant__ SelectArgs args, int keys) {
  const Tile tile(args, blockIdx.y / args.tile_columns);
  const auto column = static_cast<int>(blockIdx.y) % args.tile_columns;
  if (column >= tile.columns) return;
  const int64_t visible = tile.visible(column, args.kv.ratio);
  if (visible <= args.selection.budget) return;
  const int lane = threadIdx.x % 32;
  const int dim = args.kv.index_dim;
  const int64_t end = min(visible, (blockIdx.x + 1) * static_cast<int64_t>(keys));
  const float* q = args.q + (tile.first_column + column) * args.heads * dim;
  for (int64_t key = blockIdx.x * static_cast<int64_t>(keys) + threadIdx.x / 32; key < end; key += kWarps) {
    const std::byte* from = args.kv.index_key(tile.run.block_table, key);
    float sum = 0;
    for (int h = 0; h < args.heads; ++h) {
      float product = 0;
      for (int d = lane; d < dim; d += 32) {
        const float k = args.kv.type == KvType::kF32
                            ? reinterpret_cast<const float*>(from)[d]
                            : __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[d]);
        product = fmaf(q[h * dim + d], k, product);
      }
      for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xFFFFFFFFu, product, step);
      sum += product > 0.0F ? product : 0.0F;
    }
    if (lane == 0) args.scores[(tile.first_row + column) * args.stride + key] = sum * args.scale;
  }
}

// ---- The best of a row ----

constexpr int kSearchThreads = 1024;
constexpr int kBins = 2048;
constexpr int kMostCandidates = 2048;

// Scores are not negative, so their bits have their order.
struct Search {
  uint32_t bins[kBins];
  uint32_t candidates[kMostCandidates];
  uint32_t warp_counts[kSearchThreads / 32];
  uint32_t candidate_count;
  uint32_t chosen_bin;
  uint32_t bin_count;
  uint32_t above;  // in the bins above the chosen one
};

// The keys among which the last of the best is, and how many of them are wanted. Bins are 2^shift keys wide; the lowest
// and the highest take what is outside.
struct Range {
  uint32_t low;
  uint32_t high;
  int shift;
  uint32_t start;  // of bin 0
  uint32_t wanted;

  __device__ bool holds(uint32_t key) const { return key >= low && key <= high; }
  __device__ uint32_t bin(uint32_t key) const {
    return key < start ? 0 : min((key - start) >> shift, static_cast<uint32_t>(kBins - 1));
  }
  // Those of one bin.
  __device__ Range narrowed(uint32_t b, uint32_t above) const {
    Range next = *this;
    next.wanted -= above;
    if (b > 0) next.low = start + (b << shift);
    if (b < kBins - 1) next.high = min(high, start + (b << shift) + ((1u << shift) - 1));
    next.start = next.low;
    next.shift = max(0, 32 - __clz(static_cast<int>(next.high - next.low)) - 11);
    return next;
  }
};

// The inclusive sum over the block's threads in ascending order.
__device__ uint32_t block_scan(uint32_t x, uint32_t* warp_counts) {
  const int lane = threadIdx.x % 32;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, x, step);
    if (lane >= step) x += other;
  }
  __syncthreads();
  if (lane == 31) warp_counts[threadIdx.x / 32] = x;
  __syncthreads();
  const uint32_t others = lane < static_cast<int>(threadIdx.x / 32) ? warp_counts[lane] : 0;
  return x + __reduce_add_sync(0xFFFFFFFFu, others);
}

// Finds the bin in which the wanted number, counted from the largest, is reached.
__device__ Range choose_bin(const Range& range, Search& search) {
  constexpr int each = kBins / kSearchThreads;
  uint32_t counts[each];
  uint32_t mine = 0;
  for (int i = 0; i < each; ++i) {
    counts[i] = search.bins[kBins - 1 - (threadIdx.x * each + i)];
    mine += counts[i];
  }
  uint32_t before = block_scan(mine, search.warp_counts) - mine;
  for (int i = 0; i < each; ++i) {
    if (before < range.wanted && before + counts[i] >= range.wanted) {
      search.chosen_bin = kBins - 1 - (threadIdx.x * each + i);
      search.bin_count = counts[i];
      search.above = before;
    }
    before += counts[i];
  }
  __syncthreads();
  return range.narrowed(search.chosen_bin, search.above);
}

__device__ void clear_bins(Search& search) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kSearchThreads) search.bins[i] = 0;
  if (threadIdx.x == 0) search.candidate_count = 0;
  __syncthreads();
}

// Calls `use(key)` for every score of a row.
template <typename Use>
__device__ __forceinline__ void each_score(const float* scores, int64_t count, Use use) {
  const auto* quads = reinterpret_cast<const uint4*>(scores);
  constexpr int ahead = 4;
  const int64_t all = count / 4;
  for (int64_t first = threadIdx.x; first < all; first += ahead * kSearchThreads) {
    uint4 keys[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) keys[i] = quads[min(first + i * kSearchThreads, all - 1)];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (first + i * kSearchThreads >= all) break;
      use(keys[i].x);
      use(keys[i].y);
      use(keys[i].z);
      use(keys[i].w);
    }
  }
  if (const int64_t i = all * 4 + threadIdx.x; i < count) use(__float_as_uint(scores[i]));
}

// Puts the keys of a range on the list of candidates; how many there are, which may be more than the list holds.
__device__ uint32_t list_candidates(const float* scores, int64_t count, const Range& range, Search& search) {
  each_score(scores, count, [&](uint32_t key) {
    if (!range.holds(key)) return;
    const uint32_t at = atomicAdd(&search.candidate_count, 1u);
    if (at < kMostCandidates) search.candidates[at] = key;
  });
  __syncthreads();
  return search.candidate_count;
}

// A range from a bound below the last of the best: as many threads as there are best have a key above it, the largest
// of their own. So most keys are never sorted into bins.
__device__ Range bounded(const Range& range, const float* scores, int64_t count, Search& search) {
  uint32_t mine = 0;
  each_score(scores, count, [&](uint32_t key) { mine = max(mine, key); });
  clear_bins(search);
  atomicAdd(&search.bins[range.bin(mine)], 1u);
  __syncthreads();
  Range next = range;
  next.low = choose_bin(range, search).low;
  return next;
}

// The key of the last of the best; `ties` of those that equal it are among them.
__device__ uint32_t last_key(const float* scores, int64_t count, uint32_t budget, Search& search, uint32_t& ties) {
  // 64 bins an octave, 2^-16 to 2^16, which holds the scores of normalised queries and keys.
  Range range{.low = 0, .high = 0xFFFFFFFFu, .shift = 17, .start = (127u - 16u) << 23, .wanted = budget};
  if (budget <= kSearchThreads && count >= 4 * kSearchThreads) range = bounded(range, scores, count, search);
  clear_bins(search);
  uint32_t list = list_candidates(scores, count, range, search);
  while (range.low != range.high) {
    clear_bins(search);
    const auto sort_in = [&](uint32_t key) {
      if (range.holds(key)) atomicAdd(&search.bins[range.bin(key)], 1u);
    };
    const bool listed = list <= kMostCandidates;
    if (listed) {
      for (uint32_t i = threadIdx.x; i < list; i += kSearchThreads) sort_in(search.candidates[i]);
    } else {
      each_score(scores, count, sort_in);
    }
    __syncthreads();
    range = choose_bin(range, search);
    if (listed || search.bin_count > kMostCandidates) continue;
    clear_bins(search);
    list = list_candidates(scores, count, range, search);
  }
  ties = range.wanted;
  return range.low;
}

// Writes the chosen blocks in ascending order: those above the last key, and the first of its ties.
__device__ void write_blocks(const float* scores, int64_t count, uint32_t last, uint32_t ties, uint32_t* bits,
                             uint32_t* warp_counts, int32_t* blocks) {
  const int64_t words = (count + 31) / 32;
  uint32_t* above = bits;
  uint32_t* equal = bits + words;
  for (int64_t word = threadIdx.x / 32; word < words; word += kSearchThreads / 32) {
    const int64_t i = word * 32 + threadIdx.x % 32;
    const uint32_t key = i < count ? __float_as_uint(scores[i]) : 0;
    const uint32_t more = __ballot_sync(0xFFFFFFFFu, i < count && key > last);
    const uint32_t same = __ballot_sync(0xFFFFFFFFu, i < count && key == last);
    if (threadIdx.x % 32 == 0) {
      above[word] = more;
      equal[word] = same;
    }
  }
  __syncthreads();
  const int64_t each = (words + kSearchThreads - 1) / kSearchThreads;
  const int64_t begin = min(words, threadIdx.x * each);
  const int64_t end = min(words, begin + each);
  uint32_t tied = 0;
  for (int64_t w = begin; w < end; ++w) tied += __popc(equal[w]);
  uint32_t tie = block_scan(tied, warp_counts) - tied;
  uint32_t mine = 0;
  for (int64_t w = begin; w < end; ++w) {
    for (uint32_t left = equal[w]; left != 0 && tie < ties; left &= left - 1, ++tie) above[w] |= left & (~left + 1);
    mine += __popc(above[w]);
  }
  uint32_t at = block_scan(mine, warp_counts) - mine;
  for (int64_t w = begin; w < end; ++w) {
    for (uint32_t left = above[w]; left != 0; left &= left - 1) {
      blocks[at++] = static_cast<int32_t>(w * 32 + __ffs(static_cast<int>(left)) - 1);
    }
  }
}

__global__ void __launch_bounds__(kSearchThreads) choose_kernel(const __grid_constant__ SelectArgs args, int held) {
  extern __shared__ __align__(16) uint32_t bits[];
  __shared__ Search search;
  const Tile tile(args, blockIdx.x / args.tile_columns);
  const auto c = static_cast<int>(blockIdx.x) % args.tile_columns;
  const int64_t offset = tile.first_column % args.each + c;
  if (offset >= args.each) return;
  const int64_t column = tile.first_column + c;
  const int64_t visible = c < tile.columns ? tile.visible(c, args.kv.ratio) : 0;
  const int64_t budget = args.selection.budget;
  if (threadIdx.x == 0) {
    args.selection.counts[column] = visible <= budget ? BlockSelection::kEverything : static_cast<int32_t>(budget);
  }
  if (visible <= budget) return;
  const float* scores = args.scores + (tile.first_row + c) * args.stride;
  if (held > 0) {  // the row fits behind the bits
    auto* copy = reinterpret_cast<float4*>(bits) + args.stride / 32 * 2 / 4 + 1;
    const auto* from = reinterpret_cast<const float4*>(scores);
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < (visible + 3) / 4; i += kSearchThreads) copy[i] = from[i];
    scores = reinterpret_cast<const float*>(copy);
    __syncthreads();
  }
  uint32_t ties = 0;
  const uint32_t last = last_key(scores, visible, static_cast<uint32_t>(budget), search, ties);
  write_blocks(scores, visible, last, ties, bits, search.warp_counts, args.selection.blocks + column * budget);
}

template <int kInputs>
void launch_scores(const Context& context, const SelectArgs& args, int64_t tiles, int keys, int64_t blocks) {
  const int bytes = args.tile_columns * args.heads * kInputs * 2;
  const auto kernel = score_kernel<kInputs>;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
  kernel<<<grid, kThreads, static_cast<size_t>(bytes), context.stream>>>(args, keys);
  TANDEM_CUDA_LAUNCHED("score_blocks");
}

void score(const Context& context, const SelectArgs& args, bool tensor_cores, int64_t tiles) {
  // A block of the grid takes as many keys as pay for its queries.
  const int keys = args.tile_columns > kTileColumns ? 1024 : kWarps * kTileKeys;
  const int64_t blocks = (args.stride + keys - 1) / keys;
  if (!tensor_cores) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles * args.tile_columns));
    score_portable_kernel<<<grid, kThreads, 0, context.stream>>>(args, keys);
    TANDEM_CUDA_LAUNCHED("score_blocks");
    return;
  }
  if (args.kv.index_dim <= 32) return launch_scores<32>(context, args, tiles, keys, blocks);
  if (args.kv.index_dim <= 64) return launch_scores<64>(context, args, tiles, keys, blocks);
  if (args.kv.index_dim <= 128) return launch_scores<128>(context, args, tiles, keys, blocks);
  launch_scores<256>(context, args, tiles, keys, blocks);
}

void choose(const Context& context, const SelectArgs& args, int64_t tiles) {
  // Two bits a block, and where there is room the row of scores.
  constexpr int64_t most = int64_t{72} << 10;
  const int64_t bits = (args.stride / 32 * 2 / 4 + 1) * 16;
  if (bits > most) base::internal_error("cuda", "{} blocks are too many to choose from", args.stride);
  const bool held = bits + args.stride * 4 <= most;
  const int64_t bytes = held ? bits + args.stride * 4 : bits;
  TANDEM_CUDA_CHECK(cudaFuncSetAttribute(choose_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  choose_kernel<<<static_cast<unsigned>(tiles * args.tile_columns), kSearchThreads, static_cast<size_t>(bytes),
                  context.stream>>>(args, held ? 1 : 0);
  TANDEM_CUDA_LAUNCHED("choose_blocks");
}

}  // namespace

void select_blocks(const Context& context, const Columns& columns, const Ops::SelectBlocks& args,
                   const BlockSelection& selection) {
  if (args.kv.index_dim % 8 != 0 || args.kv.index_dim > 256) {
    base::internal_error("cuda", "index keys of {} dimensions", args.kv.index_dim);
  }
  if (columns.count() == 0) return;
  SelectArgs a{.kv = KvView(args.kv),
               .runs = columns.table,
               .each = static_cast<int>(columns.each),
               .heads = static_cast<int>(args.heads),
               .scale = 1.0F / std::sqrt(static_cast<float>(args.kv.index_dim)),
               .q = args.q,
               .selection = selection,
               .scores = nullptr,
               .stride = (columns.reach / args.kv.ratio + kTileKeys) / kTileKeys * kTileKeys,
               .tile_columns = kTileColumns,
               .run_tiles = 1,
               .first_tile = 0};
  const bool tensor_cores = context.tensor_cores && context.round_inputs && args.kv.type != KvType::kF32;
  // Many columns share the keys by fours of tiles, as far as shared memory holds their queries.
  const int64_t query_bytes = kTileColumns * args.heads * 2 * std::max<int64_t>(args.kv.index_dim, 32);
  while (tensor_cores && a.tile_columns < columns.each && a.tile_columns < 4 * kTileColumns &&
         2 * a.tile_columns / kTileColumns * query_bytes <= 64 * 1024) {
    a.tile_columns *= 2;
  }
  a.run_tiles = static_cast<int>((columns.each + a.tile_columns - 1) / a.tile_columns);
  const int64_t tiles = a.run_tiles * static_cast<int64_t>(columns.runs.size());
  const int64_t tile_bytes = a.tile_columns * a.stride * 4;
  const int64_t tiles_at_once = std::clamp<int64_t>(kMostScoreBytes / tile_bytes, 1, tiles);
  const Scratch::Scope scope(context.scratch);
  a.scores = context.scratch.take<float>(tiles_at_once * a.tile_columns * a.stride);
  if (context.plans()) return;
  const bool any = columns.reach / args.kv.ratio > selection.budget;
  for (int64_t first = 0; first < tiles; first += tiles_at_once) {
    a.first_tile = first;
    const int64_t count = std::min(tiles_at_once, tiles - first);
    if (any) score(context, a, tensor_cores, count);
    choose(context, a, count);
  }
}

}  // namespace tandem::ops::cuda
