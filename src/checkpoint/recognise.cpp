#include "checkpoint/recognise.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <tuple>

#include "base/error.h"
#include "base/units.h"

namespace tandem::checkpoint {

namespace {

constexpr std::array<const char*, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};

struct Matrix {
  std::string module;
  int64_t rows = 0;
  int64_t inputs = 0;
};

// The matrices of a stack of experts, [experts, inner, hidden], one at a time: there are tens of thousands.
template <typename Visit>
void for_each_expert_matrix(const Parameter& experts, Visit visit) {
  const int64_t inner = experts.shape[1];
  const int64_t hidden = experts.shape[2];
  for (int64_t e = 0; e < experts.shape[0]; ++e) {
    for (const char* projection : kProjections) {
      const bool down = projection == kProjections[2];
      visit(Matrix{fmt::format("{}.{}.{}", experts.name, e, projection), down ? hidden : inner, down ? inner : hidden});
    }
  }
}

std::vector<ExpectedTensor> fused_tensors(const Parameter& experts, DtypeSet dtypes) {
  const int64_t count = experts.shape[0];
  const int64_t inner = experts.shape[1];
  const int64_t hidden = experts.shape[2];
  return {{experts.name + ".gate_up_proj", dtypes, {{count, 2 * inner, hidden}}},
          {experts.name + ".down_proj", dtypes, {{count, hidden, inner}}}};
}

ExpectedTensor table_part(const Parameter& table, int64_t part, DtypeSet dtypes) {
  return {fmt::format("{}.shard_{}.weight", table.name, part), dtypes, {{table.shape[1], table.shape[2]}}};
}

ExpectedTensor table_scale(const Parameter& table) {
  return {table.name + ".weight_scale", {Dtype::kBF16, Dtype::kF32}, {{}, {1}}};
}

ExpectedTensor single_tensor(const Parameter& parameter) {
  if (parameter.kind == ParameterKind::kInteger) return {parameter.name, {Dtype::kI64}, {parameter.shape}};
  return {parameter.name, kFloats, {parameter.shape}};
}

Format float_format(Dtype dtype) {
  return dtype == Dtype::kF16 ? Format::kF16 : dtype == Dtype::kF32 ? Format::kF32 : Format::kBF16;
}

// Checks a checkpoint against its architecture, parameter by parameter.
class Recogniser {
 public:
  explicit Recogniser(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        config_source_((checkpoint.folder() / "config.json").string()),
        architecture_(read_architecture(checkpoint.config(), config_source_)),
        quantization_(read_quantization(checkpoint.quantization(), config_source_)),
        seen_(checkpoint.tensors().size()) {}

  Recognised run() {
    out_.family = architecture_.family;
    out_.form = quantization_.method.empty() ? "not quantised" : quantization_.method;
    if (!quantization_.algorithm.empty()) out_.form += " " + quantization_.algorithm;
    out_.has_draft_head = holds_prefix("mtp.") && architecture_.elements(Group::kDraft) > 0;
    out_.has_vision = holds_prefix("model.visual.") && architecture_.elements(Group::kVision) > 0;
    for (const Parameter& parameter : architecture_.parameters) {
      if (!is_present(parameter.group)) continue;
      check(parameter);
    }
    refuse_left_over();
    out_.parameters = architecture_.elements();
    for (const Group group : {Group::kDraft, Group::kDraftExperts, Group::kVision}) {
      if (!is_present(group)) out_.parameters -= architecture_.elements(group);
    }
    out_.has_input_scales = input_scales_ > 0 && input_scales_ == nvfp4_experts_;
    out_.tensors = checkpoint_.tensors().size();
    for (const Tensor& tensor : checkpoint_.tensors()) out_.bytes += tensor.bytes;
    std::sort(out_.groups.begin(), out_.groups.end(), [](const GroupFormat& a, const GroupFormat& b) {
      return std::tie(a.group, a.format.format, a.format.bits, a.format.blocks, a.fused) <
             std::tie(b.group, b.format.format, b.format.bits, b.format.blocks, b.fused);
    });
    return std::move(out_);
  }

 private:
  bool holds_prefix(std::string_view prefix) const {
    return std::any_of(checkpoint_.tensors().begin(), checkpoint_.tensors().end(),
                       [prefix](const Tensor& tensor) { return tensor.name.starts_with(prefix); });
  }
  bool is_present(Group group) const {
    if (group == Group::kDraft || group == Group::kDraftExperts) return out_.has_draft_head;
    return group != Group::kVision || out_.has_vision;
  }

  void check(const Parameter& parameter) {
    switch (parameter.kind) {
      case ParameterKind::kPlain:
      case ParameterKind::kInteger:
        (void)check(single_tensor(parameter));
        return;
      case ParameterKind::kMatrix:
        return check_matrix(parameter.group, {parameter.name, parameter.shape[0], parameter.shape[1]});
      case ParameterKind::kExperts:
        return check_experts(parameter);
      case ParameterKind::kTable:
        return check_table(parameter);
    }
  }

  void check_matrix(Group group, const Matrix& matrix) {
    const MatrixFormat format = detect_format(checkpoint_, quantization_, matrix.module, matrix.rows, matrix.inputs);
    const bool nvfp4 = format.format == Format::kNvfp4Modelopt || format.format == Format::kNvfp4CompressedTensors;
    if (nvfp4 && matrix.inputs % 16 != 0) {
      base::bad_input(checkpoint_.folder().string(), "{} is NVFP4, but its {} inputs can't be cut in blocks of 16",
                      matrix.module, matrix.inputs);
    }
    uint64_t bytes = 0;
    size_t optional_found = 0;
    for (const ExpectedTensor& tensor : matrix_tensors(matrix.module, matrix.rows, matrix.inputs, format)) {
      const Tensor* found = check(tensor);
      if (found == nullptr) continue;
      bytes += found->bytes;
      optional_found += tensor.optional ? 1 : 0;
    }
    if (nvfp4 && (group == Group::kExperts || group == Group::kDraftExperts)) {
      ++nvfp4_experts_;
      input_scales_ += optional_found;
    }
    count(group, format, false, 1, bytes);
  }

  // One tensor a projection, each in a format of its own.
  void check_stacks(const Parameter& experts) {
    const int64_t inner = experts.shape[1];
    const int64_t hidden = experts.shape[2];
    for (const char* projection : kProjections) {
      const bool down = projection == kProjections[2];
      const Tensor& stack = *check({stacked_name(experts.name, projection),
                                    {Dtype::kBlocks, Dtype::kBF16},
                                    {{experts.shape[0], down ? hidden : inner, down ? inner : hidden}}});
      MatrixFormat format;
      if (stack.dtype == Dtype::kBlocks) format = {.format = Format::kBlocks, .bits = 0, .blocks = stack.blocks};
      count(experts.group, format, false, static_cast<uint64_t>(experts.shape[0]), stack.bytes);
    }
  }

  void check_experts(const Parameter& experts) {
    if (checkpoint_.find(stacked_name(experts.name, kProjections[0])) != nullptr) return check_stacks(experts);
    const Tensor* fused = checkpoint_.find(experts.name + ".gate_up_proj");
    if (fused == nullptr) {
      for_each_expert_matrix(experts, [&](const Matrix& matrix) { check_matrix(experts.group, matrix); });
      return;
    }
    uint64_t bytes = 0;
    for (const ExpectedTensor& tensor : fused_tensors(experts, kFloats)) bytes += check(tensor)->bytes;
    count(experts.group, {float_format(fused->dtype)}, true, 3 * static_cast<uint64_t>(experts.shape[0]), bytes);
  }

  void check_table(const Parameter& table) {
    const DtypeSet dtypes = {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kF8E4M3};
    const Dtype dtype = check(table_part(table, 0, dtypes))->dtype;
    uint64_t bytes = 0;
    for (int64_t part = 0; part < table.shape[0]; ++part) bytes += check(table_part(table, part, {dtype}))->bytes;
    const bool fp8 = dtype == Dtype::kF8E4M3;
    if (fp8) bytes += check(table_scale(table))->bytes;
    count(table.group, {fp8 ? Format::kFp8Tensor : float_format(dtype)}, false, static_cast<uint64_t>(table.shape[0]),
          bytes);
  }

  // The tensor, or null where an optional one is absent.
  const Tensor* check(const ExpectedTensor& expected) {
    const Tensor* tensor = checkpoint_.find(expected.name);
    if (tensor == nullptr) {
      if (expected.optional) return nullptr;
      base::bad_input(checkpoint_.folder().string(), "lacks the tensor {} ({} {})", expected.name,
                      expected.dtypes.names(), describe_shape(expected.shapes.front()));
    }
    if (!expected.dtypes.contains(tensor->dtype) ||
        std::find(expected.shapes.begin(), expected.shapes.end(), tensor->shape) == expected.shapes.end()) {
      base::bad_input(checkpoint_.shards()[tensor->shard].path.string(), "tensor {} is {}, but {} {} is expected",
                      tensor->name, describe(*tensor), expected.dtypes.names(),
                      describe_shape(expected.shapes.front()));
    }
    seen_[static_cast<size_t>(tensor - checkpoint_.tensors().data())] = true;
    return tensor;
  }

  void count(Group group, const MatrixFormat& format, bool fused, uint64_t matrices, uint64_t bytes) {
    for (GroupFormat& known : out_.groups) {
      if (known.group != group || known.format != format || known.fused != fused) continue;
      known.matrices += matrices;
      known.bytes += bytes;
      return;
    }
    out_.groups.push_back({group, format, fused, matrices, bytes});
  }

  void refuse_left_over() const {
    const auto first = std::find(seen_.begin(), seen_.end(), false);
    if (first == seen_.end()) return;
    const Tensor& tensor = checkpoint_.tensors()[static_cast<size_t>(first - seen_.begin())];
    const auto more = std::count(first, seen_.end(), false) - 1;
    base::bad_input(checkpoint_.shards()[tensor.shard].path.string(),
                    "holds tensor {} ({}), which no {} model with this config has{}", tensor.name, describe(tensor),
                    architecture_.family, more > 0 ? fmt::format(", and {} more such", more) : std::string());
  }

  const Checkpoint& checkpoint_;
  const std::string config_source_;
  const Architecture architecture_;
  const Quantization quantization_;
  std::vector<bool> seen_;  // parallel to the checkpoint's tensors
  Recognised out_;
  uint64_t nvfp4_experts_ = 0;
  uint64_t input_scales_ = 0;
};

}  // namespace

std::string Recognised::text() const {
  std::string formats;
  for (size_t group = 0; group < kGroups; ++group) {
    std::string names;
    for (const GroupFormat& entry : groups) {
      if (entry.group != static_cast<Group>(group)) continue;
      names += names.empty() ? "" : " and ";
      names += describe(entry.format);
    }
    if (names.empty() || names == "BF16") continue;
    formats += fmt::format("{}{} {}", formats.empty() ? "" : ", ", group_name(static_cast<Group>(group)), names);
  }
  return fmt::format(
      "{}, {}: {} parameters in {} tensors, {}; {}{}{}", family, form, parameters, tensors, base::format_bytes(bytes),
      formats.empty() ? "all matrices BF16" : formats + ", all other matrices BF16",
      has_draft_head ? "; with a draft head" : "; without a draft head", has_vision ? " and a vision tower" : "");
}

Recognised recognise(const Checkpoint& checkpoint) {
  if (checkpoint.config().is_null()) {
    base::bad_input(checkpoint.folder().string(), "a single file has no config.json to be recognised by");
  }
  return Recogniser(checkpoint).run();
}

namespace {

using Visit = std::function<void(FormTensor&& tensor)>;

void visit_matrix(const Parameter& parameter, const Matrix& matrix, const MatrixFormat& format, const Visit& visit) {
  for (ExpectedTensor& tensor : matrix_tensors(matrix.module, matrix.rows, matrix.inputs, format)) {
    visit({parameter, format, matrix.rows, matrix.inputs, std::move(tensor)});
  }
}

void visit_experts(const Parameter& experts, const MatrixFormat& format, bool fused, const Visit& visit) {
  if (!fused) {
    for_each_expert_matrix(experts, [&](const Matrix& matrix) { visit_matrix(experts, matrix, format, visit); });
    return;
  }
  for (ExpectedTensor& tensor : fused_tensors(experts, {Dtype::kBF16})) {
    const int64_t rows = tensor.shapes[0][1];
    const int64_t inputs = tensor.shapes[0][2];
    visit({experts, {Format::kBF16}, rows, inputs, std::move(tensor)});
  }
}

void visit_table(const Parameter& table, bool fp8, const Visit& visit) {
  const MatrixFormat format{fp8 ? Format::kFp8Tensor : Format::kBF16};
  for (int64_t part = 0; part < table.shape[0]; ++part) {
    visit({table, format, table.shape[1], table.shape[2],
           table_part(table, part, fp8 ? DtypeSet{Dtype::kF8E4M3} : DtypeSet{Dtype::kBF16})});
  }
  if (fp8) visit({table, format, 0, 0, table_scale(table)});
}

}  // namespace

void for_each_tensor(const Architecture& architecture, const Form& form, const Visit& visit) {
  for (const Parameter& parameter : architecture.parameters) {
    const bool draft = parameter.group == Group::kDraftExperts;
    switch (parameter.kind) {
      case ParameterKind::kPlain:
      case ParameterKind::kInteger:
        visit({parameter, {Format::kBF16}, 0, 0, single_tensor(parameter)});
        break;
      case ParameterKind::kMatrix:
        visit_matrix(parameter, {parameter.name, parameter.shape[0], parameter.shape[1]},
                     form.matrix == nullptr ? MatrixFormat{} : form.matrix(parameter), visit);
        break;
      case ParameterKind::kExperts:
        visit_experts(parameter, draft ? form.draft_experts : form.experts, draft ? form.draft_fused : form.fused,
                      visit);
        break;
      case ParameterKind::kTable:
        visit_table(parameter, form.table_fp8, visit);
        break;
    }
  }
}

std::vector<ExpectedTensor> expected_tensors(const base::Json& config, const Form& form, const std::string& source) {
  std::vector<ExpectedTensor> out;
  for_each_tensor(read_architecture(config, source), form,
                  [&out](FormTensor&& tensor) { out.push_back(std::move(tensor.tensor)); });
  return out;
}

}  // namespace tandem::checkpoint
