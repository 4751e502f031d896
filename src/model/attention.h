// Gated attention with partial rotary positions, dense or over selected blocks (docs/architecture.md, "Models").
#pragma once

#include <string>

#include "model/config.h"
#include "model/step.h"
#include "model/weights.h"

namespace tandem::model {

class GatedAttention {
 public:
  // `name` is the module's, "model.language_model.layers.3.self_attn". `budget` the tokens that sparse selection keeps.
  GatedAttention(const Config& config, const std::string& name, int64_t budget, ops::KvType kv_type,
                 WeightLoader& loader, LayoutBuilder& layout);

  // x, y [tokens, hidden]. Appends keys and values at the step's positions. `selection`, where not null, has the
  // memory that receives what sparse selection chose.
  void forward(const Step& step, const float* x, float* y, const ops::BlockSelection* selection) const;
  bool sparse() const { return budget_blocks_ > 0; }
  // Memory for what sparse selection chooses, in the arena.
  ops::BlockSelection take_selection(const Step& step) const;

 private:
  const Config& config_;
  ops::Weight q_, k_, v_, o_;
  const float* q_norm_;
  const float* k_norm_;
  ops::Weight index_qk_;
  const float* index_q_norm_ = nullptr;
  const float* index_k_norm_ = nullptr;
  int64_t budget_blocks_ = 0;
  ops::KvType kv_type_;
  int64_t page_offset_;
  int64_t recent_offset_ = 0;
};

}  // namespace tandem::model
