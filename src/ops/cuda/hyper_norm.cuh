// The norm of many columns of four streams, together with their products with `inject` (hyper_norm.cu).
#pragma once

#include "ops/cuda/hyper_few.cuh"

namespace tandem::ops::cuda {

bool takes_norm_and_inject(const HyperMix& mix);
// normed [tokens, streams * hidden]; mix.inject receives the products alone.
void norm_and_inject(const Context& context, const HyperMix& mix, float* normed);
// The same with `normed` rounded to BF16 and the norms' scales [tokens, streams]; what mix.y adds goes to mix.updated.
void norm_and_inject(const Context& context, const HyperMix& mix, uint16_t* normed, float* scales);

}  // namespace tandem::ops::cuda
