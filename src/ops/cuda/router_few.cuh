// The router's logits and the shared expert's gate of few columns in one launch, and more that reads these columns
// (router_few.cu).
#pragma once

#include "ops/cuda/context.h"
#include "ops/ops.h"

namespace tandem::ops::cuda {

bool takes_few_logits(const float* x, int64_t tokens, const Weight& router, const Weight& gate);
// logits [tokens, experts] and gates [tokens], as linear() with exact inputs defines them.
void few_logits(const Context& context, const float* x, int64_t tokens, const Weight& router, const Weight& gate,
                float* logits, float* gates);

// The same, and args.inner: silu(gate x) * up x of the shared expert.
bool takes_few_logits_and_inner(const Ops::ExpertMixture& args);
void few_logits_and_inner(const Context& context, const Ops::ExpertMixture& args, float* logits);
// For kernels that do it themselves; `logits` may be null.
struct RouterRows;
RouterRows router_rows_of(const Context& context, const Ops::ExpertMixture& args, float* logits);

}  // namespace tandem::ops::cuda
