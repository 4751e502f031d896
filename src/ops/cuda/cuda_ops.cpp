#include "ops/cuda/cuda_ops.h"

#include <utility>

#include "device/buffer.h"
#include "device/cuda/cuda_device.h"
#include "device/planning_device.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/context.h"
#include "ops/cuda/delta_net.h"
#include "ops/cuda/dense.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/hyper.h"
#include "ops/cuda/ngram.h"
#include "ops/cuda/router.h"
#include "ops/cuda/sampling.h"

namespace tandem::ops::cuda {

namespace {

class CudaOps final : public Ops {
 public:
  // `stream` is unused where the device only counts.
  CudaOps(device::Device& device, const device::Card& card, cudaStream_t stream, const OpsOptions& options)
      : device_(device),
        context_{.stream = stream,
                 .scratch = scratch_,
                 .multiprocessors = card.multiprocessors,
                 .capability = 10 * card.capability_major + card.capability_minor,
                 .round_inputs = options.round_inputs,
                 .bf16_experts = options.bf16_experts},
        portable_context_(context_),
        portable_(options.portable) {
    portable_context_.tensor_cores = false;
    // What these are made of.
    if (portable_.contains("swiglu")) portable_.insert("linear_group");
    if (portable_.contains("linear_sum")) portable_.insert("linear_halves");
    for (const char* part : {"router", "router_and_gate", "experts", "swiglu", "linear_halves", "combine_experts"}) {
      if (portable_.contains(part)) portable_.insert("expert_mixture");
    }
    for (const char* part : {"attention_inputs", "index_inputs", "select_blocks", "attention"}) {
      if (portable_.contains(part)) portable_.insert("gated_attention");
    }
  }

  void prepare(const std::function<void()>& step) override {
    const Scratch kept = std::exchange(scratch_, Scratch::planning());
    step();
    const Scratch planned = std::exchange(scratch_, kept);
    if (planned.most() <= memory_.bytes()) return;
    device_.finish();
    memory_ = device::Buffer();
    memory_ = device::Buffer(device_, planned.most());
    scratch_ = Scratch(memory_.data(), memory_.bytes());
  }
  int64_t scratch_bytes() const override { return memory_.bytes(); }

  void embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) override {
    cuda::embed(of("embed"), table, ids, tokens, copies, out);
  }
  void rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                float* out) override {
    cuda::rms_norm(of("rms_norm"), x, tokens, groups, width, weight, eps, out);
  }
  bool arranges(const Weight& w) const override { return cuda::can_arrange(w); }
  void arrange(Weight& w) override {
    if (!cuda::can_arrange(w)) return;
    if (!device_.counts_only()) cuda::arrange(context_, w);
    w.lane_order = true;
  }
  void linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) override {
    cuda::linear(of("linear"), x, tokens, w, exact_inputs, y);
  }
  void linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) override {
    cuda::linear_halves(of("linear_halves"), x, tokens, w, lower, upper);
  }
  void linear_group(const float* x, int64_t tokens, std::span<const Product> products, bool exact_inputs) override {
    cuda::linear_group(of("linear_group"), x, tokens, products, exact_inputs);
  }
  void swiglu(const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y, float* other) override {
    if (!cuda::swiglu(of("swiglu"), x, tokens, gate, up, y)) Ops::swiglu(x, tokens, gate, up, y, other);
  }
  void linear_sum(const float* x, int64_t tokens, const Weight& w, float* y, float* upper) override {
    if (!cuda::linear_sum(of("linear_sum"), x, tokens, w, y)) Ops::linear_sum(x, tokens, w, y, upper);
  }
  void add(float* y, const float* x, int64_t count) override { cuda::add(of("add"), y, x, count); }
  void add_rms_norm(float* y, const float* x, int64_t tokens, int64_t width, const float* weight, float eps,
                    float* out) override {
    cuda::add_rms_norm(of("add_rms_norm"), y, x, tokens, width, weight, eps, out);
  }
  void add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) override {
    cuda::add_to_streams(of("add_to_streams"), y, x, tokens, streams, hidden);
  }
  void concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) override {
    cuda::concatenate(of("concatenate"), left, right, tokens, width, out);
  }
  void silu_multiply(const float* gate, const float* up, int64_t count, float* y) override {
    cuda::silu_multiply(of("silu_multiply"), gate, up, count, y);
  }
  void hyper_mix(const HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden, float eps,
                 float* x, float* inject) override {
    cuda::hyper_mix(of("hyper_mix"), w, state, tokens, streams, hidden, eps, x, inject);
  }
  void hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                    int64_t hidden) override {
    cuda::hyper_inject(of("hyper_inject"), state, y, inject, tokens, streams, hidden);
  }
  void hyper_inject_mix(float* state, const float* y, const float* inject, const HyperWeights& w, int64_t tokens,
                        int64_t streams, int64_t hidden, float eps, float* x, float* next_inject) override {
    if (!cuda::hyper_inject_mix(of("hyper_mix"), state, y, inject, w, tokens, streams, hidden, eps, x, next_inject)) {
      Ops::hyper_inject_mix(state, y, inject, w, tokens, streams, hidden, eps, x, next_inject);
    }
  }
  void causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight, int64_t kernel,
                   int64_t dilation, int64_t history, float* out) override {
    cuda::causal_conv(of("causal_conv"), columns, x, channels, weight, kernel, dilation, history, out);
  }
  void delta_net(const Columns& columns, const DeltaNet& args) override {
    cuda::delta_net(of("delta_net"), columns, args);
  }
  void gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight, float eps,
                  bool sigmoid) override {
    cuda::gated_norm(of("gated_norm"), x, z, tokens, heads, dim, weight, eps, sigmoid);
  }
  void gated_delta_net(const Columns& columns, const GatedDeltaNet& args) override {
    if (!cuda::gated_delta_net(of("gated_delta_net"), columns, args)) Ops::gated_delta_net(columns, args);
  }
  void attention_inputs(const Columns& columns, const AttentionInputs& args) override {
    cuda::attention_inputs(of("attention_inputs"), columns, args);
  }
  void index_inputs(const Columns& columns, const IndexInputs& args) override {
    cuda::index_inputs(of("index_inputs"), columns, args);
  }
  void select_blocks(const Columns& columns, const SelectBlocks& args, const BlockSelection& selection) override {
    cuda::select_blocks(of("select_blocks"), columns, args, selection);
  }
  void attention(const Columns& columns, const Attention& args) override {
    cuda::attention(of("attention"), columns, args);
  }
  void gated_attention(const Columns& columns, const GatedAttention& args) override {
    if (!cuda::gated_attention(of("gated_attention"), columns, args)) Ops::gated_attention(columns, args);
  }
  void router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) override {
    cuda::router(of("router"), x, tokens, w, top_k, ids, weights);
  }
  void router_and_gate(const float* x, int64_t tokens, const Weight& w, const Weight& gate, int64_t top_k, int32_t* ids,
                       float* weights, float* gates) override {
    cuda::router_and_gate(of("router"), x, tokens, w, gate, top_k, ids, weights, gates);
  }
  void experts(const Experts& args) override { cuda::experts(of("experts"), args); }
  void combine_experts(const float* lower, const float* upper, const float* shared_lower, const float* shared_upper,
                       const float* gate, int64_t tokens, int64_t hidden, float* out) override {
    cuda::combine_experts(of("combine_experts"), lower, upper, shared_lower, shared_upper, gate, tokens, hidden, out);
  }
  void expert_mixture(const ExpertMixture& args) override {
    if (!cuda::expert_mixture(of("expert_mixture"), args)) Ops::expert_mixture(args);
  }
  void ngram_memory(const Columns& columns, const NgramWeights& w, const float* rows, int64_t streams, int64_t hidden,
                    float eps, int64_t history, float* state) override {
    cuda::ngram_memory(of("ngram_memory"), columns, w, rows, streams, hidden, eps, history, state);
  }
  void greedy(const Greedy& args) override { cuda::greedy(of("greedy"), args); }
  void top_logits(const TopLogits& args) override { cuda::top_logits(of("top_logits"), args); }

 private:
  const Context& of(const char* operation) const {
    return !portable_.empty() && portable_.contains(operation) ? portable_context_ : context_;
  }

  device::Device& device_;
  device::Buffer memory_;
  Scratch scratch_;
  Context context_;
  Context portable_context_;
  std::set<std::string> portable_;
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(device::Device& device, const OpsOptions& options) {
  if (const auto* plan = dynamic_cast<const device::PlanningDevice*>(&device); plan != nullptr) {
    return std::make_unique<CudaOps>(device, plan->card(), nullptr, options);
  }
  const auto& card = dynamic_cast<const device::cuda::CudaDevice&>(device);
  return std::make_unique<CudaOps>(device, card.card(), card.stream(), options);
}

}  // namespace tandem::ops::cuda
