#include "convert/gguf_view.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/architecture.h"
#include "checkpoint/gguf.h"
#include "checkpoint/matrix_format.h"
#include "checkpoint/recognise.h"
#include "convert/gguf_names.h"
#include "numeric/bf16.h"
#include "numeric/expert_record.h"

namespace tandem::convert {

namespace {

namespace fs = std::filesystem;
using base::bad_input;
using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::Gguf;
using checkpoint::GgufTensor;
using checkpoint::Tensor;
using numeric::GgmlType;

constexpr std::string_view kExpertsPart = ".mlp.experts.";
constexpr std::string_view kStar = "*";
constexpr uint64_t kReadBytes = uint64_t{4} << 20;

// Rows [to, to + count) of a view are rows [from, from + count) of the file's tensor.
struct Run {
  const GgufTensor* tensor = nullptr;
  int64_t to = 0;
  int64_t from = 0;
  int64_t count = 0;
};

struct View {
  std::vector<Run> runs;         // by `to`, without gaps
  std::vector<int64_t> columns;  // of the file's row, in the view's order; empty: all as they are
  GgufForm form = GgufForm::kSame;
  Dtype dtype = Dtype::kBF16;
  std::vector<int64_t> shape;
  uint64_t row_bytes = 0;

  bool is_verbatim(GgmlType type) const {
    if (form != GgufForm::kSame || !columns.empty()) return false;
    return dtype == Dtype::kBlocks || (dtype == Dtype::kF32 && type == GgmlType::kF32) ||
           (dtype == Dtype::kF16 && type == GgmlType::kF16) || (dtype == Dtype::kBF16 && type == GgmlType::kBF16);
  }
};

// Elements side by side: 1 for a tensor of one dimension, whose elements are rows of their own.
int64_t inputs_of(const GgufTensor& tensor) {
  return tensor.shape.size() == 1 ? 1 : tensor.shape.back();
}

int64_t rows_of(const GgufTensor& tensor) {
  int64_t rows = 1;
  for (const int64_t dimension : tensor.shape) rows *= dimension;
  return rows / inputs_of(tensor);
}

uint64_t file_row_bytes(const GgufTensor& tensor) {
  return tensor.bytes / static_cast<uint64_t>(rows_of(tensor));
}

std::optional<Dtype> plain_dtype(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return Dtype::kF32;
    case GgmlType::kF16:
      return Dtype::kF16;
    case GgmlType::kBF16:
      return Dtype::kBF16;
    default:
      return std::nullopt;
  }
}

uint64_t dtype_bytes(Dtype dtype) {
  return static_cast<uint64_t>(checkpoint::dtype_bits(dtype)) / 8;
}

std::vector<int64_t> without_ones(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

// Reads views. Immutable, so that several threads may.
class Reader {
 public:
  explicit Reader(Gguf gguf) : gguf_(std::move(gguf)) {}

  const Gguf& gguf() const { return gguf_; }
  void add(const std::string& name, View view) { views_.emplace(name, std::move(view)); }

  void read(const Tensor& tensor, uint64_t offset, std::span<std::byte> out) const {
    const View& view = views_.at(tensor.name);
    while (!out.empty()) {
      const auto row = static_cast<int64_t>(offset / view.row_bytes);
      const Run& run = *std::prev(std::ranges::upper_bound(view.runs, row, {}, &Run::to));
      const uint64_t begin = offset - static_cast<uint64_t>(run.to) * view.row_bytes;  // in the run
      const uint64_t left = static_cast<uint64_t>(run.count) * view.row_bytes - begin;
      const std::span<std::byte> part = out.first(std::min<uint64_t>(left, out.size()));
      if (view.is_verbatim(run.tensor->type)) {
        gguf_.read(*run.tensor, static_cast<uint64_t>(run.from) * view.row_bytes + begin, part);
      } else {
        decode(view, run, begin, part);
      }
      offset += part.size();
      out = out.subspan(part.size());
    }
  }

 private:
  // Bytes of the run from `begin` on: whole rows are made, of which the first and the last may be needed in part.
  void decode(const View& view, const Run& run, uint64_t begin, std::span<std::byte> out) const {
    const GgufTensor& tensor = *run.tensor;
    const uint64_t row_bytes = file_row_bytes(tensor);
    const uint64_t at_once = std::max<uint64_t>(1, kReadBytes / row_bytes);
    const uint64_t end_row = (begin + out.size() + view.row_bytes - 1) / view.row_bytes;
    std::vector<std::byte> stored;
    std::vector<std::byte> made(view.row_bytes);
    std::vector<float> values(static_cast<size_t>(inputs_of(tensor)));
    for (uint64_t row = begin / view.row_bytes; row < end_row;) {
      const uint64_t count = std::min(at_once, end_row - row);
      stored.resize(count * row_bytes);
      const uint64_t first = static_cast<uint64_t>(run.from) + row;
      gguf_.read(tensor, first * row_bytes, stored);
      for (uint64_t r = 0; r < count; ++r, ++row) {
        decode_row(view, tensor, first + r, std::span(stored).subspan(r * row_bytes, row_bytes), values);
        encode_row(view, values, made);
        const uint64_t at = row * view.row_bytes;  // where the row begins in the run
        const uint64_t from = std::max(at, begin);
        const uint64_t to = std::min(at + view.row_bytes, begin + out.size());
        std::memcpy(out.data() + (from - begin), made.data() + (from - at), to - from);
      }
    }
  }

  static void decode_row(const View& view, const GgufTensor& tensor, uint64_t row, std::span<const std::byte> stored,
                         std::span<float> values) {
    if (const int64_t block = numeric::ggml_first_invalid_block(tensor.type, stored); block >= 0) {
      bad_input(tensor.name, "row {} of {}: block {} has a scale that is not finite", row, describe(tensor), block);
    }
    numeric::ggml_decode(tensor.type, stored, values);
    undo_gguf_form(view.form, values, tensor.name);
  }

  static void encode_row(const View& view, std::span<const float> values, std::span<std::byte> out) {
    const size_t count = view.columns.empty() ? values.size() : view.columns.size();
    for (size_t i = 0; i < count; ++i) {
      const float value = values[view.columns.empty() ? i : static_cast<size_t>(view.columns[i])];
      if (view.dtype == Dtype::kF32) {
        std::memcpy(out.data() + 4 * i, &value, 4);
      } else {
        const uint16_t bits = numeric::bf16_from_float(value);
        std::memcpy(out.data() + 2 * i, &bits, 2);
      }
    }
  }

  Gguf gguf_;
  std::unordered_map<std::string, View> views_;
};

// Puts the views of one file together.
class Builder {
 public:
  explicit Builder(const fs::path& path)
      : source_(path.string()),
        reader_(std::make_shared<Reader>(Gguf::open(path))),
        model_(read_gguf_model(reader_->gguf().metadata(), source_)) {}

  // All tensors; shapes and parts of tables as the config tells them.
  void add_all(const base::Json& config) {
    config_ = config;
    const checkpoint::Architecture architecture = checkpoint::read_architecture(config, source_);
    if (architecture.family != model_.family) {
      bad_input(source_, "is a {} model, the config tells of {}", model_.family, architecture.family);
    }
    for (const checkpoint::Parameter& parameter : architecture.parameters) note(parameter);
    for (const GgufTensor& tensor : reader_->gguf().tensors()) {
      for (const CheckpointPiece& piece : checkpoint_pieces(model_, tensor.name, source_)) add(tensor, piece);
    }
  }

  void add_experts() {
    for (const GgufTensor& tensor : reader_->gguf().tensors()) {
      if (!is_experts(tensor.name)) continue;
      for (const CheckpointPiece& piece : checkpoint_pieces(model_, tensor.name, source_)) {
        if (piece.name.starts_with("mtp.")) continue;
        add(tensor, piece);
        if (!numeric::expert_format_of(tensor.type)) {
          bad_input(source_, "tensor {} is {}, a type that experts can't keep; they can keep {}", tensor.name,
                    describe(tensor), fmt::join(kept_types(), ", "));
        }
      }
    }
    if (views_.empty()) bad_input(source_, "has no routed experts");
  }

  Checkpoint finish() {
    const Gguf& gguf = reader_->gguf();
    std::vector<checkpoint::Shard> shards;
    for (size_t i = 0; i < gguf.parts().size(); ++i) {
      const checkpoint::GgufPart& part = gguf.parts()[i];
      shards.push_back({part.path, part.bytes, part.data_offset, part.modified});
    }
    std::vector<Tensor> tensors;
    for (auto& [name, view] : views_) {
      tensors.push_back(finish(name, view));
      reader_->add(name, std::move(view));
    }
    for (auto& [name, values] : constants_) tensors.push_back(constant(name, values));
    std::ranges::stable_sort(tensors, {}, [](const Tensor& t) { return std::pair(t.shard, t.offset); });
    base::Json config = config_;
    if (config.is_object()) config.erase("quantization_config");  // the file's types stand in its place
    return Checkpoint::view(
        fs::path(source_).parent_path(), std::move(config), std::move(shards), std::move(tensors),
        [reader = reader_, constants = constants_](const Tensor& tensor, uint64_t offset, std::span<std::byte> out) {
          const auto found = constants.find(tensor.name);
          if (found == constants.end()) return reader->read(tensor, offset, out);
          const auto bytes = std::as_bytes(std::span(found->second));
          std::ranges::copy(bytes.subspan(offset, out.size()), out.begin());
        });
  }

 private:
  static bool is_experts(std::string_view name) { return name.ends_with("_exps.weight"); }

  static std::vector<std::string_view> kept_types() {
    std::vector<std::string_view> names;
    for (const numeric::GgmlTraits& traits : numeric::ggml_types()) {
      if (numeric::expert_format_of(traits.type)) names.push_back(traits.name);
    }
    return names;
  }

  void note(const checkpoint::Parameter& parameter) {
    switch (parameter.kind) {
      case checkpoint::ParameterKind::kPlain:
        shapes_.emplace(parameter.name, parameter.shape);
        return;
      case checkpoint::ParameterKind::kMatrix:
        shapes_.emplace(parameter.name + ".weight", parameter.shape);
        return;
      case checkpoint::ParameterKind::kTable:
        tables_.emplace(parameter.name, parameter.shape);
        return;
      case checkpoint::ParameterKind::kInteger:
        add_constant(parameter);
        return;
      case checkpoint::ParameterKind::kExperts:
        return;
    }
  }

  // The n-gram memory's integers stand in the metadata.
  void add_constant(const checkpoint::Parameter& parameter) {
    static const std::map<std::string_view, const char*> kKeys = {
        {"layer_multipliers", "qwen4exp.ple.layer_multipliers"},
        {"ngram_heads_vocab_sizes", "qwen4exp.ple.head_vocab_sizes"},
        {"ngram_heads_offsets", "qwen4exp.ple.head_offsets"}};
    const auto key = kKeys.find(std::string_view(parameter.name).substr(parameter.name.rfind('.') + 1));
    if (key == kKeys.end()) base::internal_error("convert", "{} has no place in GGUF files", parameter.name);
    std::vector<int64_t> values = reader_->gguf().metadata().integers(key->second);
    if (static_cast<int64_t>(values.size()) != parameter.shape[0]) {
      bad_input(source_, "{} has {} values, the config asks for {}", key->second, values.size(), parameter.shape[0]);
    }
    constants_.emplace(parameter.name, std::move(values));
  }

  void add(const GgufTensor& tensor, const CheckpointPiece& piece) {
    if (numeric::ggml_type(tensor.type).decode == nullptr) {
      bad_input(source_, "tensor {} is {}, a type that can't be decoded here", tensor.name, describe(tensor));
    }
    if (tensor.shape.size() == 1 && !plain_dtype(tensor.type)) {
      bad_input(source_, "tensor {} is {}; a vector must be F32, F16 or BF16", tensor.name, describe(tensor));
    }
    if (is_experts(tensor.name)) {
      add_stacks(tensor, piece);
    } else if (piece.name.find(kStar) != std::string::npos) {
      add_table(tensor, piece);
    } else {
      add_rows(tensor, piece);
    }
  }

  // "MODULE.*.gate_proj.weight" for one projection, "MODULE.gate_up_proj" for two side by side, gate's rows first.
  void add_stacks(const GgufTensor& tensor, const CheckpointPiece& piece) {
    if (tensor.shape.size() != 3)
      bad_input(source_, "tensor {} is {}, not [experts, rows, inputs]", tensor.name, describe(tensor));
    const size_t end = piece.name.find(kExpertsPart) + kExpertsPart.size() - 1;
    const std::string module = piece.name.substr(0, end);
    const std::string_view rest = std::string_view(piece.name).substr(end + 1);
    const int64_t rows = tensor.shape[1];
    if (rest == "gate_up_proj") {
      if (rows % 2 != 0)
        bad_input(source_, "tensor {} is {}: gate and up have as many rows", tensor.name, describe(tensor));
      add_stack(tensor, checkpoint::stacked_name(module, "gate_proj"), 0, rows / 2);
      add_stack(tensor, checkpoint::stacked_name(module, "up_proj"), rows / 2, rows / 2);
    } else {
      add_stack(tensor, checkpoint::stacked_name(module, rest.substr(2, rest.rfind('.') - 2)), 0, rows);
    }
  }

  // Rows [first, first + rows) of every expert.
  void add_stack(const GgufTensor& tensor, const std::string& name, int64_t first, int64_t rows) {
    View view;
    view.dtype = numeric::expert_format_of(tensor.type) ? Dtype::kBlocks : Dtype::kBF16;
    view.shape = {tensor.shape[0], rows, tensor.shape[2]};
    for (int64_t e = 0; e < tensor.shape[0]; ++e) {
      view.runs.push_back({&tensor, e * rows, e * tensor.shape[1] + first, rows});
    }
    insert(name, std::move(view));
  }

  void add_table(const GgufTensor& tensor, const CheckpointPiece& piece) {
    const std::string prefix = piece.name.substr(0, piece.name.find(".shard_"));
    const auto table = tables_.find(prefix);
    if (table == tables_.end())
      bad_input(source_, "holds tensor {}, but the config has no n-gram table {}", tensor.name, prefix);
    const std::vector<int64_t>& shape = table->second;  // parts, rows of a part, width
    if (rows_of(tensor) != shape[0] * shape[1] || inputs_of(tensor) != shape[2]) {
      bad_input(source_, "tensor {} is {}, the config asks for {} parts of [{}, {}]", tensor.name, describe(tensor),
                shape[0], shape[1], shape[2]);
    }
    for (int64_t part = 0; part < shape[0]; ++part) {
      View view;
      view.shape = {shape[1], shape[2]};
      view.runs = {{&tensor, 0, part * shape[1], shape[1]}};
      insert(fmt::format("{}.shard_{}.weight", prefix, part), std::move(view));
    }
  }

  void add_rows(const GgufTensor& tensor, const CheckpointPiece& piece) {
    View view;
    const int64_t inputs = inputs_of(tensor);
    view.form = piece.form;
    view.dtype = piece.form == GgufForm::kSame ? plain_dtype(tensor.type).value_or(Dtype::kBF16) : Dtype::kF32;
    if (piece.heads == GgufHeads::kColumns) {
      view.columns = gguf_rows(model_, piece, inputs, source_);
    } else if (piece.columns > 0) {
      if (piece.first_column + piece.columns > inputs) {
        bad_input(source_, "tensor {} is {}, with columns up to {} missing", tensor.name, describe(tensor),
                  piece.first_column + piece.columns);
      }
      for (int64_t c = 0; c < piece.columns; ++c) view.columns.push_back(piece.first_column + c);
    }
    const int64_t rows = rows_of(tensor);
    std::vector<int64_t> order(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) order[static_cast<size_t>(row)] = row;
    if (piece.heads == GgufHeads::kRows) order = gguf_rows(model_, piece, rows, source_);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = order[static_cast<size_t>(row)];
      if (!view.runs.empty() && view.runs.back().from + view.runs.back().count == from) {
        ++view.runs.back().count;
      } else {
        view.runs.push_back({&tensor, piece.first_row + row, from, 1});
      }
    }
    view.shape = tensor.shape;
    if (!view.columns.empty()) view.shape.back() = static_cast<int64_t>(view.columns.size());
    insert(piece.name, std::move(view));
  }

  // A second tensor of one view adds its rows.
  void insert(const std::string& name, View view) {
    const auto [place, fresh] = views_.emplace(name, view);
    if (fresh) return;
    View& first = place->second;
    if (first.shape.size() != 2 || view.shape.size() != 2 || first.shape[1] != view.shape[1] ||
        first.dtype != view.dtype) {
      bad_input(source_, "tensors {} and {} do not make one {}", first.runs[0].tensor->name, view.runs[0].tensor->name,
                name);
    }
    first.shape[0] += view.shape[0];
    first.runs.insert(first.runs.end(), view.runs.begin(), view.runs.end());
    std::ranges::sort(first.runs, {}, &Run::to);
  }

  // The tensor of a view, after checking that its rows are all there.
  Tensor finish(const std::string& name, View& view) const {
    int64_t end = 0;
    for (const Run& run : view.runs) {
      if (run.to != end) bad_input(source_, "{} lacks row {}, which {} should have", name, end, run.tensor->name);
      end += run.count;
    }
    const GgufTensor& first = *view.runs[0].tensor;
    // A dimension of 1 that the file leaves out.
    if (const auto shape = shapes_.find(name);
        shape != shapes_.end() && without_ones(shape->second) == without_ones(view.shape)) {
      view.shape = shape->second;
    }
    const uint64_t inputs = view.columns.empty() ? static_cast<uint64_t>(inputs_of(first)) : view.columns.size();
    view.row_bytes = view.dtype == Dtype::kBlocks ? file_row_bytes(first) : inputs * dtype_bytes(view.dtype);
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = view.dtype;
    tensor.blocks = first.type;
    tensor.shape = view.shape;
    tensor.shard = first.part;
    tensor.offset = first.offset;
    tensor.bytes = static_cast<uint64_t>(end) * view.row_bytes;
    return tensor;
  }

  Tensor constant(const std::string& name, const std::vector<int64_t>& values) const {
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = Dtype::kI64;
    tensor.shape = {static_cast<int64_t>(values.size())};
    tensor.bytes = values.size() * sizeof(int64_t);
    return tensor;
  }

  std::string source_;
  std::shared_ptr<Reader> reader_;
  GgufModel model_;
  base::Json config_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // that the config tells, by tensor
  std::map<std::string, std::vector<int64_t>> tables_;
  std::map<std::string, std::vector<int64_t>> constants_;
  std::map<std::string, View> views_;
};

}  // namespace

Checkpoint view_gguf(const fs::path& path, const base::Json& config) {
  Builder builder(path);
  builder.add_all(config);
  return builder.finish();
}

Checkpoint view_gguf_experts(const fs::path& path) {
  Builder builder(path);
  builder.add_experts();
  return builder.finish();
}

}  // namespace tandem::convert
