// Gated DeltaNet on the card (docs/architecture.md, "Models").
//
// Single steps: one launch; the state, 4 * key_dim * value_dim bytes a value head, is read once and, where the columns
// advance, written once, whatever the number of columns: bound by memory, then by about 0.5 us a column of a run. A
// column's bits depend on its run's earlier columns alone, and a window of columns gives the bits of as many single
// steps.
//
// Whole chunks of 64 tokens on the absolute grid, in steps of more than kMostFewColumns columns, take the chunk form on
// the tensor cores where key_dim is 128 and value_dim a multiple of 64: per chunk and value head 5.7 million
// multiply-adds, each as three of BF16 (delta_chunks.cuh). On an H200 48 heads take 0.14 us a token in chunks, which
// follow each other in 7 us each, and 0.7 us in single steps. Padding columns get zeros.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// key_dim and value_dim are multiples of 16, key_dim at most 256.
void delta_net(const Context& context, const Columns& columns, const Ops::DeltaNet& args);

// Of at most kMostFewColumns columns in one launch (delta_few.cu), and two more where the gates' matrices are not BF16.
// False where the shape is not served (heads of 128 x 128, four taps): the operations that it is made of do it then.
// A run's slot and the table of runs are read before the launches before have ended: what wrote them must have ended
// when the step began. The gates' inputs are read before the product in front has ended, which must not have written
// them: kernels of products let the next one start only when they may read what was written before them.
bool gated_delta_net(const Context& context, const Columns& columns, const Ops::GatedDeltaNet& args);

}  // namespace tandem::ops::cuda
