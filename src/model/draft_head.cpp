#include "model/draft_head.h"

namespace tandem::model {

DraftHead::DraftHead(const Config& config, const LoadOptions& options, WeightLoader& loader, LayoutBuilder& layout)
    : config_(config),
      norm_embedding_(loader.vector("mtp.pre_fc_norm_embedding.weight", config.hidden)),
      norm_hidden_(loader.vector("mtp.pre_fc_norm_hidden.weight", config.width())),
      layer_(config, "mtp.layers.0", static_cast<int32_t>(config.layers), LayerType::kFull, options, loader, layout) {
  if (config.family == Family::kQwen4Exp) {
    fc_embedding_ = loader.matrix("mtp.fc_embedding.weight", config.hidden, config.hidden);
    fc_hidden_ = loader.matrix("mtp.fc_hidden.weight", config.hidden, config.hidden);
    mixer_ = load_hyper(config, "mtp.hyper_connection_mixer", false, loader);
  } else {
    fc_ = loader.matrix("mtp.fc.weight", config.hidden, 2 * config.hidden);
    norm_ = loader.vector("mtp.norm.weight", config.hidden);
  }
}

void DraftHead::forward(const Step& step, const float* hidden, const float* embeddings, float* next_hidden,
                        float* head_input) const {
  const Arena::Scope scope(step.arena);
  const int64_t count = step.tokens * config_.hidden;
  float* e = step.arena.take<float>(count);
  float* h = step.arena.take<float>(step.tokens * config_.width());
  step.ops.rms_norm(embeddings, step.tokens, 1, config_.hidden, norm_embedding_, step.eps, e);
  // One root mean square over all streams together, unlike the grouped norms inside the layers.
  step.ops.rms_norm(hidden, step.tokens, 1, config_.width(), norm_hidden_, step.eps, h);
  if (norm_ != nullptr) {
    float* both = step.arena.take<float>(2 * count);
    Residual residual = Residual::take(step, config_);
    step.ops.concatenate(e, h, step.tokens, config_.hidden, both);
    step.ops.linear(both, step.tokens, fc_, false, residual.state);
    layer_.forward(step, residual, {});
    residual.norm(step, config_, norm_, next_hidden);
    step.device.copy(head_input, next_hidden, count * 4);
    return;
  }
  float* projected = step.arena.take<float>(count);
  step.ops.linear(h, step.tokens * config_.streams, fc_hidden_, false, next_hidden);
  step.ops.linear(e, step.tokens, fc_embedding_, false, projected);
  step.ops.add_to_streams(next_hidden, projected, step.tokens, config_.streams, config_.hidden);
  Residual residual = Residual::around(next_hidden, step, config_);
  layer_.forward(step, residual, {});
  residual.settle(step, config_);
  step.ops.hyper_mix(mixer_, next_hidden, step.tokens, config_.streams, config_.hidden, step.eps, head_input, nullptr);
}

}  // namespace tandem::model
