// A card's operations with the time that each of them takes in a recorded step, for `tandem bench gpu`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace tandem::device {
class Device;
}

namespace tandem::ops::cuda {

// What an operation must read and write at least, and its multiplications and additions. The experts of several
// columns count as if all were different.
struct OpCost {
  double bytes = 0;
  double operations = 0;
};

// Calls of one operation in a step.
struct OpShare {
  std::string name;  // with the format of its weights and their shape: "linear nvfp4 [248320, 5120]"
  int64_t calls = 0;
  OpCost cost;
  double seconds = 0;
};

// Passes everything on to `card`. Not thread-safe.
class TimedOps final : public Ops {
 public:
  // For operations on this device, which must be a device::cuda::CudaDevice.
  TimedOps(std::unique_ptr<Ops> card, device::Device& device);
  ~TimedOps() override;

  enum class Watch { kNothing, kRecordings, kCalls };
  // A recording that is made while recordings are watched holds points in time before and behind each operation, which
  // keeps kernels from beginning while the one before ends. It must not be run again once this is switched on anew.
  // Calls are watched where they are not part of a recording.
  void watch(Watch what);
  // Of the last run of the recording that was made while watching, or of the calls since; the device has finished. In
  // order of their first call. What a point itself takes is taken off.
  std::vector<OpShare> shares() const;

  void prepare(const std::function<void()>& step) override;
  int64_t scratch_bytes() const override { return card_->scratch_bytes(); }
  bool recordable() const override { return card_->recordable(); }

  void arrange(Weight& w) override { card_->arrange(w); }
  bool arranges(const Weight& w) const override { return card_->arranges(w); }
  void embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) override;
  void rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                float* out) override;
  void linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) override;
  void linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) override;
  void linear_group(const float* x, int64_t tokens, std::span<const Product> products, bool exact_inputs) override;
  void linear_sum(const float* x, int64_t tokens, const Weight& w, float* y, float* upper) override;
  void swiglu(const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y, float* other) override;
  void add(float* y, const float* x, int64_t count) override;
  void add_rms_norm(float* y, const float* x, int64_t tokens, int64_t width, const float* weight, float eps,
                    float* out) override;
  void add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) override;
  void concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) override;
  void silu_multiply(const float* gate, const float* up, int64_t count, float* y) override;
  void hyper_mix(const HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden, float eps,
                 float* x, float* inject) override;
  void hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                    int64_t hidden) override;
  void hyper_inject_mix(float* state, const float* y, const float* inject, const HyperWeights& w, int64_t tokens,
                        int64_t streams, int64_t hidden, float eps, float* x, float* next_inject) override;
  void causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight, int64_t kernel,
                   int64_t dilation, int64_t history, float* out) override;
  void delta_net(const Columns& columns, const DeltaNet& args) override;
  void gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight, float eps,
                  bool sigmoid) override;
  void gated_delta_net(const Columns& columns, const GatedDeltaNet& args) override;
  void attention_inputs(const Columns& columns, const AttentionInputs& args) override;
  void index_inputs(const Columns& columns, const IndexInputs& args) override;
  void select_blocks(const Columns& columns, const SelectBlocks& args, const BlockSelection& selection) override;
  void gated_attention(const Columns& columns, const GatedAttention& args) override;
  void attention(const Columns& columns, const Attention& args) override;
  void router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) override;
  void router_and_gate(const float* x, int64_t tokens, const Weight& w, const Weight& gate, int64_t top_k, int32_t* ids,
                       float* weights, float* gates) override;
  void experts(const Experts& args) override;
  void combine_experts(const float* lower, const float* upper, const float* shared_lower, const float* shared_upper,
                       const float* gate, int64_t tokens, int64_t hidden, float* out) override;
  void expert_mixture(const ExpertMixture& args) override;
  void ngram_memory(const Columns& columns, const NgramWeights& w, const float* rows, int64_t streams, int64_t hidden,
                    float eps, int64_t history, float* state) override;
  void greedy(const Greedy& args) override;
  void top_logits(const TopLogits& args) override;

 private:
  class Points;
  // Passes one operation on, between two points where a recording is made.
  template <typename Call>
  void timed(const std::string& name, OpCost cost, const Call& call);

  std::unique_ptr<Ops> card_;
  std::unique_ptr<Points> points_;
};

}  // namespace tandem::ops::cuda
