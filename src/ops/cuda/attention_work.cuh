// What one block of attention's kernels for few rows works on, and how the grid is numbered.
#pragma once

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_pages.cuh"

namespace tandem::ops::cuda {

// Blocks are numbered so that those which read the same keys are neighbours. A block has columns whose lists are cut
// alike; where a run goes on to longer pieces among its rows, it takes the rest of them afterwards.
struct Work {
  Work() = default;

  Run run;
  int64_t first_column;  // of the unit
  int64_t position;      // of that column
  int columns;           // of the unit that are no padding
  int kv_head;
  int first_row;     // of the unit's rows
  int last_column;   // behind the last of the block
  int begin_column;  // of those that are cut alike
  int end_column;
  int64_t piece;
  int64_t begin;  // of the list
  int64_t end;
  bool known;  // what the columns see does not depend on a choice

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
    piece = rest / units;
    const bool chosen = args.selection.counts != nullptr;
    first_column = chosen ? unit : static_cast<int64_t>(unit) * args.each;
    run = args.runs[chosen ? unit / args.each : unit];
    const auto offset = static_cast<int>(chosen ? unit % args.each : 0);
    position = run.position + offset;
    columns = chosen ? (offset < run.tokens ? 1 : 0) : static_cast<int>(run.tokens);
    const auto group = static_cast<unsigned>(args.group);
    last_column = min(columns, static_cast<int>((first_row + rows_a_block - 1) / group) + 1);
    known = TokenList::sees_everything(position, args.selection, args.kv.ratio);
    begin = end = 0;
    begin_column = end_column = static_cast<int>(static_cast<unsigned>(first_row) / group);
    if (known) find_piece(args);
  }
  // The next columns that are cut alike, and the piece of them. Where the choice counts, only after that wait.
  __device__ void find_piece(const AttentionArgs& args) {
    begin_column = end_column;
    begin = end = 0;
    if (begin_column >= last_column) return;
    end_column = last_column;
    int64_t piece_end = INT32_MAX;
    if (args.partial != nullptr) {
      const int64_t count = list_count(args, begin_column);
      const int64_t tokens = args.cut.piece_tokens(count);
      end_column = static_cast<int>(
          min(static_cast<int64_t>(last_column), begin_column + args.cut.longest_alike(count) - count + 1));
      begin = piece * tokens;
      piece_end = begin + tokens;
    }
    end = max(begin, min(list_count(args, end_column - 1), piece_end));
  }
  __device__ bool has_more_columns() const { return end_column < last_column; }

  __device__ int length() const { return static_cast<int>(end - begin); }
  // Row r of the block as (column of the unit, query head of the group); -1 where there is none.
  __device__ int column_of(const AttentionArgs& args, int r) const {
    const auto column = static_cast<int>(static_cast<unsigned>(first_row + r) / static_cast<unsigned>(args.group));
    return column >= begin_column && column < end_column ? column : -1;
  }
  __device__ int64_t query_row(const AttentionArgs& args, int r) const {
    const auto row = static_cast<unsigned>(first_row + r);
    const auto group = static_cast<unsigned>(args.group);
    return args.row(first_column + row / group, kv_head, static_cast<int>(row % group));
  }
  // The last place of the list that a row sees. A row that there is not sees everything: nobody reads its sums.
  __device__ int limit(const AttentionArgs& args, int r) const {
    const int column = column_of(args, r);
    if (column < 0) return INT32_MAX;
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

 private:
  __device__ int64_t list_count(const AttentionArgs& args, int column) const {
    return TokenList(position + column, args.selection, first_column, args.kv.ratio).count;
  }
};

// Blocks of the grid, all in x.
inline unsigned work_blocks(const AttentionArgs& args, const AttentionGrid& grid, int rows_a_block) {
  const int64_t row_blocks = (grid.rows + rows_a_block - 1) / rows_a_block;
  return static_cast<unsigned>(args.pieces * grid.units * args.kv.kv_heads * row_blocks);
}

}  // namespace tandem::ops::cuda
