// Log probabilities of tokens, as the model gave them.
#pragma once

#include <cstdint>
#include <span>

#include "engine/request.h"

namespace tandem::engine {

// The drawn token and the `top` likeliest ones under softmax(logits), summed in FP64. REQUIRES: `drawn` is within
// `logits`, which are finite.
StepLogprobs step_logprobs(std::span<const float> logits, int32_t drawn, int64_t top);

}  // namespace tandem::engine
