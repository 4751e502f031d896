// What follows the logits on the card. A row of logits is read once, or written where an entry is refused.
#pragma once

#include "ops/cuda/context.h"

namespace tandem::ops::cuda {

// ids[r] = the place of the largest of logits [rows, vocab], the lowest among equals; NaN is never chosen, and a row of
// nothing but NaN gives 0. Two launches.
void argmax(const Context& context, const float* logits, int64_t rows, int64_t vocab, int32_t* ids);

// Sets what is refused to -infinity: bit i % 32 of word i / 32 of a row of allowed_bits [rows, ceil(vocab / 32)] stands
// for entry i.
void apply_mask(const Context& context, float* logits, int64_t rows, int64_t vocab, const uint32_t* allowed_bits);

}  // namespace tandem::ops::cuda
