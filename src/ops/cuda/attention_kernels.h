// The kernels of attention, each launched by its own file. `few` where the context is cut into pieces, whose partial
// results merge_pieces puts together.
#pragma once

#include "ops/cuda/attention_pages.cuh"
#include "ops/cuda/context.h"

namespace tandem::ops::cuda {

// Grid of a kernel that works on pieces (`args.partial` set) or on whole lists. A unit is a run, or a column where
// blocks are selected.
struct AttentionGrid {
  int64_t units = 0;
  int64_t rows = 0;  // query heads of a unit that share one kv head: columns * group
};

// Tensor cores, BF16 and 8-bit pages: each block one kv head of a unit.
void attend_pieces(const Context& context, const AttentionGrid& grid, const AttentionArgs& args);
// The same over 8-bit pages.
void attend_codes(const Context& context, const AttentionGrid& grid, const AttentionArgs& args);
// Tensor cores, many columns of a run over everything up to each.
void attend_prefill(const Context& context, const AttentionGrid& grid, const AttentionArgs& args);
// FP32 throughout, every type of pages: what the others are compared with.
void attend_portable(const Context& context, const AttentionArgs& args, int64_t columns);
// Adds up the pieces of each column and head in a fixed order.
void merge_pieces(const Context& context, const AttentionArgs& args, int64_t columns);

}  // namespace tandem::ops::cuda
