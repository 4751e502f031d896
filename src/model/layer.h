// One decoder layer: a mixer and a feed-forward around the residual state, with pre-norms (one stream) or with
// hyper-connections (several streams).
#pragma once

#include <optional>
#include <string>

#include "model/attention.h"
#include "model/delta_net.h"
#include "model/feed_forward.h"

namespace tandem::model {

// The weights of a gated residual module; without `inject` in the final mixer.
ops::HyperWeights load_hyper(const Config& config, const std::string& name, bool inject, WeightLoader& loader);

// Memory for what a caller wants to see of a layer; null members are not wanted.
struct LayerCapture {
  const Routing* routing = nullptr;
  const ops::BlockSelection* selection = nullptr;
};

// The residual state. What the last block gave is added by the norm or mix that follows, wherever that is.
struct Residual {
  // Memory of a step, from its arena.
  static Residual take(const Step& step, const Config& config);
  // The same around a state that is there.
  static Residual around(float* state, const Step& step, const Config& config);

  float* state = nullptr;    // [tokens, streams, hidden]
  float* change = nullptr;   // [tokens, hidden]: what the last block gave
  float* factors = nullptr;  // [tokens, streams] of `change`, and where the next go; with several streams
  float* next_factors = nullptr;
  bool owes = false;  // `change` is not in the state yet

  // Adds what the state still owes.
  void settle(const Step& step, const Config& config);
  // Settles, and out = N(state; weight); for one stream.
  void norm(const Step& step, const Config& config, const float* weight, float* out);
  // Settles, and out = the mix of several streams; `change` is to be what a block makes of it.
  void mix(const Step& step, const Config& config, const ops::HyperWeights& w, float* out);
};

class DecoderLayer {
 public:
  // `name` is the layer's, "model.language_model.layers.0" or "mtp.layers.0"; `index` its number, that of the draft
  // head behind the others.
  DecoderLayer(const Config& config, const std::string& name, int32_t index, LayerType type, const LoadOptions& options,
               WeightLoader& loader, LayoutBuilder& layout);

  // Moves the residual on.
  void forward(const Step& step, Residual& residual, const LayerCapture& capture) const;

  // Null where the layer has none that chooses blocks.
  const GatedAttention* sparse_attention() const { return attention_ && attention_->sparse() ? &*attention_ : nullptr; }

 private:
  // The half around `block(x, y)`: norm or mix, the block, and the addition to the state.
  template <typename Block>
  void half(const Step& step, const ops::HyperWeights& hyper, const float* norm, Residual& residual,
            const Block& block) const;

  const Config& config_;
  std::optional<GatedAttention> attention_;
  std::optional<GatedDeltaNet> delta_net_;
  FeedForward feed_forward_;
  ops::HyperWeights mixer_hyper_, feed_forward_hyper_;
  const float* mixer_norm_ = nullptr;
  const float* feed_forward_norm_ = nullptr;
};

}  // namespace tandem::model
