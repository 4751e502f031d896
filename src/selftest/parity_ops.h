// Operations that are computed twice: on a card, and from the same inputs on the processor, which is the definition.
//
// A model that runs on these runs as on the card, for the card's results are the ones that go on; so every operation is
// compared on inputs of its own model, and no error grows through the layers. A new operation of ops::Ops cannot be
// forgotten here: without it this class is abstract.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "ops/make_ops.h"
#include "ops/ops.h"

namespace tandem::selftest {

// What was seen of one operation.
struct OpReport {
  int64_t calls = 0;
  double worst = 0;      // largest relative norm of the difference; infinite where a value is not finite
  double tolerance = 0;  // of the call that came nearest to it or went beyond
  std::string where;     // of that call: its shape
  bool passed() const { return worst <= tolerance; }
};
using Reports = std::map<std::string, OpReport>;

class ParityOps final : public ops::Ops {
 public:
  // `card` computes on `device`, `host` on the processor with the same `options`; both must outlive this.
  ParityOps(ops::Ops& card, device::Device& device, ops::Ops& host, const ops::OpsOptions& options)
      : card_(card),
        device_(device),
        host_(host),
        round_inputs_(options.round_inputs),
        bf16_experts_(options.bf16_experts) {}

  const Reports& reports() const { return reports_; }

  bool recordable() const override { return false; }
  void prepare(const std::function<void()>& step) override;
  int64_t scratch_bytes() const override { return card_.scratch_bytes(); }

  void arrange(ops::Weight& w) override { card_.arrange(w); }
  bool arranges(const ops::Weight& w) const override { return card_.arranges(w); }
  void embed(const ops::Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) override;
  void rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                float* out) override;
  void linear(const float* x, int64_t tokens, const ops::Weight& w, bool exact_inputs, float* y) override;
  void linear_halves(const float* x, int64_t tokens, const ops::Weight& w, float* lower, float* upper) override;
  void linear_group(const float* x, int64_t tokens, std::span<const Product> products, bool exact_inputs) override;
  void linear_sum(const float* x, int64_t tokens, const ops::Weight& w, float* y, float* upper) override;
  void swiglu(const float* x, int64_t tokens, const ops::Weight& gate, const ops::Weight& up, float* y,
              float* other) override;
  void add(float* y, const float* x, int64_t count) override;
  void add_rms_norm(float* y, const float* x, int64_t tokens, int64_t width, const float* weight, float eps,
                    float* out) override;
  void add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) override;
  void concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) override;
  void silu_multiply(const float* gate, const float* up, int64_t count, float* y) override;
  void hyper_mix(const ops::HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden,
                 float eps, float* x, float* inject) override;
  void hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                    int64_t hidden) override;
  void hyper_inject_mix(float* state, const float* y, const float* inject, const ops::HyperWeights& w, int64_t tokens,
                        int64_t streams, int64_t hidden, float eps, float* x, float* next_inject) override;
  void causal_conv(const ops::Columns& columns, const float* x, int64_t channels, const float* weight, int64_t kernel,
                   int64_t dilation, int64_t history, float* out) override;
  void delta_net(const ops::Columns& columns, const DeltaNet& args) override;
  void gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight, float eps,
                  bool sigmoid) override;
  void gated_delta_net(const ops::Columns& columns, const GatedDeltaNet& args) override;
  void attention_inputs(const ops::Columns& columns, const AttentionInputs& args) override;
  void index_inputs(const ops::Columns& columns, const IndexInputs& args) override;
  void select_blocks(const ops::Columns& columns, const SelectBlocks& args,
                     const ops::BlockSelection& selection) override;
  void attention(const ops::Columns& columns, const Attention& args) override;
  void gated_attention(const ops::Columns& columns, const GatedAttention& args) override;
  void router(const float* x, int64_t tokens, const ops::Weight& w, int64_t top_k, int32_t* ids,
              float* weights) override;
  void router_and_gate(const float* x, int64_t tokens, const ops::Weight& w, const ops::Weight& gate, int64_t top_k,
                       int32_t* ids, float* weights, float* gates) override;
  void experts(const Experts& args) override;
  void combine_experts(const float* lower, const float* upper, const float* shared_lower, const float* shared_upper,
                       const float* gate, int64_t tokens, int64_t hidden, float* out) override;
  void expert_mixture(const ExpertMixture& args) override;
  void ngram_memory(const ops::Columns& columns, const ops::NgramWeights& w, const float* rows, int64_t streams,
                    int64_t hidden, float eps, int64_t history, float* state) override;
  void greedy(const Greedy& args) override;
  void top_logits(const TopLogits& args) override;

 private:
  class HostColumns;
  class HostLogits;

  template <typename T>
  std::vector<T> fetch(const T* from, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    device_.download(values.data(), from, count * static_cast<int64_t>(sizeof(T)));
    return values;
  }
  // Copies of what does not change, kept by address.
  const std::byte* kept(const void* data, int64_t bytes);
  const float* kept_floats(const float* data, int64_t count) {
    return reinterpret_cast<const float*>(kept(data, count * 4));
  }
  ops::Weight kept_weight(const ops::Weight& w);
  ops::HyperWeights kept_hyper(const ops::HyperWeights& w, int64_t width);

  void compare(const std::string& op, const std::string& where, const std::vector<float>& got,
               const std::vector<float>& want, double tolerance);
  void compare_routing(const std::string& op, const float* x, int64_t tokens, const ops::Weight& w, int64_t top_k,
                       const int32_t* ids, const float* weights);
  // What the host makes of the same inputs of attention, and of the index: queries, and rows in its pages and slots.
  std::vector<float> host_queries(HostColumns& host, const AttentionInputs& args);
  std::vector<float> host_index_queries(HostColumns& host, const IndexInputs& args);
  void compare_pages(const std::string& op, const std::string& where, const ops::KvLayer& kv,
                     const std::vector<std::byte>& got, const std::vector<std::byte>& want);
  double product_tolerance(const ops::Weight& w, int64_t tokens, bool exact_inputs) const;
  double rounding_tolerance() const;

  ops::Ops& card_;
  device::Device& device_;
  ops::Ops& host_;
  bool round_inputs_;
  bool bf16_experts_;
  bool planning_ = false;
  Reports reports_;
  std::map<const void*, std::vector<std::byte>> kept_;
};

}  // namespace tandem::selftest
