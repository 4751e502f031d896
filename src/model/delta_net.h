// Gated DeltaNet mixer: projections, causal convolution, the delta rule, gated norm (docs/architecture.md, "Models").
#pragma once

#include <string>

#include "model/config.h"
#include "model/step.h"
#include "model/weights.h"

namespace tandem::model {

class GatedDeltaNet {
 public:
  // `name` is the module's, "model.language_model.layers.0.linear_attn".
  GatedDeltaNet(const Config& config, const std::string& name, WeightLoader& loader, LayoutBuilder& layout);

  // x, y [tokens, hidden]. Moves the recurrent and the convolution state on.
  void forward(const Step& step, const float* x, float* y) const;

 private:
  const Config& config_;
  int64_t channels_;  // of the convolution: queries, keys and values
  ops::Weight qkv_, z_, a_, b_, out_;
  const float* conv_;
  const float* a_log_;
  const float* dt_bias_;
  const float* norm_;
  int64_t state_offset_;
  int64_t history_offset_;
};

}  // namespace tandem::model
