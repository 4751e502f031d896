// What one block of attention's kernels for few rows works on, and how the grid is numbered.
#pragma once

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_pages.cuh"

namespace tandem::ops::cuda {

// Blocks are numbered so that those which read the same keys are neighbours, and the longest pieces come first.
struct Work {
  Work() = default;

  Run run;
  int64_t first_column;  // of the unit
  int64_t position;      // of that column
  int columns;           // of the unit that are no padding
  int kv_head;
  int first_row;  // of the unit's rows
  int64_t piece;
  int64_t begin;  // of the list
  int64_t end;

  // Reads runs alone, which no kernel writes: done before a kernel waits for those before it.
  __device__ Work(const AttentionArgs& args, const AttentionGrid& grid, int rows_a_block) {
    const auto row_blocks = (static_cast<unsigned>(grid.rows) + rows_a_block - 1) / rows_a_block;
    const auto units = static_cast<unsigned>(grid.units);
    unsigned rest = blockIdx.x;
    first_row = static_cast<int>(rest % row_blocks) * rows_a_block;
    rest /= row_blocks;
    kv_head = static_cast<int>(rest % args.kv.kv_heads);
    rest /= args.kv.kv_heads;
    const unsigned unit = rest % units;
    piece = args.pieces - 1 - rest / units;
    const bool chosen = args.selection.counts != nullptr;
    first_column = chosen ? unit : static_cast<int64_t>(unit) * args.each;
    run = args.runs[chosen ? unit / args.each : unit];
    const auto offset = static_cast<int>(chosen ? unit % args.each : 0);
    position = run.position + offset;
    columns = chosen ? (offset < run.tokens ? 1 : 0) : static_cast<int>(run.tokens);
    begin = args.partial != nullptr ? piece_begin(piece) : 0;
    end = begin;
    if (!chosen) find_end(args, rows_a_block);
  }
  // Where blocks are chosen, only after that wait.
  __device__ void find_end(const AttentionArgs& args, int rows_a_block) {
    if (first_row >= columns * args.group) return;
    const int last_column = min(columns - 1, (first_row + rows_a_block - 1) / args.group);
    end = TokenList(position + last_column, args.selection, first_column, args.kv.ratio).count;
    if (args.partial != nullptr) end = min(end, piece_begin(piece + 1));
  }

  __device__ int length() const { return static_cast<int>(end - begin); }
  // Row r of the block as (column of the unit, query head of the group); -1 where there is none.
  __device__ int column_of(const AttentionArgs& args, int r) const {
    const int row = first_row + r;
    return row < columns * args.group ? row / args.group : -1;
  }
  __device__ int64_t query_row(const AttentionArgs& args, int r) const {
    const int row = first_row + r;
    return args.row(first_column + row / args.group, kv_head, row % args.group);
  }
  // The last place of the list that a row sees; -1 where there is no row.
  __device__ int limit(const AttentionArgs& args, int r) const {
    const int column = column_of(args, r);
    if (column < 0) return -1;
    return static_cast<int>(args.selection.counts != nullptr ? end - 1 : position + column);
  }
  // Answers of padding, where no merge writes them.
  __device__ void zero_padding(const AttentionArgs& args) const {
    if (args.partial != nullptr || first_row != 0) return;
    const int all = args.selection.counts != nullptr ? 1 : args.each;
    const int width = args.group * args.kv.head_dim;
    for (int c = columns; c < all; ++c) {
      float* out = args.out + args.row(first_column + c, kv_head, 0) * args.kv.head_dim;
      for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] = 0.0F;
    }
  }
};

// Blocks of the grid, all in x.
inline unsigned work_blocks(const AttentionArgs& args, const AttentionGrid& grid, int rows_a_block) {
  const int64_t row_blocks = (grid.rows + rows_a_block - 1) / rows_a_block;
  return static_cast<unsigned>(args.pieces * grid.units * args.kv.kv_heads * row_blocks);
}

}  // namespace tandem::ops::cuda
