// The routed experts of one layer on a card (docs/architecture.md, "Numbers").
//
// With quantised activations the numbers are those of numeric/expert_reference and numeric/block_units, bit for bit,
// for any number of columns; else FP32 sums over rounded or exact activations, in an order that no number of columns
// changes.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Ops::experts. Throws base::Error{kInternal} where a token has more experts than the sum holds.
void experts(const Context& context, const Ops::Experts& args);
// Ops::expert_mixture of few columns where router and shared expert are BF16: three launches with NVFP4 experts, a few
// more with others. Else false, and nothing was done.
bool expert_mixture(const Context& context, const Ops::ExpertMixture& args);

}  // namespace tandem::ops::cuda
