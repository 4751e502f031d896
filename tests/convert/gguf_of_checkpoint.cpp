#include "gguf_of_checkpoint.h"

#include <cmath>
#include <cstring>
#include <random>

#include "../checkpoint/gguf_files.h"
#include "base/file.h"
#include "convert/gguf_names.h"
#include "gguf_model.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"
#include "numeric/nvfp4.h"

namespace tandem::testing {

using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::GgufBytes;
using checkpoint::GgufFileBytes;
using checkpoint::Tensor;
using convert::CheckpointPiece;
using convert::GgufModel;

std::vector<float> floats_of(const Checkpoint& source, const std::string& name) {
  const Tensor& tensor = source.at(name);
  const std::vector<std::byte> bytes = source.read(tensor);
  const auto at = [&](size_t i) {
    if (tensor.dtype == Dtype::kBF16) return numeric::bf16_to_float(reinterpret_cast<const uint16_t*>(bytes.data())[i]);
    if (tensor.dtype == Dtype::kF8E4M3) return numeric::e4m3_to_float(static_cast<uint8_t>(bytes[i]));
    return reinterpret_cast<const float*>(bytes.data())[i];
  };
  std::vector<float> values(bytes.size() * 8 / static_cast<size_t>(checkpoint::dtype_bits(tensor.dtype)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = at(i);
  return values;
}

std::string random_blocks(numeric::GgmlType type, int64_t elements, uint64_t seed, bool exact) {
  const numeric::GgmlTraits& traits = numeric::ggml_type(type);
  std::string bytes(static_cast<size_t>(elements / traits.block_elements * traits.block_bytes), '\0');
  std::mt19937_64 random(seed);
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(traits.block_bytes)) {
    // A binary16 scale begins every block that experts may have: 2^-8 to 2^-9.
    const auto scale = static_cast<uint16_t>(7u << 10 | (exact ? 0u : random() & 0x3ffu));
    std::memcpy(bytes.data() + at, &scale, 2);
  }
  return bytes;
}

namespace {

class Writer {
 public:
  Writer(const Checkpoint& source, std::string architecture, const GgufOptions& options)
      : source_(source), architecture_(std::move(architecture)), options_(options) {}

  std::string file() {
    file_.pair_string("general.architecture", architecture_);
    for (const auto& [key, figure] : gguf_figures(architecture_, source_.config())) {
      const std::string name = fmt::format("{}.{}", architecture_, key);
      if (is_list(key)) {
        file_.pair(name, 9, GgufBytes().u32(4).u64(1).u32(figure).text);
      } else {
        file_.pair_u32(name, figure);
      }
    }
    model_ = model();
    if (architecture_ == "qwen4exp") add_constants();
    for (const std::string& name : gguf_tensors(model_, source_.config())) {
      const bool experts = name.ends_with("_exps.weight");
      if (options_.only_experts && !experts) continue;
      if (experts) {
        add_experts(name);
      } else {
        add_plain(name);
      }
    }
    return file_.file();
  }

 private:
  GgufModel model() const {
    GgufModel model;
    const auto figures = gguf_figures(architecture_, source_.config());
    const auto figure = [&](const char* key) { return static_cast<int64_t>(figures.at(key)); };
    model.family = architecture_ == "qwen4exp" ? "qwen4_exp" : architecture_ == "qwen35" ? "qwen3_5" : "qwen3_5_moe";
    model.draft_layers = figure("nextn_predict_layers");
    model.layers = figure("block_count") - model.draft_layers;
    model.hidden = figure("embedding_length");
    model.key_heads = figure("ssm.group_count");
    model.value_heads = figure("ssm.time_step_rank");
    model.key_head_dim = figure("ssm.state_size");
    model.value_head_dim = figure("ssm.inner_size") / model.value_heads;
    if (architecture_ != "qwen4exp") return model;
    model.streams = figure("hyper_connection.count");
    model.index_query_rows = figure("attention.indexer.head_count") * figure("attention.indexer.key_length");
    model.ngram_layer = figure("ple.layers");
    return model;
  }

  void add_constants() {
    const std::string prefix = fmt::format("model.language_model.layers.{}.ple.ple_embedding.", model_.ngram_layer);
    for (const auto& [name, key] :
         {std::pair("layer_multipliers", "layer_multipliers"), std::pair("ngram_heads_vocab_sizes", "head_vocab_sizes"),
          std::pair("ngram_heads_offsets", "head_offsets")}) {
      const std::vector<std::byte> values = source_.read(source_.at(prefix + name));
      GgufBytes bytes;
      bytes.u32(11).u64(values.size() / 8);
      bytes.text.append(reinterpret_cast<const char*>(values.data()), values.size());
      file_.pair(fmt::format("qwen4exp.ple.{}", key), 9, bytes.text);
    }
  }

  void add(const std::string& name, const std::vector<int64_t>& shape, numeric::GgmlType type,
           const std::string& data) {
    file_.data.resize((file_.data.size() + 31) / 32 * 32);
    file_.entry(name, {shape.rbegin(), shape.rend()}, static_cast<uint32_t>(type), file_.data.size());
    file_.data += data;
  }

  void add_values(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values,
                  bool bf16) {
    if (options_.blocks) {
      if (const auto blocks = options_.blocks(name, shape)) return add(name, shape, blocks->type, blocks->data);
    }
    GgufBytes bytes;
    for (const float value : values) {
      if (bf16) {
        bytes.number(numeric::bf16_from_float(value));
      } else {
        bytes.number(value);
      }
    }
    add(name, shape, bf16 ? numeric::GgmlType::kBF16 : numeric::GgmlType::kF32, bytes.text);
  }

  // An expert's matrix from whatever form the checkpoint has; only its shape where blocks stand in its place.
  std::vector<float> expert(const std::string& module, int64_t e, const std::string& projection) const {
    const Tensor* fused = source_.find(module + ".gate_up_proj");
    if (fused == nullptr) return {};
    const std::vector<float> all =
        floats_of(source_, module + (projection == "down_proj" ? ".down_proj" : ".gate_up_proj"));
    const size_t each = all.size() / static_cast<size_t>(fused->shape[0]);
    const auto begin = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(e) * each);
    const auto half = static_cast<ptrdiff_t>(each / 2);
    if (projection == "gate_proj") return {begin, begin + half};
    if (projection == "up_proj") return {begin + half, begin + 2 * half};
    return {begin, begin + 2 * half};
  }

  void add_experts(const std::string& name) {
    const base::Json& text = source_.config()["text_config"];
    const auto experts = text["num_experts"].get<int64_t>();
    const auto inner = text["moe_intermediate_size"].get<int64_t>();
    const std::string piece = convert::checkpoint_pieces(model_, name, "m.gguf").at(0).name;
    const std::string module = piece.substr(0, piece.find(".*"));
    const std::string projection = piece.substr(piece.find(".*.") + 3, piece.rfind('.') - piece.find(".*.") - 3);
    std::vector<int64_t> shape = {experts, inner, model_.hidden};
    if (projection == "down_proj") std::swap(shape[1], shape[2]);
    const bool joined = options_.joined_gate_up && projection != "down_proj";
    if (joined && projection == "up_proj") return;
    std::string stored = name;
    if (joined) {
      shape[1] *= 2;
      stored = name.substr(0, name.find("gate_exps")) + "gate_up_exps.weight";
    }
    std::vector<float> values;
    for (int64_t e = 0; e < experts; ++e) {
      for (const auto& part : joined ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector{projection}) {
        const std::vector<float> matrix = expert(module, e, part);
        values.insert(values.end(), matrix.begin(), matrix.end());
      }
    }
    add_values(stored, shape, values, true);
  }

  // [key head][shared][width] to [shared][key head][width], of rows that are `stride` elements long.
  std::vector<float> tiled(const std::vector<float>& values, size_t before, size_t width, size_t stride) const {
    std::vector<float> out(values.begin(), values.begin() + static_cast<ptrdiff_t>(before * stride));
    const auto shared = static_cast<size_t>(model_.value_heads / model_.key_heads);
    for (size_t j = 0; j < shared; ++j) {
      for (size_t k = 0; k < static_cast<size_t>(model_.key_heads); ++k) {
        const auto begin = values.begin() + static_cast<ptrdiff_t>((before + (k * shared + j) * width) * stride);
        out.insert(out.end(), begin, begin + static_cast<ptrdiff_t>(width * stride));
      }
    }
    return out;
  }

  std::vector<float> tiled_columns(const std::vector<float>& values, size_t columns) const {
    std::vector<float> out;
    for (size_t row = 0; row < values.size() / columns; ++row) {
      const auto begin = values.begin() + static_cast<ptrdiff_t>(row * columns);
      const std::vector<float> moved =
          tiled({begin, begin + static_cast<ptrdiff_t>(columns)}, 0, static_cast<size_t>(model_.value_head_dim), 1);
      out.insert(out.end(), moved.begin(), moved.end());
    }
    return out;
  }

  void add_plain(const std::string& name) {
    const std::vector<CheckpointPiece> pieces = convert::checkpoint_pieces(model_, name, "m.gguf");
    if (name.starts_with("per_layer_token_embd")) return add_table(name, pieces[0].name);
    if (pieces.size() == 2) return add_combiner(name, pieces);
    const Tensor& tensor = source_.at(pieces[0].name);
    std::vector<float> values = floats_of(source_, tensor.name);
    std::vector<int64_t> shape = tensor.shape;
    if (shape.size() > 1) std::erase(shape, 1);
    const auto columns = static_cast<size_t>(shape.size() == 1 ? 1 : shape.back());
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const auto dim = static_cast<size_t>(model_.value_head_dim);
    if (has("indexer.q_proj") || has("indexer.k_proj")) {
      const auto queries = static_cast<ptrdiff_t>(model_.index_query_rows) * static_cast<ptrdiff_t>(columns);
      values = has("q_proj") ? std::vector<float>(values.begin(), values.begin() + queries)
                             : std::vector<float>(values.begin() + queries, values.end());
      shape[0] = static_cast<int64_t>(values.size() / columns);
    } else if (has("norm") && !has("ssm_norm")) {
      for (float& value : values) value += 1.0f;
    } else if (name.ends_with("ssm_a")) {
      for (float& value : values) value = -std::exp(value);
      values = tiled(values, 0, 1, 1);
    } else if (has("attn_qkv") || has("ssm_conv1d")) {
      values = tiled(values, static_cast<size_t>(model_.key_rows()), dim, columns);
    } else if (has("attn_gate")) {
      values = tiled(values, 0, dim, columns);
    } else if (has("ssm_beta") || has("ssm_alpha") || has("ssm_dt")) {
      values = tiled(values, 0, 1, columns);
    } else if (has("ssm_out")) {
      values = tiled_columns(values, columns);
    }
    add_values(name, shape, values, shape.size() > 1 && tensor.dtype == Dtype::kBF16);
  }

  void add_table(const std::string& name, const std::string& parts) {
    const std::string prefix = parts.substr(0, parts.find("*"));
    std::vector<float> values;
    const int64_t width = source_.at(prefix + "0.weight").shape[1];
    for (int64_t part = 0; source_.find(fmt::format("{}{}.weight", prefix, part)) != nullptr; ++part) {
      const std::string shard = fmt::format("{}{}.weight", prefix, part);
      const std::vector<float> rows = floats_of(source_, shard);
      values.insert(values.end(), rows.begin(), rows.end());
    }
    add_values(name, {static_cast<int64_t>(values.size()) / width, width}, values, true);
  }

  void add_combiner(const std::string& name, const std::vector<CheckpointPiece>& pieces) {
    const std::vector<float> left = floats_of(source_, pieces[0].name);
    const std::vector<float> right = floats_of(source_, pieces[1].name);
    const std::vector<int64_t> shape = source_.at(pieces[0].name).shape;
    const auto columns = static_cast<ptrdiff_t>(shape[1]);
    std::vector<float> values;
    for (ptrdiff_t row = 0; row < shape[0]; ++row) {
      values.insert(values.end(), left.begin() + row * columns, left.begin() + (row + 1) * columns);
      values.insert(values.end(), right.begin() + row * columns, right.begin() + (row + 1) * columns);
    }
    add_values(name, {shape[0], 2 * shape[1]}, values, source_.at(pieces[0].name).dtype == Dtype::kBF16);
  }

  const Checkpoint& source_;
  std::string architecture_;
  GgufOptions options_;
  GgufModel model_;
  GgufFileBytes file_;
};

}  // namespace

void write_gguf(const Checkpoint& source, const std::string& architecture, const std::filesystem::path& path,
                const GgufOptions& options) {
  base::write_text(path, Writer(source, architecture, options).file());
}

}  // namespace tandem::testing
