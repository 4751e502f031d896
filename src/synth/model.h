// A synthetic model in a published form: every tensor of it, and what its bytes are.
//
// Values have the magnitudes of trained ones where that decides what a program computes: products keep the size of
// their inputs, the sum of all blocks does not outgrow the embedding, scales are valid, decay rates decay. Logits are
// finite; what they say means nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "synth/filler.h"
#include "synth/forms.h"

namespace tandem::synth {

struct Settings {
  std::string form = "flash-nvfp4";
  Scale scale = Scale::kTiny;
  Sizes sizes;
  base::Json config;  // a whole config.json to take the sizes from; null: the scale's
  uint64_t seed = 1;
  // Popularity of experts: the router's row of an expert is scaled by exp(skew · z), z normal, drawn once for each
  // expert of a layer. A long row has large logits of either sign, so that its expert is chosen for nearly half of the
  // tokens where a short row's never is. 0: all alike.
  double router_skew = 0;
  // Alikeness of neighbours in a text, 0 to 1: tokens belong to 64 topics (id mod 64); this part of the variance of
  // their embeddings, and of their rows of the head, is the topic's. The next token is then often of the same topic,
  // and its hidden state and experts are like those before it.
  double locality = 0;
  // Large tensors repeat themselves after so many bytes, a power of two: quick to make, for measurements of models that
  // fill a card. 0: nothing repeats.
  uint64_t repeat_bytes = 0;
};

class Model {
 public:
  // Throws base::Error{kBadInput} for settings out of range and for sizes that no model of the family can have.
  explicit Model(const Settings& settings);

  const base::Json& config() const { return config_; }
  std::span<const checkpoint::TensorSpec> tensors() const { return tensors_; }
  uint64_t bytes() const { return bytes_; }  // of all tensors

  // Bytes [offset, offset + out.size()) of a tensor; whole elements. May be called from several threads.
  void make(size_t tensor, uint64_t offset, std::span<std::byte> out) const;

 private:
  // Made once and kept, by what they are drawn from.
  struct Patterns {
    std::mutex mutex;
    std::map<std::tuple<checkpoint::Dtype, Draw, double, double>, std::vector<std::byte>> of;
  };
  static bool draws_alike(Draw draw);
  const std::vector<std::byte>& pattern(const TensorPlan& plan) const;
  void add(const checkpoint::FormTensor& tensor);
  TensorPlan plan_of(const checkpoint::FormTensor& tensor, checkpoint::Dtype dtype) const;
  TensorPlan plan_plain(const checkpoint::FormTensor& tensor) const;
  TensorPlan plan_matrix(const checkpoint::FormTensor& tensor, checkpoint::Dtype dtype) const;
  TensorPlan plan_floats(const checkpoint::FormTensor& tensor, double spread) const;
  std::vector<int64_t> integers(const std::string& name, int64_t count) const;

  Settings settings_;
  base::Json config_;
  double depth_gain_ = 1;  // of what a block adds to the residual
  std::vector<checkpoint::TensorSpec> tensors_;
  std::vector<TensorPlan> plans_;  // parallel to tensors_
  std::vector<uint64_t> keys_;     // parallel to tensors_
  uint64_t bytes_ = 0;
  Filler filler_;
  mutable Patterns patterns_;
};

// The model as a checkpoint without files, whose tensors are made when they are read.
checkpoint::Checkpoint checkpoint_of(std::shared_ptr<const Model> model);

}  // namespace tandem::synth
