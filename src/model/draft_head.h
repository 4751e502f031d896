// The draft head (MTP): one layer that predicts the token after next from the target's hidden state and the next token.
#pragma once

#include <memory>
#include <span>

#include "model/layer.h"

namespace tandem::model {

class DraftHead {
 public:
  DraftHead(const Config& config, const LoadOptions& options, WeightLoader& loader, LayoutBuilder& layout);

  // hidden [n, width]: the target's state of the entries' positions (one stream: after the final norm; several: the
  // unmixed streams) or the head's own of the step before. embeddings [n, hidden]: of the tokens that follow.
  // next_hidden [n, width]: what a chained step takes; head_input [n, hidden]: what the shared lm_head takes.
  void forward(const Step& step, const float* hidden, const float* embeddings, float* next_hidden,
               float* head_input) const;

 private:
  const Config& config_;
  const float* norm_embedding_;
  const float* norm_hidden_;
  ops::Weight fc_;                        // one stream: [hidden, 2 hidden]
  ops::Weight fc_embedding_, fc_hidden_;  // several: [hidden, hidden] each
  const float* norm_ = nullptr;           // one stream
  ops::HyperWeights mixer_;               // several
  DecoderLayer layer_;
};

}  // namespace tandem::model
