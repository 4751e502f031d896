#include "model/feed_forward.h"

namespace tandem::model {

SwiGlu::SwiGlu(const std::string& name, int64_t inner, int64_t hidden, WeightLoader& loader)
    : gate_(loader.matrix(name + ".gate_proj.weight", inner, hidden)),
      up_(loader.matrix(name + ".up_proj.weight", inner, hidden)),
      down_(loader.matrix(name + ".down_proj.weight", hidden, inner)) {}

void SwiGlu::forward(const Step& step, const float* x, float* lower, float* upper) const {
  const Arena::Scope scope(step.arena);
  step.ops.linear_halves(inner(step, x), step.tokens, down_, lower, upper);
}

void SwiGlu::forward(const Step& step, const float* x, float* y) const {
  const Arena::Scope scope(step.arena);
  step.ops.linear_sum(inner(step, x), step.tokens, down_, y, step.arena.take<float>(step.tokens * down_.rows));
}

const float* SwiGlu::inner(const Step& step, const float* x) const {
  float* out = step.arena.take<float>(step.tokens * gate_.rows);
  step.ops.swiglu(x, step.tokens, gate_, up_, out, step.arena.take<float>(step.tokens * up_.rows));
  return out;
}

FeedForward::FeedForward(const Config& config, const std::string& name, int32_t layer, ExpertMode mode,
                         WeightLoader& loader)
    : config_(config),
      layer_(layer),
      dense_(config.moe() ? name + ".shared_expert" : name,
             config.moe() ? config.shared_intermediate : config.intermediate, config.hidden, loader) {
  if (!config.moe()) return;
  router_ = loader.matrix(name + ".gate.weight", config.experts, config.hidden);
  shared_gate_ = loader.matrix(name + ".shared_expert_gate.weight", 1, config.hidden);
  experts_ = loader.experts(name + ".experts", config.experts, config.expert_intermediate, config.hidden);
  quantise_activations_ = mode == ExpertMode::kW4A4;
}

void FeedForward::forward(const Step& step, const float* x, float* y, const Routing* routing) const {
  const Arena::Scope scope(step.arena);
  const int64_t count = step.tokens * config_.hidden;
  if (!config_.moe()) {
    dense_.forward(step, x, y);
    return;
  }
  const int64_t choices = step.tokens * config_.top_k;
  const Routing chosen =
      routing != nullptr ? *routing : Routing{step.arena.take<int32_t>(choices), step.arena.take<float>(choices)};
  float* gate = step.arena.take<float>(step.tokens);
  step.ops.router_and_gate(x, step.tokens, router_, shared_gate_, config_.top_k, chosen.ids, chosen.weights, gate);
  float* lower = step.arena.take<float>(count);
  float* upper = step.arena.take<float>(count);
  step.ops.experts({.x = x,
                    .tokens = step.tokens,
                    .top_k = config_.top_k,
                    .ids = chosen.ids,
                    .weights = chosen.weights,
                    .table = experts_,
                    .quantise_activations = quantise_activations_,
                    .lower = lower,
                    .upper = upper,
                    .faults = step.faults,
                    .fault = layer_});
  float* shared_lower = step.arena.take<float>(count);
  float* shared_upper = step.arena.take<float>(count);
  dense_.forward(step, x, shared_lower, shared_upper);
  step.ops.combine_experts(lower, upper, shared_lower, shared_upper, gate, step.tokens, config_.hidden, y);
}

}  // namespace tandem::model
