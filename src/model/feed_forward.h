// The feed-forward half of a layer: a dense SwiGLU, or routed experts beside a shared one.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/step.h"
#include "model/weights.h"

namespace tandem::model {

// What the router chose: [tokens, top_k], best first, in the device's memory.
struct Routing {
  int32_t* ids = nullptr;
  float* weights = nullptr;
};

// down(silu(gate(x)) * up(x)), its sum in two halves over the inner dimension which are added.
class SwiGlu {
 public:
  SwiGlu(const std::string& name, int64_t inner, int64_t hidden, WeightLoader& loader);
  // y [tokens, hidden].
  void forward(const Step& step, const float* x, float* y) const;

  const ops::Weight& gate() const { return gate_; }
  const ops::Weight& up() const { return up_; }
  const ops::Weight& down() const { return down_; }

 private:
  ops::Weight gate_, up_, down_;
};

class FeedForward {
 public:
  // `name` is the module's, "model.language_model.layers.0.mlp"; `layer` is what Step::faults receives where the
  // experts' numbers leave their range.
  FeedForward(const Config& config, const std::string& name, int32_t layer, ExpertMode mode, WeightLoader& loader);

  // x, y [tokens, hidden]. `routing`, where not null, has the memory that receives the router's choice (experts only).
  void forward(const Step& step, const float* x, float* y, const Routing* routing) const;

 private:
  const Config& config_;
  int32_t layer_;
  SwiGlu dense_;  // the whole feed-forward, or the shared expert
  ops::Weight router_;
  ops::Weight shared_gate_;
  ops::ExpertTable experts_;
  bool quantise_activations_ = false;
};

}  // namespace tandem::model
