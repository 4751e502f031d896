// Attention on CUDA: what ops::Ops says of these methods, over pages of BF16, FP32 and 8-bit keys and values.
//
// Costs. attention_inputs and index_inputs: one launch each, or of few columns one together, and a few KB a column.
// select_blocks: two launches, and two bytes a dimension of every visible block's key; of many columns it computes
// 2 * heads * index_dim operations a column and block, in tiles of columns that bound the scratch. attention of few
// columns: two launches, and one read of the visible keys and values for each run (each column where blocks are
// selected), which 8-bit pages give from the second-level cache again for each 16 query heads that share them; many
// columns: one launch, 4 * heads * head_dim operations a column and visible token. Gates cost no launch. Rows and
// vectors begin at multiples of 16 bytes.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

void attention_inputs(const Context& context, const Columns& columns, const Ops::AttentionInputs& args);
void index_inputs(const Context& context, const Columns& columns, const Ops::IndexInputs& args);
// Both in one launch; their rotations are the same. `everything` (or null): counts of a selection of which no column
// can see more blocks than the budget; index queries are then left out.
void attention_and_index_inputs(const Context& context, const Columns& columns, const Ops::AttentionInputs& args,
                                const Ops::IndexInputs& index_args, int32_t* everything);
void select_blocks(const Context& context, const Columns& columns, const Ops::SelectBlocks& args,
                   const BlockSelection& selection);
void attention(const Context& context, const Columns& columns, const Ops::Attention& args);
// Of at most kMostFewColumns columns, in a launch or two less than its parts; else false, and these do it.
bool gated_attention(const Context& context, const Columns& columns, const Ops::GatedAttention& args);

}  // namespace tandem::ops::cuda
