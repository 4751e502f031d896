#include "convert/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/architecture.h"
#include "checkpoint/matrix_format.h"
#include "convert/plans.h"

namespace tandem::convert {

namespace {

using base::bad_input;
using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::Tensor;

constexpr std::string_view kExpertsModule = ".mlp.experts";
constexpr std::string_view kNgramModule = ".ngram_embedding";
constexpr std::string_view kShardPrefix = ".shard_";
constexpr std::string_view kWeight = ".weight";

// The routed experts of one layer as they are found.
struct ExpertsModule {
  const Tensor* gate_up = nullptr;  // fused
  const Tensor* down = nullptr;
  std::map<int64_t, Expert> experts;         // or one by one
  std::array<const Tensor*, 3> stacks = {};  // or one tensor a projection
};

struct Modules {
  std::map<std::string, ExpertsModule> experts;
  std::map<std::string, std::map<int64_t, const Tensor*>> ngram;
  std::vector<const Tensor*> plain;
};

// The number that `text` begins with; what follows it stays in `text`.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

Projection* projection_of(Expert& expert, std::string_view name) {
  if (name == "gate_proj") return &expert.gate;
  if (name == "up_proj") return &expert.up;
  return name == "down_proj" ? &expert.down : nullptr;
}

const Tensor** field_of(Projection& projection, std::string_view suffix) {
  if (suffix == "weight") return &projection.weight;
  if (suffix == "weight_scale") return &projection.weight_scale;
  if (suffix == "weight_scale_2") return &projection.weight_scale_2;
  if (suffix == "input_scale") return &projection.input_scale;
  return suffix == "weight_scale_inv" ? &projection.weight_scale_inv : nullptr;
}

// `rest` is what follows "….mlp.experts." in the tensor's name.
void add_expert_tensor(ExpertsModule& module, const Tensor& tensor, std::string_view rest) {
  if (rest == "gate_up_proj" || rest == "down_proj") {
    (rest == "down_proj" ? module.down : module.gate_up) = &tensor;
    return;
  }
  for (size_t m = 0; m < module.stacks.size(); ++m) {
    if (rest == std::array{"gate_proj.stack", "up_proj.stack", "down_proj.stack"}[m]) {
      module.stacks[m] = &tensor;
      return;
    }
  }
  const std::optional<int64_t> expert = take_number(rest);
  const size_t dot = rest.rfind('.');
  const Tensor** field = nullptr;
  if (expert && dot != std::string_view::npos && dot > 0 && rest.front() == '.') {
    Projection* projection = projection_of(module.experts[*expert], rest.substr(1, dot - 1));
    if (projection != nullptr) field = field_of(*projection, rest.substr(dot + 1));
  }
  if (field == nullptr) {
    bad_input(tensor.name,
              "is not a tensor of a known form of experts: expected experts.E.(gate|up|down)_proj.(weight|weight_scale|"
              "weight_scale_2|input_scale|weight_scale_inv), or fused gate_up_proj and down_proj");
  }
  *field = &tensor;
}

Modules sort_tensors(const Checkpoint& checkpoint) {
  Modules modules;
  for (const Tensor& tensor : checkpoint.tensors()) {
    const std::string_view name = tensor.name;
    if (const size_t at = name.find(kExpertsModule); at != std::string_view::npos) {
      const size_t end = at + kExpertsModule.size();
      if (end < name.size() && name[end] == '.') {
        add_expert_tensor(modules.experts[std::string(name.substr(0, end))], tensor, name.substr(end + 1));
        continue;
      }
    }
    if (const size_t at = name.find(kNgramModule); at != std::string_view::npos) {
      const size_t end = at + kNgramModule.size();
      std::string_view rest = name.substr(end);
      if (rest.starts_with(kShardPrefix)) {
        rest.remove_prefix(kShardPrefix.size());
        const std::optional<int64_t> shard = take_number(rest);
        if (!shard || rest != kWeight)
          bad_input(tensor.name, "is not a shard of an n-gram table: expected shard_K.weight");
        modules.ngram[std::string(name.substr(0, end))][*shard] = &tensor;
        continue;
      }
    }
    modules.plain.push_back(&tensor);
  }
  return modules;
}

constexpr std::string_view kPacked = ".weight_packed";

// Codes of packed integers: the same name has other dtypes in other formats.
bool is_packed_integers(const Tensor* tensor) {
  return tensor != nullptr && tensor->dtype == Dtype::kI32 && tensor->name.ends_with(kPacked);
}

// The scales of packed integers may be negative.
Check check_of_groups(const Tensor& scale) {
  if (scale.dtype == Dtype::kBF16) return Check::kFiniteBF16;
  return scale.dtype == Dtype::kF16 ? Check::kFiniteF16 : Check::kFiniteF32;
}

// What a plain tensor must not hold.
Check check_of(const Checkpoint& checkpoint, const Tensor& tensor) {
  const std::string_view name = tensor.name;
  constexpr std::string_view kScale = ".weight_scale";
  if (name.ends_with(kScale)) {
    const std::string module(name.substr(0, name.size() - kScale.size()));
    if (is_packed_integers(checkpoint.find(module + std::string(kPacked)))) return check_of_groups(tensor);
  }
  if (name.ends_with(".weight_global_scale") && tensor.dtype == Dtype::kF32) return Check::kF32Divisors;
  const bool scale = name.ends_with("_scale") || name.ends_with("weight_scale_inv") || name.ends_with("weight_scale_2");
  if (tensor.dtype == Dtype::kF8E4M3) return scale ? Check::kUE4M3 : Check::kE4M3;
  if (scale && tensor.dtype == Dtype::kBF16) return Check::kBF16Scales;
  if (scale && tensor.dtype == Dtype::kF32) return Check::kF32Scales;
  return Check::kNone;
}

// Refuses an expert that lacks what expert 0 has, or has what expert 0 lacks.
void check_siblings(const std::string& module, const std::vector<Expert>& experts) {
  static constexpr std::string_view kProjections[] = {"gate_proj", "up_proj", "down_proj"};
  static constexpr std::string_view kFields[] = {"weight", "weight_scale", "weight_scale_2", "input_scale",
                                                 "weight_scale_inv"};
  Projection model = experts[0].gate;
  for (size_t e = 0; e < experts.size(); ++e) {
    Expert expert = experts[e];
    for (const std::string_view projection_name : kProjections) {
      Projection& projection = *projection_of(expert, projection_name);
      for (const std::string_view field : kFields) {
        const bool expected = field == "weight" || *field_of(model, field) != nullptr;
        const bool found = *field_of(projection, field) != nullptr;
        if (expected == found) continue;
        bad_input(fmt::format("{}.{}.{}.{}", module, e, projection_name, field), "{}",
                  expected ? "is missing; other projections of the layer have it"
                           : "is unexpected; other projections of the layer have none");
      }
    }
  }
}

constexpr std::string_view kDraftPrefix = "mtp.";

void plan_reencoded(const std::string& name, const ExpertWeights& weights, Plans& plans) {
  plans.push_back(plan_reencoded_experts(name, weights));
  plans.push_back(plan_reencoded_scalars(name + ".scalars", weights));
}

void plan_experts(const std::string& name, const ExpertsModule& module, const Choices& choices, Plans& plans) {
  const bool reencode = choices.mtp_experts == MtpExperts::kNvfp4 && name.starts_with(kDraftPrefix);
  if (module.gate_up != nullptr || module.down != nullptr) {
    if (module.gate_up == nullptr || module.down == nullptr || !module.experts.empty()) {
      bad_input(name, "has fused experts that are not exactly gate_up_proj and down_proj");
    }
    if (reencode) return plan_reencoded(name, fused_expert_weights(*module.gate_up, *module.down), plans);
    plans.push_back(plan_experts_fused(name, *module.gate_up, *module.down));
    return;
  }
  if (std::ranges::any_of(module.stacks, [](const Tensor* stack) { return stack != nullptr; })) {
    if (std::ranges::count(module.stacks, nullptr) > 0 || !module.experts.empty()) {
      bad_input(name, "has stacked experts that are not exactly gate_proj, up_proj and down_proj");
    }
    const bool plain =
        std::ranges::all_of(module.stacks, [](const Tensor* stack) { return stack->dtype == Dtype::kBF16; });
    if (reencode && plain) return plan_reencoded(name, stacked_expert_weights(name, module.stacks), plans);
    plans.push_back(plan_experts_stacks(name, module.stacks));
    return;
  }
  std::vector<Expert> experts;
  for (const auto& [index, expert] : module.experts) {
    if (index != static_cast<int64_t>(experts.size())) {
      bad_input(fmt::format("{}.{}", name, experts.size()), "is missing; the layer has experts up to {}",
                module.experts.rbegin()->first);
    }
    experts.push_back(expert);
  }
  check_siblings(name, experts);
  const Projection& form = experts[0].gate;
  const bool nvfp4 = form.weight_scale != nullptr && form.weight_scale_2 != nullptr && form.weight_scale_inv == nullptr;
  const bool bare = form.weight_scale == nullptr && form.weight_scale_2 == nullptr && form.input_scale == nullptr;
  if (nvfp4) {
    plans.push_back(plan_experts_nvfp4(name, experts));
    plans.push_back(plan_expert_scalars(name + ".scalars", experts));
  } else if (bare && reencode) {
    plan_reencoded(name, expert_weights(experts), plans);
  } else if (bare && form.weight_scale_inv != nullptr) {
    plans.push_back(plan_experts_fp8_block(name, experts));
  } else if (bare) {
    plans.push_back(plan_experts_bf16(name, experts));
  } else {
    bad_input(name,
              "has experts of a form that is not known: neither NVFP4 (weight, weight_scale, weight_scale_2), "
              "FP8 in blocks (weight, weight_scale_inv) nor BF16 (weight)");
  }
}

std::unique_ptr<ObjectPlan> plan_table(const std::string& name, const std::map<int64_t, const Tensor*>& found) {
  std::vector<const Tensor*> shards;
  for (const auto& [index, shard] : found) {
    if (index != static_cast<int64_t>(shards.size())) {
      bad_input(fmt::format("{}.shard_{}.weight", name, shards.size()), "is missing; the table has shards up to {}",
                found.rbegin()->first);
    }
    shards.push_back(shard);
  }
  return plan_ngram(name, shards);
}

// Plans for codes of packed integers. Their matrices' shapes come from the config, as the words do not tell them.
class IntegerPlanner {
 public:
  explicit IntegerPlanner(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        source_((checkpoint.folder() / "config.json").string()),
        quantization_(checkpoint::read_quantization(checkpoint.quantization(), source_)) {
    for (checkpoint::Parameter& parameter : checkpoint::read_architecture(checkpoint.config(), source_).parameters) {
      if (parameter.kind != checkpoint::ParameterKind::kMatrix) continue;
      shapes_.emplace(std::move(parameter.name), std::pair(parameter.shape[0], parameter.shape[1]));
    }
  }

  std::unique_ptr<ObjectPlan> plan(const Tensor& packed) const {
    const std::string module = packed.name.substr(0, packed.name.size() - kPacked.size());
    const auto shape = shapes_.find(module);
    if (shape == shapes_.end()) bad_input(packed.name, "belongs to no matrix of the model that {} tells", source_);
    const auto [rows, inputs] = shape->second;
    const checkpoint::MatrixFormat format = checkpoint::detect_format(checkpoint_, quantization_, module, rows, inputs);
    const auto packing = format.format == checkpoint::Format::kPackedIntDense ? numeric::IntPacking::kStream
                                                                              : numeric::IntPacking::kWords;
    return plan_integers(packed, checkpoint_.at(module + ".weight_shape"), rows, inputs, format.bits, packing);
  }

 private:
  const Checkpoint& checkpoint_;
  std::string source_;
  checkpoint::Quantization quantization_;
  std::map<std::string, std::pair<int64_t, int64_t>> shapes_;  // of the matrices, by module
};

// Whether the policy kFp8Row names the matrix; `module` is its name.
bool is_projection(checkpoint::Group group, std::string_view module) {
  using checkpoint::Group;
  const auto has = [module](std::string_view part) { return module.find(part) != std::string_view::npos; };
  if (has("hyper_connection") || has(".indexer.") || has("shared_expert_gate")) return false;
  if (module.ends_with("in_proj_a") || module.ends_with("in_proj_b") || module.ends_with(".mlp.gate")) return false;
  switch (group) {
    case Group::kHead:
    case Group::kAttention:
    case Group::kDeltaNet:
    case Group::kMlp:
    case Group::kSharedExpert:
    case Group::kDraft:
      return true;
    default:
      return false;
  }
}

// The names of the tensors that the policy re-encodes.
std::unordered_set<std::string> tensors_to_reencode(const Checkpoint& checkpoint, DensePolicy dense) {
  std::unordered_set<std::string> names;
  if (dense == DensePolicy::kKeep) return names;
  const std::string source = (checkpoint.folder() / "config.json").string();
  for (const checkpoint::Parameter& parameter : checkpoint::read_architecture(checkpoint.config(), source).parameters) {
    if (parameter.kind != checkpoint::ParameterKind::kMatrix || !is_projection(parameter.group, parameter.name))
      continue;
    const Tensor* tensor = checkpoint.find(parameter.name + std::string(kWeight));
    if (tensor != nullptr && checkpoint::kFloats.contains(tensor->dtype)) names.insert(tensor->name);
  }
  return names;
}

void plan_plain(const Checkpoint& checkpoint, const std::vector<const Tensor*>& tensors, DensePolicy dense,
                Plans& plans) {
  const std::unordered_set<std::string> reencoded = tensors_to_reencode(checkpoint, dense);
  std::optional<IntegerPlanner> integers;
  for (const Tensor* tensor : tensors) {
    if (reencoded.contains(tensor->name)) {
      plans.push_back(plan_fp8_row_codes(*tensor));
      plans.push_back(plan_fp8_row_scales(*tensor));
      continue;
    }
    if (!is_packed_integers(tensor)) {
      plans.push_back(plan_tensor(*tensor, check_of(checkpoint, *tensor)));
      continue;
    }
    if (!integers) integers.emplace(checkpoint);
    plans.push_back(integers->plan(*tensor));
  }
}

// Last shard needed, then first; within them by place.
std::tuple<uint32_t, uint32_t, uint64_t> order_of(const ObjectPlan& plan) {
  std::tuple<uint32_t, uint32_t, uint64_t> order{0, UINT32_MAX, UINT64_MAX};
  for (const Tensor* tensor : plan.tensors()) {
    std::get<0>(order) = std::max(std::get<0>(order), tensor->shard);
    if (std::pair(tensor->shard, tensor->offset) < std::pair(std::get<1>(order), std::get<2>(order))) {
      std::get<1>(order) = tensor->shard;
      std::get<2>(order) = tensor->offset;
    }
  }
  return order;
}

}  // namespace

const char* dense_policy_name(DensePolicy policy) {
  return policy == DensePolicy::kKeep ? "keep" : "fp8-row";
}

std::optional<DensePolicy> dense_policy_from_name(std::string_view name) {
  for (const DensePolicy policy : {DensePolicy::kKeep, DensePolicy::kFp8Row}) {
    if (name == dense_policy_name(policy)) return policy;
  }
  return std::nullopt;
}

const char* mtp_experts_name(MtpExperts policy) {
  return policy == MtpExperts::kKeep ? "keep" : "nvfp4";
}

std::optional<MtpExperts> mtp_experts_from_name(std::string_view name) {
  for (const MtpExperts policy : {MtpExperts::kKeep, MtpExperts::kNvfp4}) {
    if (name == mtp_experts_name(policy)) return policy;
  }
  return std::nullopt;
}

std::string recipe_name(const Choices& choices) {
  std::string name;
  const auto add = [&name](std::string_view part) { name += (name.empty() ? "" : "+") + std::string(part); };
  if (choices.dense != DensePolicy::kKeep) add("dense-fp8-row");
  if (choices.mtp_experts != MtpExperts::kKeep) add("mtp-experts-nvfp4");
  return name.empty() ? "published" : name;
}

Plans plan_published(const Checkpoint& checkpoint, std::vector<Text> texts, const Choices& choices) {
  const Modules modules = sort_tensors(checkpoint);
  const auto drafts = [](const auto& module) { return module.first.starts_with(kDraftPrefix); };
  if (choices.mtp_experts != MtpExperts::kKeep && std::ranges::none_of(modules.experts, drafts)) {
    bad_input(checkpoint.folder().string(), "has no draft head with routed experts that could be re-encoded");
  }
  Plans objects;
  plan_plain(checkpoint, modules.plain, choices.dense, objects);
  for (const auto& [name, module] : modules.experts) plan_experts(name, module, choices, objects);
  for (const auto& [name, shards] : modules.ngram) objects.push_back(plan_table(name, shards));
  std::stable_sort(objects.begin(), objects.end(),
                   [](const auto& a, const auto& b) { return order_of(*a) < order_of(*b); });
  Plans plans;
  for (Text& text : texts) plans.push_back(plan_text(std::move(text.name), std::move(text.content)));
  std::ranges::move(objects, std::back_inserter(plans));
  std::unordered_set<std::string_view> names;
  for (const auto& plan : plans) {
    if (!names.insert(plan->object().name).second) {
      bad_input(plan->object().name, "is the name of a tensor and of another part of the artifact");
    }
  }
  return plans;
}

}  // namespace tandem::convert
