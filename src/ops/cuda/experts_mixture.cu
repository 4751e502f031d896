// A layer's feed-forward of experts for few columns: the router's logits and the shared expert's gate and up, which
// read the same columns; the routed experts, with the choice before and the shared expert's down beside them; and the
// sum. One launch does it all where there is one column. Where the experts' kernel does not do all of that, the same
// numbers come from more launches: a column has the same bits whichever way its number of columns and the card allow.
#include <algorithm>

#include "ops/cuda/experts.h"
#include "ops/cuda/experts_few_shared.cuh"
#include "ops/cuda/router.h"
#include "ops/cuda/router_few.cuh"
#include "ops/cuda/router_rows.cuh"

namespace tandem::ops::cuda {

namespace {

using expert::Around;

__global__ void __launch_bounds__(expert::kMostFewThreads) shared_down(expert::FewArgs a) {
  extern __shared__ __align__(16) float columns[];
  follow();
  const auto hidden = static_cast<uint32_t>(a.args.table.hidden);
  expert::multiply_shared(a, expert::share_of(hidden, blockIdx.x, a.blocks), columns);
}

void run_apart(const Context& context, const Ops::ExpertMixture& args, const Around& around) {
  const Ops::Experts& e = args.experts;
  choose_experts(context, around.logits, e.tokens, args.router.rows, e.top_k, args.ids, args.weights);
  experts(context, e);
  if (!context.plans()) {
    expert::FewArgs few;
    few.args = e;
    few.around = around;
    few.blocks = expert::Divisor(context.multiprocessors);
    launch_following(context, shared_down, dim3(few.blocks.value), dim3(expert::kMostFewThreads),
                     static_cast<size_t>(e.tokens * around.inputs * 4), few);
    TANDEM_CUDA_LAUNCHED("shared_down");
  }
  combine_experts(context, e.lower, e.upper, args.shared_lower, args.shared_upper, args.gates, e.tokens, e.table.hidden,
                  args.out);
}

bool serves(const Context& context, const Ops::ExpertMixture& args) {
  const Weight& down = args.down;
  return context.tensor_cores && takes_few_logits_and_inner(args) && args.router.rows == args.experts.table.experts &&
         down.format == WeightFormat::kBF16 && down.inputs == args.gate.rows &&
         down.rows == args.experts.table.hidden && down.inputs <= expert::kMostSharedInputs &&
         by_fours(down.inputs / 4, down.data, args.inner);
}

}  // namespace

bool expert_mixture(const Context& context, const Ops::ExpertMixture& args) {
  if (!serves(context, args)) return false;
  const Scratch::Scope scope(context.scratch);
  auto* logits = context.scratch.take<float>(args.experts.tokens * args.router.rows);
  const Around around{.logits = logits,
                      .ids = args.ids,
                      .weights = args.weights,
                      .inner = args.inner,
                      .down = static_cast<const uint16_t*>(args.down.data),
                      .inputs = static_cast<int>(args.down.inputs),
                      .round = context.round_inputs,
                      .lower = args.shared_lower,
                      .upper = args.shared_upper,
                      .gates = args.gates,
                      .out = args.out};
  const bool few = args.router.rows <= expert::kMostFewExperts &&
                   args.experts.top_k <= std::min<int64_t>(32, args.router.rows) &&
                   expert::takes_few_nvfp4(context, args.experts, around);
  // Which takes no scratch; whether it serves is known when weights are there, so that the plan is for what follows.
  if (const RouterRows rows = router_rows_of(context, args, nullptr);
      few && !context.plans() && expert::takes_alone(context, args.experts, around, rows)) {
    expert::run_alone(context, args.experts, around, rows);
    return true;
  }
  few_logits_and_inner(context, args, logits);
  if (few) {
    expert::run_few_nvfp4(context, args.experts, around);
  } else {
    run_apart(context, args, around);
  }
  return true;
}

}  // namespace tandem::ops::cuda
