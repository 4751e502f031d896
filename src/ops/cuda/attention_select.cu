// Which scores of blocks are computed at once, within the bound of scratch.
#include <algorithm>
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_select.cuh"

namespace tandem::ops::cuda {

namespace {

constexpr int64_t kMostScoreBytes = int64_t{64} << 20;

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
               .stride = (columns.reach / args.kv.ratio + kScoreKeys) / kScoreKeys * kScoreKeys,
               .tile_columns = kScoreColumns,
               .run_tiles = 1,
               .first_tile = 0};
  const bool tensor_cores = context.tensor_cores && context.round_inputs && args.kv.type != KvType::kF32;
  const bool few = columns.count() <= kMostFewColumns;
  if (few) a.tile_columns = static_cast<int>(columns.each);
  // Many columns share the keys by fours of tiles, as far as shared memory holds their queries.
  const int64_t query_bytes = kScoreColumns * args.heads * 2 * std::max<int64_t>(args.kv.index_dim, 32);
  while (tensor_cores && !few && a.tile_columns < columns.each && a.tile_columns < 4 * kScoreColumns &&
         2 * a.tile_columns / kScoreColumns * query_bytes <= 64 * 1024) {
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
    if (any) score_blocks(context, a, tensor_cores, count, few);
    choose_blocks(context, a, count, few);
  }
}

}  // namespace tandem::ops::cuda
