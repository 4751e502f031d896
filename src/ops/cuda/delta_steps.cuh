// Single steps of Gated DeltaNet (delta_steps.cu).
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Some runs of the columns, and which of their tokens: a run's tokens in [begin, end), of those that it has.
struct StepRange {
  int64_t first_run = 0;
  int64_t runs = 0;
  int64_t begin = 0;
  int64_t end = 0;  // at most Columns::each; tokens that a run lacks get zeros
  // Of the one run, in place of its slot's; moved on whatever the columns say.
  float* state = nullptr;
};
void delta_steps(const Context& context, const Columns& columns, const Ops::DeltaNet& args, const StepRange& range);

}  // namespace tandem::ops::cuda
