// What follows the logits on the card.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Ops::greedy. Two launches.
void greedy(const Context& context, const Ops::Greedy& args);

// Ops::top_logits, of at most 2^20 tokens. Two launches.
void top_logits(const Context& context, const Ops::TopLogits& args);

}  // namespace tandem::ops::cuda
