#include "model/feed_forward.h"

namespace tandem::model {

SwiGlu::SwiGlu(const std::string& name, int64_t inner, int64_t hidden, WeightLoader& loader)
    : gate_(loader.matrix(name + ".gate_proj.weight", inner, hidden)),
      up_(loader.matrix(name + ".up_proj.weight", inner, hidden)),
      down_(loader.matrix(name + ".down_proj.weight", hidden, inner)) {}

void SwiGlu::forward(const Step& step, const float* x, float* y) const {
  const Arena::Scope scope(step.arena);
  float* inner = step.arena.take<float>(step.tokens * gate_.rows);
  step.ops.swiglu(x, step.tokens, gate_, up_, inner, step.arena.take<float>(step.tokens * up_.rows));
  step.ops.linear_sum(inner, step.tokens, down_, y, step.arena.take<float>(step.tokens * down_.rows));
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
  if (!config_.moe()) {
    dense_.forward(step, x, y);
    return;
  }
  const Arena::Scope scope(step.arena);
  const auto floats = [&](int64_t each) { return step.arena.take<float>(step.tokens * each); };
  const int64_t choices = step.tokens * config_.top_k;
  const Routing chosen =
      routing != nullptr ? *routing : Routing{step.arena.take<int32_t>(choices), step.arena.take<float>(choices)};
  step.ops.expert_mixture({.experts = {.x = x,
                                       .tokens = step.tokens,
                                       .top_k = config_.top_k,
                                       .ids = chosen.ids,
                                       .weights = chosen.weights,
                                       .table = experts_,
                                       .quantise_activations = quantise_activations_,
                                       .lower = floats(config_.hidden),
                                       .upper = floats(config_.hidden),
                                       .faults = step.faults,
                                       .fault = layer_},
                           .router = router_,
                           .shared_gate = shared_gate_,
                           .gate = dense_.gate(),
                           .up = dense_.up(),
                           .down = dense_.down(),
                           .ids = chosen.ids,
                           .weights = chosen.weights,
                           .out = y,
                           .gates = floats(1),
                           .inner = floats(config_.shared_intermediate),
                           .other = floats(config_.shared_intermediate),
                           .shared_lower = floats(config_.hidden),
                           .shared_upper = floats(config_.hidden)});
}

}  // namespace tandem::model
