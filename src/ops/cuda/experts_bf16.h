// The routed experts of many columns in BF16: a path within a tolerance of the canonical one (experts_bf16.cuh).
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda::expert {

// Whether the option and the layer's formats and shape allow it.
bool takes_bf16(const Context& context, const Ops::Experts& args);
void run_bf16(const Context& context, const Ops::Experts& args);

}  // namespace tandem::ops::cuda::expert
