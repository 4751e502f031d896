#include "synth/model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "synth/random.h"

namespace tandem::synth {

namespace {

using checkpoint::Dtype;
using checkpoint::Format;
using checkpoint::FormTensor;
using checkpoint::Group;
using checkpoint::ParameterKind;

constexpr int64_t kTopicsOfTokens = 64;

// The dtype that publishers use where several are allowed.
Dtype usual_dtype(const FormTensor& tensor) {
  const checkpoint::DtypeSet& dtypes = tensor.tensor.dtypes;
  // ModelOpt's scalars are FP32, grids and tables of scales BF16.
  const bool scalar = tensor.format.format == Format::kFp8Tensor && tensor.parameter.kind != ParameterKind::kTable;
  if (scalar && dtypes.contains(Dtype::kF32)) return Dtype::kF32;
  return dtypes.contains(Dtype::kBF16) ? Dtype::kBF16 : dtypes.first();
}

TensorPlan normal(double mean, double spread) {
  TensorPlan plan;
  plan.draw = Draw::kNormal;
  plan.mean = mean;
  plan.spread = spread;
  return plan;
}

TensorPlan drawn(Draw draw) {
  TensorPlan plan;
  plan.draw = draw;
  return plan;
}

bool is_prime(int64_t value) {
  for (int64_t divisor = 2; divisor * divisor <= value; ++divisor) {
    if (value % divisor == 0) return false;
  }
  return value > 1;
}

// The heads' numbers of rows, as published: successive primes from the base.
std::vector<int64_t> head_rows(int64_t base, int64_t heads) {
  std::vector<int64_t> rows;
  for (int64_t prime = base; static_cast<int64_t>(rows.size()) < heads; ++prime) {
    while (!is_prime(prime)) ++prime;
    rows.push_back(prime);
  }
  return rows;
}

// Odd, and so small that no product with a token leaves 63 bits; with the published vocabulary the published numbers.
std::vector<int64_t> hash_multipliers(int64_t vocab, int64_t count) {
  const auto half = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / vocab / 2);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<int64_t>(2 * (random_at(1234, static_cast<uint64_t>(i) + 1) % half) + 1));
  }
  return out;
}

void check(const Settings& settings) {
  if (!(settings.router_skew >= 0 && settings.router_skew <= 4)) {
    base::bad_input("--router-skew", "{} is outside 0 to 4", settings.router_skew);
  }
  if (!(settings.locality >= 0 && settings.locality < 1)) {
    base::bad_input("--locality", "{} is outside 0 to below 1", settings.locality);
  }
  if (settings.repeat_bytes != 0 && (settings.repeat_bytes < 4096 || !std::has_single_bit(settings.repeat_bytes))) {
    base::internal_error("synth", "weights repeat after {} bytes, which is no power of two", settings.repeat_bytes);
  }
}

}  // namespace

// Whether a value's distribution does not depend on its place.
bool Model::draws_alike(Draw draw) {
  return draw == Draw::kNormal || draw == Draw::kNvfp4Codes || draw == Draw::kNvfp4Scales || draw == Draw::kE4M3Codes;
}

Model::Model(const Settings& settings) : settings_(settings) {
  check(settings);
  const NamedForm& form = form_named(settings.form);
  config_ = make_config(form, settings.scale, settings.sizes, settings.config);
  const auto architecture = checkpoint::read_architecture(config_, "config.json");
  // Two blocks a layer add to the residual: together they grow to about the embedding's size (as GPT-2's are drawn).
  const auto layers = static_cast<double>(base::json_int(config_["text_config"], "num_hidden_layers", "config.json"));
  depth_gain_ = 1 / std::sqrt(2 * layers);
  checkpoint::for_each_tensor(architecture, form.form, [this](FormTensor&& tensor) { add(tensor); });
}

void Model::add(const FormTensor& tensor) {
  const Dtype dtype = usual_dtype(tensor);
  checkpoint::TensorSpec spec{tensor.tensor.name, dtype, tensor.tensor.shapes.front()};
  TensorPlan plan = plan_of(tensor, dtype);
  plan.dtype = dtype;
  bytes_ += spec.bytes();
  keys_.push_back(key_of(settings_.seed, spec.name));
  tensors_.push_back(std::move(spec));
  plans_.push_back(std::move(plan));
}

TensorPlan Model::plan_of(const FormTensor& tensor, Dtype dtype) const {
  switch (tensor.parameter.kind) {
    case ParameterKind::kInteger: {
      TensorPlan plan = drawn(Draw::kIntegers);
      plan.integers = integers(tensor.tensor.name, tensor.parameter.shape.front());
      return plan;
    }
    case ParameterKind::kPlain:
      return plan_plain(tensor);
    default:
      return plan_matrix(tensor, dtype);
  }
}

TensorPlan Model::plan_plain(const FormTensor& tensor) const {
  const std::string& name = tensor.tensor.name;
  if (name.ends_with("A_log")) {  // the log of 1 to 16, as such layers are initialised
    TensorPlan plan = drawn(Draw::kUniform);
    plan.spread = std::log(16.0);
    return plan;
  }
  if (name.ends_with("dt_bias")) {  // softplus of it is 0.001 to 0.1
    TensorPlan plan = drawn(Draw::kUniform);
    plan.mean = -6.9;
    plan.spread = 4.6;
    return plan;
  }
  if (name.ends_with("conv1d.weight"))
    return normal(0, 1 / std::sqrt(static_cast<double>(tensor.parameter.shape.back())));
  if (name.ends_with(".bias")) return normal(0, 0.01);
  // These multiply as they are, all other norms as 1 + w.
  const bool plain_norm = name.ends_with("linear_attn.norm.weight") ||
                          (tensor.parameter.group == Group::kVision && name.find("norm") != std::string::npos);
  if (plain_norm) return normal(1, 0.1);
  return normal(0, tensor.parameter.group == Group::kVision ? 0.02 : 0.1);
}

TensorPlan Model::plan_matrix(const FormTensor& tensor, Dtype dtype) const {
  const std::string& name = tensor.tensor.name;
  const bool table = tensor.parameter.kind == ParameterKind::kTable;
  // What keeps the size of the inputs; less where the product is added to the residual; rows that are looked up have
  // a size of their own.
  const bool adds = name.find("o_proj") != std::string::npos || name.find("out_proj") != std::string::npos ||
                    name.find("down_proj") != std::string::npos || name.find("value_proj") != std::string::npos;
  const bool looked_up = table || tensor.parameter.group == Group::kEmbedding;
  double spread =
      looked_up ? 1 : (adds ? depth_gain_ : 1) / std::sqrt(static_cast<double>(std::max<int64_t>(tensor.inputs, 1)));

  if (name.ends_with("input_scale")) return normal(0.008, 0.0004);  // of inputs up to 20
  if (name.ends_with("input_global_scale")) return normal(125, 6);
  if (name.ends_with("weight_scale_2")) return normal(spread * 4.5 / 2688, spread * 4.5 / 2688 / 50);
  if (name.ends_with("weight_global_scale")) return normal(2688 / (spread * 4.5), 2688 / (spread * 4.5) / 50);
  if (name.ends_with("weight_shape")) {
    TensorPlan plan = drawn(Draw::kIntegers);
    plan.integers = {tensor.rows, tensor.inputs};
    return plan;
  }
  if (name.ends_with("weight_packed") && dtype == Dtype::kI32) {
    TensorPlan plan = drawn(Draw::kPackedCodes);
    plan.bits = tensor.format.bits;
    plan.dense_bits = tensor.format.format == Format::kPackedIntDense;
    plan.row_elements = tensor.tensor.shapes.front().back();
    plan.row_codes = tensor.inputs;
    return plan;
  }
  if (name.ends_with("weight_scale") || name.ends_with("weight_scale_inv")) {
    if (dtype == Dtype::kF8E4M3) return drawn(Draw::kNvfp4Scales);
    const bool packed = tensor.format.bits > 0;
    const double scale = packed ? spread * 2.4 / std::exp2(tensor.format.bits - 1) : spread * 4 / 448;
    return normal(scale, scale / 20);
  }
  if (dtype == Dtype::kU8) return drawn(Draw::kNvfp4Codes);
  if (dtype == Dtype::kF8E4M3) return drawn(Draw::kE4M3Codes);
  return plan_floats(tensor, spread);
}

TensorPlan Model::plan_floats(const FormTensor& tensor, double spread) const {
  const Group group = tensor.parameter.group;
  TensorPlan plan = normal(0, spread);
  plan.row_elements = tensor.inputs;
  if ((group == Group::kEmbedding || group == Group::kHead) && settings_.locality > 0) {
    plan.draw = Draw::kTopics;
    plan.topics = kTopicsOfTokens;
    plan.share = settings_.locality;
    plan.topic_key = key_of(settings_.seed, "topics");
  }
  if (settings_.router_skew > 0 && tensor.tensor.name.ends_with("mlp.gate.weight")) {
    const uint64_t key = key_of(settings_.seed, tensor.tensor.name + " rows");
    std::vector<float> factors;
    for (int64_t row = 0; row < tensor.rows; ++row) {
      const double p = std::clamp(uniform_at(key, static_cast<uint64_t>(row)), 1e-6, 1 - 1e-6);
      factors.push_back(static_cast<float>(std::exp(settings_.router_skew * normal_quantile(p))));
    }
    plan.draw = Draw::kRows;
    plan.row_factors = std::make_shared<const std::vector<float>>(std::move(factors));
  }
  return plan;
}

std::vector<int64_t> Model::integers(const std::string& name, int64_t count) const {
  const base::Json& text = config_["text_config"];
  if (name.ends_with("layer_multipliers")) {
    return hash_multipliers(base::json_int(text, "vocab_size", "config.json"), count);
  }
  std::vector<int64_t> rows = head_rows(base::json_int(text, "ngram_vocab_size_base", "config.json"), count);
  if (name.ends_with("ngram_heads_vocab_sizes")) return rows;
  std::vector<int64_t> offsets;
  int64_t sum = 0;
  for (const int64_t head : rows) {
    offsets.push_back(sum);
    sum += head;
  }
  return offsets;
}

void Model::make(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  const TensorPlan& plan = plans_[tensor];
  const uint64_t repeat = settings_.repeat_bytes;
  if (repeat == 0 || !draws_alike(plan.draw) || tensors_[tensor].bytes() <= repeat) {
    filler_.make(plan, keys_[tensor], offset, out);
    return;
  }
  const std::vector<std::byte>& pattern = this->pattern(plan);
  // Each tensor begins at another place of it.
  uint64_t at = (offset + keys_[tensor] / 256 * 256) % repeat;
  for (uint64_t done = 0; done < out.size();) {
    const uint64_t count = std::min(repeat - at, out.size() - done);
    std::memcpy(out.data() + done, pattern.data() + at, count);
    done += count;
    at = 0;
  }
}

const std::vector<std::byte>& Model::pattern(const TensorPlan& plan) const {
  const std::lock_guard lock(patterns_.mutex);
  std::vector<std::byte>& bytes = patterns_.of[{plan.dtype, plan.draw, plan.mean, plan.spread}];
  if (bytes.empty()) {
    bytes.resize(settings_.repeat_bytes);
    filler_.make(plan, key_of(settings_.seed, "pattern"), 0, bytes);
  }
  return bytes;
}

checkpoint::Checkpoint checkpoint_of(std::shared_ptr<const Model> model) {
  std::vector<checkpoint::Tensor> tensors;
  std::unordered_map<std::string, size_t> index;
  for (const checkpoint::TensorSpec& spec : model->tensors()) {
    index.emplace(spec.name, tensors.size());
    tensors.push_back({.name = spec.name, .dtype = spec.dtype, .shape = spec.shape, .bytes = spec.bytes()});
  }
  base::Json config = model->config();
  return checkpoint::Checkpoint::generated(
      "the synthetic model", std::move(config), std::move(tensors),
      [model = std::move(model), index = std::move(index)](const checkpoint::Tensor& tensor, uint64_t offset,
                                                           std::span<std::byte> out) {
        model->make(index.at(tensor.name), offset, out);
      });
}

}  // namespace tandem::synth
