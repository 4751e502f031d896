#include "model/feed_forward.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::model {

SwiGlu::SwiGlu(const std::string& name, int64_t inner, int64_t hidden, WeightLoader& loader)
    : gate_(loader.matrix(name + ".gate_proj.weight", inner, hidden)),
      up_(loader.matrix(name + ".up_proj.weight", inner, hidden)),
      down_(loader.matrix(name + ".down_proj.weight", hidden, inner)) {}

void SwiGlu::forward(const Step& step, const float* x, float* lower, float* upper) const {
  const Arena::Scope scope(step.arena);
  float* gate = step.arena.take<float>(step.tokens * gate_.rows);
  float* up = step.arena.take<float>(step.tokens * up_.rows);
  step.ops.linear(x, step.tokens, gate_, false, gate);
  step.ops.linear(x, step.tokens, up_, false, up);
  step.ops.silu_multiply(gate, up, step.tokens * gate_.rows, gate);
  step.ops.linear_halves(gate, step.tokens, down_, lower, upper);
}

FeedForward::FeedForward(const Config& config, const std::string& name, ExpertMode mode, WeightLoader& loader)
    : config_(config),
      name_(name),
      dense_(config.moe() ? name + ".shared_expert" : name,
             config.moe() ? config.shared_intermediate : config.intermediate, config.hidden, loader) {
  if (!config.moe()) return;
  router_ = loader.matrix(name + ".gate.weight", config.experts, config.hidden);
  shared_gate_ = loader.matrix(name + ".shared_expert_gate.weight", 1, config.hidden);
  experts_ = loader.experts(name + ".experts", config.experts, config.expert_intermediate, config.hidden);
  quantise_activations_ = mode == ExpertMode::kW4A4;
}

void FeedForward::forward(const Step& step, const float* x, float* y, Routing* routing) const {
  const Arena::Scope scope(step.arena);
  const int64_t count = step.tokens * config_.hidden;
  float* upper = step.arena.take<float>(count);
  if (!config_.moe()) {
    dense_.forward(step, x, y, upper);
    step.ops.add(y, upper, count);
    return;
  }
  const int64_t choices = step.tokens * config_.top_k;
  auto* ids = step.arena.take<int32_t>(choices);
  float* weights = step.arena.take<float>(choices);
  step.ops.router(x, step.tokens, router_, config_.top_k, ids, weights);
  if (routing != nullptr) {
    routing->ids.assign(ids, ids + choices);
    routing->weights.assign(weights, weights + choices);
  }
  float* lower = step.arena.take<float>(count);
  const ops::Fault fault = step.ops.experts({.x = x,
                                             .tokens = step.tokens,
                                             .top_k = config_.top_k,
                                             .ids = ids,
                                             .weights = weights,
                                             .table = experts_,
                                             .quantise_activations = quantise_activations_,
                                             .lower = lower,
                                             .upper = upper});
  if (fault >= 0) {
    base::internal_error(name_, "the experts' numbers left their range at position {}", step.position + fault);
  }
  float* shared_lower = step.arena.take<float>(count);
  float* shared_upper = step.arena.take<float>(count);
  float* gate = step.arena.take<float>(step.tokens);
  dense_.forward(step, x, shared_lower, shared_upper);
  step.ops.linear(x, step.tokens, shared_gate_, true, gate);
  step.ops.combine_experts(lower, upper, shared_lower, shared_upper, gate, step.tokens, config_.hidden, y);
}

}  // namespace tandem::model
