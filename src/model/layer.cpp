#include "model/layer.h"

#include <utility>

namespace tandem::model {

ops::HyperWeights load_hyper(const Config& config, const std::string& name, bool inject, WeightLoader& loader) {
  ops::HyperWeights w;
  w.norm = loader.vector(name + ".hc_norm.weight", config.width());
  w.down = loader.matrix(name + ".input_mix_weight_down.weight", config.hc_lowrank, config.width());
  w.up = loader.matrix(name + ".input_mix_weight_up.weight", config.width(), config.hc_lowrank);
  if (inject) w.inject = loader.matrix(name + ".block_inject_weight.weight", config.streams, config.width());
  return w;
}

namespace {

ops::KvType kv_type(const LoadOptions& options) {
  if (options.kv_cache == KvCache::kInt8) return ops::KvType::kInt8;
  return options.activations == Activations::kBF16 ? ops::KvType::kBF16 : ops::KvType::kF32;
}

}  // namespace

DecoderLayer::DecoderLayer(const Config& config, const std::string& name, int32_t index, LayerType type,
                           const LoadOptions& options, WeightLoader& loader, LayoutBuilder& layout)
    : config_(config), feed_forward_(config, name + ".mlp", index, options.expert_mode, loader) {
  if (type == LayerType::kFull) {
    const int64_t budget = options.indexer_budget > 0 ? options.indexer_budget : config.indexer_budget;
    attention_.emplace(config, name + ".self_attn", budget, kv_type(options), loader, layout);
  } else {
    delta_net_.emplace(config, name + ".linear_attn", loader, layout);
  }
  if (config.family == Family::kQwen4Exp) {
    mixer_hyper_ = load_hyper(config, name + ".attn_hyper_connection", true, loader);
    feed_forward_hyper_ = load_hyper(config, name + ".mlp_hyper_connection", true, loader);
  } else {
    mixer_norm_ = loader.vector(name + ".input_layernorm.weight", config.hidden);
    feed_forward_norm_ = loader.vector(name + ".post_attention_layernorm.weight", config.hidden);
  }
}

Residual Residual::take(const Step& step, const Config& config) {
  return around(step.arena.take<float>(step.tokens * config.width()), step, config);
}

Residual Residual::around(float* state, const Step& step, const Config& config) {
  Residual residual{.state = state, .change = step.arena.take<float>(step.tokens * config.hidden)};
  if (config.streams > 1) {
    residual.factors = step.arena.take<float>(step.tokens * config.streams);
    residual.next_factors = step.arena.take<float>(step.tokens * config.streams);
  }
  return residual;
}

void Residual::settle(const Step& step, const Config& config) {
  if (owes && factors != nullptr) {
    step.ops.hyper_inject(state, change, factors, step.tokens, config.streams, config.hidden);
  } else if (owes) {
    step.ops.add(state, change, step.tokens * config.hidden);
  }
  owes = false;
}

void Residual::norm(const Step& step, const Config& config, const float* weight, float* out) {
  if (owes) {
    step.ops.add_rms_norm(state, change, step.tokens, config.hidden, weight, step.eps, out);
  } else {
    step.ops.rms_norm(state, step.tokens, 1, config.hidden, weight, step.eps, out);
  }
  owes = false;
}

void Residual::mix(const Step& step, const Config& config, const ops::HyperWeights& w, float* out) {
  if (owes) {
    step.ops.hyper_inject_mix(state, change, factors, w, step.tokens, config.streams, config.hidden, step.eps, out,
                              next_factors);
  } else {
    step.ops.hyper_mix(w, state, step.tokens, config.streams, config.hidden, step.eps, out, next_factors);
  }
  std::swap(factors, next_factors);
  owes = false;
}

template <typename Block>
void DecoderLayer::half(const Step& step, const ops::HyperWeights& hyper, const float* norm, Residual& residual,
                        const Block& block) const {
  const Arena::Scope scope(step.arena);
  float* x = step.arena.take<float>(step.tokens * config_.hidden);
  if (norm != nullptr) {
    residual.norm(step, config_, norm, x);
  } else {
    residual.mix(step, config_, hyper, x);
  }
  block(x, residual.change);
  residual.owes = true;
}

void DecoderLayer::forward(const Step& step, Residual& residual, const LayerCapture& capture) const {
  half(step, mixer_hyper_, mixer_norm_, residual, [&](const float* x, float* y) {
    if (attention_) {
      attention_->forward(step, x, y, capture.selection);
    } else {
      delta_net_->forward(step, x, y);
    }
  });
  half(step, feed_forward_hyper_, feed_forward_norm_, residual,
       [&](const float* x, float* y) { feed_forward_.forward(step, x, y, capture.routing); });
}

}  // namespace tandem::model
