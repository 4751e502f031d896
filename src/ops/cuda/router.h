// The router and the sum of experts' and the shared expert's halves. The router is one launch besides its product.
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

inline constexpr int64_t kMostExperts = 1024;

// As Ops::router; at most kMostExperts, of which 32 are chosen. The choice is by logits; weights are e^logit over the
// sum of the chosen, which differs from the host's quotients of probabilities in the last bits.
void router(const Context& context, const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids,
            float* weights);
// The same, and gates = x gate^T: few columns in two launches.
void router_and_gate(const Context& context, const float* x, int64_t tokens, const Weight& w, const Weight& gate,
                     int64_t top_k, int32_t* ids, float* weights, float* gates);
// The choice alone, from logits [tokens, experts].
void choose_experts(const Context& context, const float* logits, int64_t tokens, int64_t experts, int64_t top_k,
                    int32_t* ids, float* weights);
void combine_experts(const Context& context, const float* lower, const float* upper, const float* shared_lower,
                     const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden, float* out);

}  // namespace tandem::ops::cuda
