// The n-gram memory on the card (docs/architecture.md, "Models"): two products, one launch that gates the value and
// adds it to the streams, and the convolution.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// As Ops::ngram_memory. `state` of padding columns is not defined afterwards.
void ngram_memory(const Context& context, const Columns& columns, const NgramWeights& w, const float* rows,
                  int64_t streams, int64_t hidden, float eps, int64_t history, float* state);

}  // namespace tandem::ops::cuda
