// The tokens that come into question for one draw.
#pragma once

#include <span>

#include "ops/ops.h"

namespace tandem::engine {

// The largest logits among those of the allowed tokens, as the model gave them.
struct Candidates {
  std::span<const ops::TokenLogit> best;  // at most ops::Ops::kTopLogits; best first, the lower id first among equals
  int64_t tokens = 0;                     // of so many, allowed or not
  bool complete() const { return best.size() < static_cast<size_t>(ops::Ops::kTopLogits); }  // no others are allowed
};

}  // namespace tandem::engine
