// hyper_mix of many columns, hyper_inject before it, with BF16 inputs (hyper_many.cu).
#pragma once

#include "ops/cuda/hyper_few.cuh"

namespace tandem::ops::cuda {

bool takes_many_columns(const Context& context, const HyperMix& mix);
void mix_many_columns(const Context& context, const HyperMix& mix);

}  // namespace tandem::ops::cuda
