// The operations on the processor: the reference that every other device is compared with, and a product of its own.
#pragma once

#include "base/pool.h"
#include "ops/host/host_experts.h"
#include "ops/host/kernels.h"
#include "ops/host/scratch.h"
#include "ops/ops.h"

namespace tandem::ops::host {

class HostOps : public Ops {
 public:
  // `round_inputs`: the inputs of matrix products are rounded to BF16. `kernels` is for tests; the pool must outlive
  // the object.
  HostOps(base::WorkerPool& pool, bool round_inputs, const Kernels& kernels = host::kernels())
      : pool_(pool), kernels_(kernels), round_inputs_(round_inputs), experts_(pool, kernels) {}

  void embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) override;
  void rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                float* out) override;
  void linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) override;
  void linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) override;
  void add(float* y, const float* x, int64_t count) override;
  void add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) override;
  void concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) override;
  void silu_multiply(const float* gate, const float* up, int64_t count, float* y) override;
  void hyper_mix(const HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden, float eps,
                 float* x, float* inject) override;
  void hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                    int64_t hidden) override;
  void causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight, int64_t kernel,
                   int64_t dilation, int64_t history, float* out) override;
  void delta_net(const Columns& columns, const DeltaNet& args) override;
  void gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight, float eps,
                  bool sigmoid) override;
  void attention_inputs(const Columns& columns, const AttentionInputs& args) override;
  void index_inputs(const Columns& columns, const IndexInputs& args) override;
  void select_blocks(const Columns& columns, const SelectBlocks& args, const BlockSelection& selection) override;
  void attention(const Columns& columns, const Attention& args) override;
  void router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) override;
  void experts(const Experts& args) override;
  void combine_experts(const float* lower, const float* upper, const float* shared_lower, const float* shared_upper,
                       const float* gate, int64_t tokens, int64_t hidden, float* out) override;
  void ngram_memory(const Columns& columns, const NgramWeights& w, const float* rows, int64_t streams, int64_t hidden,
                    float eps, int64_t history, float* state) override;
  void greedy(const Greedy& args) override;
  void top_logits(const TopLogits& args) override;

 private:
  void convolve_run(const Run& run, const float* x, int64_t channels, const float* weight, int64_t kernel,
                    int64_t dilation, float* history, bool advance, float* out);
  void delta_run(const Run& run, const DeltaNet& args, const float* qkv, const float* beta, const float* decay,
                 float* state, float* out);
  void index_run(const Run& run, const IndexInputs& args, const float* qk, float* queries);
  void attend_run(const Run& run, int64_t first, const Attention& args);
  // The inputs of a matrix product as it takes them: x itself, or a copy rounded to BF16.
  const float* product_inputs(const float* x, int64_t count, bool exact_inputs);
  void run_linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y, float* upper);

  base::WorkerPool& pool_;
  const Kernels& kernels_;
  bool round_inputs_;
  HostExperts experts_;
  Scratch<float> rounded_;
  Scratch<float> wide_a_, wide_b_, wide_c_;  // [tokens, streams * hidden] of hyper_mix and ngram_memory
  Scratch<float> narrow_;
  Scratch<float> conv_;
  Scratch<float> gates_;
  Scratch<float> angles_;
  Scratch<float> state_;
  Scratch<float> partial_;
  Scratch<SoftmaxState> partial_state_;
};

}  // namespace tandem::ops::host
