#include "ops/cuda/timed_ops.h"

#include <algorithm>
#include <cuda_runtime_api.h>

#include "base/units.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/weight_bytes.h"

namespace tandem::ops::cuda {

namespace {

const char* name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kFp8Row:
      return "fp8_row";
    case WeightFormat::kFp8Tensor:
      return "fp8_tensor";
    case WeightFormat::kFp8Block:
      return "fp8_block";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    case WeightFormat::kInt3:
      return "int3";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kInt8:
      return "int8";
  }
  return "?";
}

double weight_bytes(const Weight& w) {
  return static_cast<double>(data_bytes(w) + scale_bytes(w));
}

OpCost product_cost(int64_t tokens, const Weight& w) {
  return {weight_bytes(w) + 4.0 * static_cast<double>(tokens * (w.rows + w.inputs)),
          2.0 * static_cast<double>(tokens * w.rows * w.inputs)};
}

OpCost operator+(OpCost a, OpCost b) {
  return {a.bytes + b.bytes, a.operations + b.operations};
}

// Of `count` values each read or written once.
OpCost values_cost(int64_t count) {
  return {4.0 * static_cast<double>(count), static_cast<double>(count)};
}

std::string labelled(const char* name, const Weight& w) {
  return fmt::format("{} {} [{}, {}]", name, name_of(w.format), w.rows, w.inputs);
}

std::string labelled(const char* name, const ExpertTable& table) {
  const auto& matrices = table.record.matrices;
  return fmt::format("{} {} {}", name, numeric::expert_format_name(matrices[0].format),
                     numeric::expert_format_name(matrices[2].format));
}

OpCost experts_cost(const Ops::Experts& args) {
  const auto chosen = static_cast<double>(args.tokens * args.top_k);
  const auto weights = static_cast<double>(3 * args.table.inner * args.table.hidden);
  const double distinct = std::min(chosen, static_cast<double>(args.table.experts));
  return OpCost{distinct * static_cast<double>(args.table.record.bytes), 2 * chosen * weights} +
         values_cost(3 * args.tokens * args.table.hidden);
}

double key_bytes(const KvLayer& kv) {
  const double dims = static_cast<double>(kv.kv_heads * kv.head_dim);
  return kv.type == KvType::kF32 ? 4 * dims : kv.type == KvType::kBF16 ? 2 * dims : dims * (1 + 2.0 / 64);
}

double index_bytes(const KvLayer& kv) {
  return (kv.type == KvType::kF32 ? 4.0 : 2.0) * static_cast<double>(kv.index_dim);
}

// Tokens that all columns see together, each at most `most`.
double seen(const Columns& columns, double most) {
  double sum = 0;
  for (const Run& run : columns.runs) {
    for (int64_t t = 0; t < columns.each; ++t) sum += std::min(most, static_cast<double>(run.position + t + 1));
  }
  return sum;
}

OpCost attention_inputs_cost(const Columns& columns, const Ops::AttentionInputs& args) {
  const int64_t count = columns.count() * args.kv.head_dim * (4 * args.heads + 2 * args.kv.kv_heads);
  return values_cost(count) + OpCost{static_cast<double>(columns.count()) * 2 * key_bytes(args.kv), 0};
}
OpCost index_inputs_cost(const Columns& columns, const Ops::IndexInputs& args) {
  return values_cost(columns.count() * args.kv.index_dim * (2 * args.heads + 2));
}
OpCost select_cost(const Columns& columns, const Ops::SelectBlocks& args) {
  const double blocks = seen(columns, 1e18) / static_cast<double>(args.kv.ratio);
  return {blocks * index_bytes(args.kv), 2 * blocks * static_cast<double>(args.heads * args.kv.index_dim)};
}
OpCost attention_cost(const Columns& columns, const Ops::Attention& args) {
  const double most =
      args.selection == nullptr ? 1e18 : static_cast<double>((args.selection->budget + 1) * args.kv.ratio);
  const double tokens = seen(columns, most);
  return OpCost{2 * tokens * key_bytes(args.kv), 4 * tokens * static_cast<double>(args.heads * args.kv.head_dim)} +
         values_cost(2 * columns.count() * args.heads * args.kv.head_dim);
}

OpCost mix_cost(const HyperWeights& w, int64_t tokens, int64_t streams, int64_t hidden) {
  OpCost cost = product_cost(tokens, w.down) + product_cost(tokens, w.up);
  if (w.inject.data != nullptr) cost = cost + product_cost(tokens, w.inject);
  return cost + values_cost((tokens + 1) * streams * hidden + tokens * hidden);
}

}  // namespace

// Points in time within recordings, or between calls.
class TimedOps::Points {
 public:
  explicit Points(cudaStream_t stream) : stream_(stream) {}
  ~Points() { forget(); }
  Points(const Points&) = delete;
  Points& operator=(const Points&) = delete;

  bool records() const {
    if (watched_ == Watch::kNothing || planning_) return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    TANDEM_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
    return (status == cudaStreamCaptureStatusActive) == (watched_ == Watch::kRecordings);
  }
  void set() {
    cudaEvent_t event = nullptr;
    TANDEM_CUDA_CHECK(cudaEventCreate(&event));
    events_.push_back(event);
    const unsigned flags = watched_ == Watch::kRecordings ? cudaEventRecordExternal : cudaEventRecordDefault;
    TANDEM_CUDA_CHECK(cudaEventRecordWithFlags(event, stream_, flags));
  }
  void forget() {
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    events_.clear();
    calls_.clear();
  }
  double us_between(size_t from, size_t to) const {
    float ms = 0;
    TANDEM_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[from], events_[to]));
    return 1e3 * static_cast<double>(ms);
  }

  Watch watched_ = Watch::kNothing;
  bool planning_ = false;
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::vector<std::pair<std::string, OpCost>> calls_;  // call i lies between events 2 i and 2 i + 1
};

TimedOps::TimedOps(std::unique_ptr<Ops> card, device::Device& device)
    : card_(std::move(card)),
      points_(std::make_unique<Points>(dynamic_cast<const device::cuda::CudaDevice&>(device).stream())) {}

TimedOps::~TimedOps() = default;

void TimedOps::watch(Watch what) {
  if (what != Watch::kNothing) points_->forget();
  points_->watched_ = what;
}

void TimedOps::prepare(const std::function<void()>& step) {
  points_->planning_ = true;
  card_->prepare(step);
  points_->planning_ = false;
}

template <typename Call>
void TimedOps::timed(const std::string& name, OpCost cost, const Call& call) {
  if (!points_->records()) {
    call();
    return;
  }
  points_->set();
  call();
  points_->set();
  points_->calls_.emplace_back(name, cost);
}

std::vector<OpShare> TimedOps::shares() const {
  std::vector<OpShare> shares;
  const auto& calls = points_->calls_;
  // From the end of one operation's point to the next one's beginning nothing lies but a point.
  std::vector<double> empty;
  for (size_t i = 1; i < calls.size(); ++i) empty.push_back(points_->us_between(2 * i - 1, 2 * i));
  std::sort(empty.begin(), empty.end());
  const double point = empty.empty() ? 0 : empty[empty.size() / 2];
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& [name, cost] = calls[i];
    auto found = std::find_if(shares.begin(), shares.end(), [&](const OpShare& share) { return share.name == name; });
    if (found == shares.end()) {
      shares.push_back({name, 0, {}, 0});
      found = shares.end() - 1;
    }
    ++found->calls;
    found->cost = found->cost + cost;
    found->seconds += 1e-6 * std::max(0.0, points_->us_between(2 * i, 2 * i + 1) - point);
  }
  return shares;
}

void TimedOps::embed(const Weight& table, const int32_t* ids, int64_t tokens, int64_t copies, float* out) {
  const double row = weight_bytes(table) / static_cast<double>(table.rows);
  timed(labelled("embed", table),
        {static_cast<double>(tokens) * (row + 4.0 * static_cast<double>(copies * table.inputs)), 0},
        [&] { card_->embed(table, ids, tokens, copies, out); });
}

void TimedOps::rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                        float* out) {
  timed("rms_norm", values_cost((2 * tokens + 1) * groups * width),
        [&] { card_->rms_norm(x, tokens, groups, width, weight, eps, out); });
}

void TimedOps::linear(const float* x, int64_t tokens, const Weight& w, bool exact_inputs, float* y) {
  timed(labelled("linear", w), product_cost(tokens, w), [&] { card_->linear(x, tokens, w, exact_inputs, y); });
}

void TimedOps::linear_halves(const float* x, int64_t tokens, const Weight& w, float* lower, float* upper) {
  timed(labelled("linear_halves", w), product_cost(tokens, w),
        [&] { card_->linear_halves(x, tokens, w, lower, upper); });
}

void TimedOps::linear_group(const float* x, int64_t tokens, std::span<const Product> products, bool exact_inputs) {
  OpCost cost;
  int64_t rows = 0;
  for (const Product& product : products) {
    cost = cost + product_cost(tokens, product.w);
    rows += product.w.rows;
  }
  const Weight& first = products[0].w;
  timed(fmt::format("linear_group {} [{}, {}]", name_of(first.format), rows, first.inputs), cost,
        [&] { card_->linear_group(x, tokens, products, exact_inputs); });
}

void TimedOps::linear_sum(const float* x, int64_t tokens, const Weight& w, float* y, float* upper) {
  timed(labelled("linear_sum", w), product_cost(tokens, w), [&] { card_->linear_sum(x, tokens, w, y, upper); });
}

void TimedOps::swiglu(const float* x, int64_t tokens, const Weight& gate, const Weight& up, float* y, float* other) {
  timed(labelled("swiglu", gate), product_cost(tokens, gate) + product_cost(tokens, up),
        [&] { card_->swiglu(x, tokens, gate, up, y, other); });
}

void TimedOps::add(float* y, const float* x, int64_t count) {
  timed("add", values_cost(3 * count), [&] { card_->add(y, x, count); });
}

void TimedOps::add_to_streams(float* y, const float* x, int64_t tokens, int64_t streams, int64_t hidden) {
  timed("add_to_streams", values_cost(tokens * hidden * (2 * streams + 1)),
        [&] { card_->add_to_streams(y, x, tokens, streams, hidden); });
}

void TimedOps::concatenate(const float* left, const float* right, int64_t tokens, int64_t width, float* out) {
  timed("concatenate", values_cost(4 * tokens * width), [&] { card_->concatenate(left, right, tokens, width, out); });
}

void TimedOps::silu_multiply(const float* gate, const float* up, int64_t count, float* y) {
  timed("silu_multiply", values_cost(3 * count), [&] { card_->silu_multiply(gate, up, count, y); });
}

void TimedOps::add_rms_norm(float* y, const float* x, int64_t tokens, int64_t width, const float* weight, float eps,
                            float* out) {
  timed("add_rms_norm", values_cost((4 * tokens + 1) * width),
        [&] { card_->add_rms_norm(y, x, tokens, width, weight, eps, out); });
}

void TimedOps::hyper_mix(const HyperWeights& w, const float* state, int64_t tokens, int64_t streams, int64_t hidden,
                         float eps, float* x, float* inject) {
  timed("hyper_mix", mix_cost(w, tokens, streams, hidden),
        [&] { card_->hyper_mix(w, state, tokens, streams, hidden, eps, x, inject); });
}

void TimedOps::hyper_inject(float* state, const float* y, const float* inject, int64_t tokens, int64_t streams,
                            int64_t hidden) {
  timed("hyper_inject", values_cost(tokens * hidden * (2 * streams + 1)),
        [&] { card_->hyper_inject(state, y, inject, tokens, streams, hidden); });
}

void TimedOps::hyper_inject_mix(float* state, const float* y, const float* inject, const HyperWeights& w,
                                int64_t tokens, int64_t streams, int64_t hidden, float eps, float* x,
                                float* next_inject) {
  timed("hyper_inject_mix", mix_cost(w, tokens, streams, hidden) + values_cost(tokens * hidden * (streams + 1)),
        [&] { card_->hyper_inject_mix(state, y, inject, w, tokens, streams, hidden, eps, x, next_inject); });
}

void TimedOps::causal_conv(const Columns& columns, const float* x, int64_t channels, const float* weight,
                           int64_t kernel, int64_t dilation, int64_t history, float* out) {
  const auto runs = static_cast<int64_t>(columns.runs.size());
  const int64_t kept = 2 * runs * (kernel - 1) * dilation;
  timed("causal_conv", values_cost(channels * (2 * columns.count() + kernel + kept)),
        [&] { card_->causal_conv(columns, x, channels, weight, kernel, dilation, history, out); });
}

void TimedOps::delta_net(const Columns& columns, const DeltaNet& args) {
  const auto runs = static_cast<double>(columns.runs.size());
  const auto state = static_cast<double>(args.value_heads * args.key_dim * args.value_dim);
  const auto inputs = static_cast<double>(2 * args.key_heads * args.key_dim + 2 * args.value_heads * args.value_dim);
  const auto count = static_cast<double>(columns.count());
  timed("delta_net", {4 * (2 * runs * state + count * inputs), 7 * state * count},
        [&] { card_->delta_net(columns, args); });
}

void TimedOps::gated_norm(float* x, const float* z, int64_t tokens, int64_t heads, int64_t dim, const float* weight,
                          float eps, bool sigmoid) {
  timed("gated_norm", values_cost(3 * tokens * heads * dim),
        [&] { card_->gated_norm(x, z, tokens, heads, dim, weight, eps, sigmoid); });
}

void TimedOps::gated_delta_net(const Columns& columns, const GatedDeltaNet& args) {
  const DeltaNet& net = args.net;
  const auto runs = static_cast<int64_t>(columns.runs.size());
  const int64_t state = net.value_heads * net.key_dim * net.value_dim;
  const int64_t channels = 2 * net.key_heads * net.key_dim + net.value_heads * net.value_dim;
  const int64_t moved = 2 * runs * (state + (args.kernel - 1) * channels) + args.kernel * channels +
                        columns.count() * (channels + 2 * net.value_heads * net.value_dim);
  timed("gated_delta_net",
        product_cost(columns.count(), args.a_proj) + product_cost(columns.count(), args.b_proj) + values_cost(moved) +
            OpCost{0, 7.0 * static_cast<double>(state * columns.count())},
        [&] { card_->gated_delta_net(columns, args); });
}

void TimedOps::attention_inputs(const Columns& columns, const AttentionInputs& args) {
  timed("attention_inputs", attention_inputs_cost(columns, args), [&] { card_->attention_inputs(columns, args); });
}

void TimedOps::index_inputs(const Columns& columns, const IndexInputs& args) {
  timed("index_inputs", index_inputs_cost(columns, args), [&] { card_->index_inputs(columns, args); });
}

void TimedOps::select_blocks(const Columns& columns, const SelectBlocks& args, const BlockSelection& selection) {
  timed("select_blocks", select_cost(columns, args), [&] { card_->select_blocks(columns, args, selection); });
}

void TimedOps::attention(const Columns& columns, const Attention& args) {
  timed(args.selection == nullptr ? "attention" : "attention of chosen blocks", attention_cost(columns, args),
        [&] { card_->attention(columns, args); });
}

void TimedOps::gated_attention(const Columns& columns, const GatedAttention& args) {
  // Many columns take long enough for a look at the parts.
  if (columns.count() > kMostFewColumns) return Ops::gated_attention(columns, args);
  OpCost cost = attention_inputs_cost(columns, args.inputs) + attention_cost(columns, args.attention());
  if (args.selection != nullptr) {
    cost = cost + index_inputs_cost(columns, args.index);
    if (columns.reach / args.inputs.kv.ratio > args.selection->budget) {
      cost = cost + select_cost(columns, args.select());
    }
  }
  timed(args.selection == nullptr ? "gated_attention" : "gated_attention of chosen blocks", cost,
        [&] { card_->gated_attention(columns, args); });
}

void TimedOps::router(const float* x, int64_t tokens, const Weight& w, int64_t top_k, int32_t* ids, float* weights) {
  timed(labelled("router", w), product_cost(tokens, w), [&] { card_->router(x, tokens, w, top_k, ids, weights); });
}

void TimedOps::router_and_gate(const float* x, int64_t tokens, const Weight& w, const Weight& gate, int64_t top_k,
                               int32_t* ids, float* weights, float* gates) {
  timed(labelled("router_and_gate", w), product_cost(tokens, w) + product_cost(tokens, gate),
        [&] { card_->router_and_gate(x, tokens, w, gate, top_k, ids, weights, gates); });
}

void TimedOps::experts(const Experts& args) {
  timed(labelled("experts", args.table), experts_cost(args), [&] { card_->experts(args); });
}

void TimedOps::combine_experts(const float* lower, const float* upper, const float* shared_lower,
                               const float* shared_upper, const float* gate, int64_t tokens, int64_t hidden,
                               float* out) {
  timed("combine_experts", values_cost(5 * tokens * hidden),
        [&] { card_->combine_experts(lower, upper, shared_lower, shared_upper, gate, tokens, hidden, out); });
}

// Of many columns part by part.
void TimedOps::expert_mixture(const ExpertMixture& args) {
  const int64_t tokens = args.experts.tokens;
  if (tokens > kMostFewColumns) return Ops::expert_mixture(args);
  OpCost cost = experts_cost(args.experts);
  for (const Weight* w : {&args.router, &args.shared_gate, &args.gate, &args.up, &args.down}) {
    cost = cost + product_cost(tokens, *w);
  }
  timed(labelled("expert_mixture", args.experts.table), cost, [&] { card_->expert_mixture(args); });
}

void TimedOps::ngram_memory(const Columns& columns, const NgramWeights& w, const float* rows, int64_t streams,
                            int64_t hidden, float eps, int64_t history, float* state) {
  const int64_t count = columns.count();
  timed("ngram_memory",
        product_cost(count, w.key) + product_cost(count, w.value) + values_cost((2 * count + 3) * streams * hidden),
        [&] { card_->ngram_memory(columns, w, rows, streams, hidden, eps, history, state); });
}

void TimedOps::greedy(const Greedy& args) {
  timed("greedy", values_cost(args.rows * args.tokens), [&] { card_->greedy(args); });
}

void TimedOps::top_logits(const TopLogits& args) {
  timed("top_logits", values_cost(args.rows * args.tokens), [&] { card_->top_logits(args); });
}

}  // namespace tandem::ops::cuda
