// Choice of the blocks that a column attends to, in two parts: scores of all visible blocks, then the best of them.
#pragma once

#include "ops/cuda/attention_pages.cuh"
#include "ops/cuda/context.h"

namespace tandem::ops::cuda {

inline constexpr int kScoreColumns = 16;  // of a tile, at least, of many columns
inline constexpr int kScoreKeys = 32;     // of a tile

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

#ifdef __CUDACC__
// The columns of one tile.
struct Tile {
  Run run;
  int64_t first_column;
  int64_t position;  // of the first column
  int offset;        // of the first column in its run
  int columns;       // that are no padding
  int64_t first_row;

  __device__ Tile(const SelectArgs& args, int64_t index) {
    const auto tile = static_cast<unsigned>(args.first_tile + index);
    const unsigned r = tile / static_cast<unsigned>(args.run_tiles);
    offset = static_cast<int>(tile - r * args.run_tiles) * args.tile_columns;
    run = args.runs[r];
    first_column = static_cast<int64_t>(r) * args.each + offset;
    position = run.position + offset;
    columns = max(0, min(args.tile_columns, static_cast<int>(run.tokens) - offset));
    first_row = index * args.tile_columns;
  }
  __device__ int visible(int column, int ratio) const {
    return static_cast<int>(static_cast<unsigned>(position + column + 1) / static_cast<unsigned>(ratio));
  }
};
#endif

// Scores of the columns of `tiles`, where the context may have more blocks than the budget. `few`: a tile is a run of
// at most eight columns.
void score_blocks(const Context& context, const SelectArgs& args, bool tensor_cores, int64_t tiles, bool few);
// The best of each row of scores. `few`: a column is worth the work of several blocks of threads.
void choose_blocks(const Context& context, const SelectArgs& args, int64_t tiles, bool few);

}  // namespace tandem::ops::cuda
