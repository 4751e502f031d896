// The feed-forward half of a layer: a dense SwiGLU, or routed experts beside a shared one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/step.h"
#include "model/weights.h"

namespace tandem::model {

// What the router chose: [tokens, top_k], best first.
struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// down(silu(gate(x)) * up(x)), its sum in two halves over the inner dimension.
class SwiGlu {
 public:
  SwiGlu(const std::string& name, int64_t inner, int64_t hidden, WeightLoader& loader);
  // lower, upper [tokens, hidden].
  void forward(const Step& step, const float* x, float* lower, float* upper) const;

 private:
  ops::Weight gate_, up_, down_;
};

class FeedForward {
 public:
  // `name` is the module's, "model.language_model.layers.0.mlp".
  FeedForward(const Config& config, const std::string& name, ExpertMode mode, WeightLoader& loader);

  // x, y [tokens, hidden]. `routing`, where not null, receives the router's choice (experts only). Throws base::Error
  // with the module's name where the experts' numbers leave their range.
  void forward(const Step& step, const float* x, float* y, Routing* routing) const;

 private:
  const Config& config_;
  std::string name_;
  SwiGlu dense_;  // the whole feed-forward, or the shared expert
  ops::Weight router_;
  ops::Weight shared_gate_;
  ops::ExpertTable experts_;
  bool quantise_activations_ = false;
};

}  // namespace tandem::model
