#include "convert/gguf_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <optional>

#include "base/error.h"

namespace tandem::convert {

namespace {

using checkpoint::GgufMetadata;

// A figure of the metadata, between 1 and `limit`.
int64_t gguf_figure(const GgufMetadata& metadata, const std::string& key, int64_t limit, const std::string& source) {
  const uint64_t value = metadata.unsigned_integer(key);
  if (value < 1 || value > static_cast<uint64_t>(limit)) {
    base::bad_input(source, "{} is {}, outside 1 to {}", key, value, limit);
  }
  return static_cast<int64_t>(value);
}

// Which rows or columns are value heads.
enum class Tiled : uint8_t { kNo, kAllRows, kRowsBehindKeys, kSingleRows, kAllColumns };

struct NameRow {
  std::string_view gguf;
  std::string_view checkpoint;
  GgufForm form = GgufForm::kSame;
  Tiled tiled = Tiled::kNo;
};

// Outside of blocks.
constexpr std::array kGlobalNames = std::to_array<NameRow>({
    {"token_embd.weight", "model.language_model.embed_tokens.weight"},
    {"output.weight", "lm_head.weight"},
    {"output_norm.weight", "model.language_model.norm.weight", GgufForm::kOnePlus},
    {"output_hc_norm.weight", "model.language_model.hyper_connection_mixer.hc_norm.weight", GgufForm::kOnePlus},
    {"output_hc_down.weight", "model.language_model.hyper_connection_mixer.input_mix_weight_down.weight"},
    {"output_hc_up.weight", "model.language_model.hyper_connection_mixer.input_mix_weight_up.weight"},
});

// Behind "blk.N." and behind the layer's prefix.
constexpr std::array kLayerNames = std::to_array<NameRow>({
    {"attn_norm.weight", "input_layernorm.weight", GgufForm::kOnePlus},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", GgufForm::kOnePlus},
    {"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight", GgufForm::kOnePlus},
    {"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight"},
    {"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight"},
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight"},
    {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight", GgufForm::kOnePlus},
    {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight"},
    {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight"},
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", GgufForm::kSame, Tiled::kRowsBehindKeys},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", GgufForm::kSame, Tiled::kAllRows},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", GgufForm::kSame, Tiled::kSingleRows},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", GgufForm::kSame, Tiled::kSingleRows},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", GgufForm::kSame, Tiled::kRowsBehindKeys},
    {"ssm_a", "linear_attn.A_log", GgufForm::kMinusExp, Tiled::kSingleRows},
    {"ssm_dt.bias", "linear_attn.dt_bias", GgufForm::kSame, Tiled::kSingleRows},
    {"ssm_norm.weight", "linear_attn.norm.weight"},  // not zero-centred
    {"ssm_out.weight", "linear_attn.out_proj.weight", GgufForm::kSame, Tiled::kAllColumns},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", GgufForm::kOnePlus},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", GgufForm::kOnePlus},
    {"indexer.q_proj.weight", "self_attn.indexer.index_qk_proj.weight"},
    {"indexer.k_proj.weight", "self_attn.indexer.index_qk_proj.weight"},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight", GgufForm::kOnePlus},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight", GgufForm::kOnePlus},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight"},
    {"ffn_up_exps.weight", "mlp.experts.*.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.experts.*.down_proj.weight"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},  // gate rows first in both
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ple_key.weight", "ple.key_proj.weight"},
    {"ple_value.weight", "ple.value_proj.weight"},
    {"ple_norm_key.weight", "ple.norm_key.weight", GgufForm::kOnePlus},
    {"ple_norm_query.weight", "ple.norm_query.weight", GgufForm::kOnePlus},
    {"ple_norm_conv.weight", "ple.norm_conv.weight", GgufForm::kOnePlus},
    {"ple_conv1d.weight", "ple.conv1d.weight"},
});

// Behind "blk.N.nextn.", of the first block after the model's layers.
constexpr std::array kDraftNames = std::to_array<NameRow>({
    {"enorm.weight", "mtp.pre_fc_norm_embedding.weight", GgufForm::kOnePlus},
    {"hnorm.weight", "mtp.pre_fc_norm_hidden.weight", GgufForm::kOnePlus},
    {"shared_head_norm.weight", "mtp.norm.weight", GgufForm::kOnePlus},
    {"hc_head_norm.weight", "mtp.hyper_connection_mixer.hc_norm.weight", GgufForm::kOnePlus},
    {"hc_head_down.weight", "mtp.hyper_connection_mixer.input_mix_weight_down.weight"},
    {"hc_head_up.weight", "mtp.hyper_connection_mixer.input_mix_weight_up.weight"},
});

template <size_t kCount>
const NameRow* find_row(const std::array<NameRow, kCount>& rows, std::string_view gguf) {
  const auto* found = std::find_if(rows.begin(), rows.end(), [&](const NameRow& row) { return row.gguf == gguf; });
  return found == rows.end() ? nullptr : found;
}

CheckpointPiece piece_of(const GgufModel& model, const NameRow& row, std::string_view prefix) {
  CheckpointPiece piece;
  piece.name = fmt::format("{}{}", prefix, row.checkpoint);
  piece.form = row.form;
  if (row.tiled == Tiled::kNo) return piece;
  piece.heads = row.tiled == Tiled::kAllColumns ? GgufHeads::kColumns : GgufHeads::kRows;
  piece.head_width = row.tiled == Tiled::kSingleRows ? 1 : model.value_head_dim;
  if (row.tiled == Tiled::kRowsBehindKeys) piece.first_head_row = model.key_rows();
  return piece;
}

// The draft head's combining matrix: [embedding | hidden state]. Where there are several streams, the checkpoint has
// the halves apart.
std::vector<CheckpointPiece> combiner_pieces(const GgufModel& model) {
  CheckpointPiece embedding;
  if (model.streams == 1) {
    embedding.name = "mtp.fc.weight";
    return {embedding};
  }
  embedding.name = "mtp.fc_embedding.weight";
  embedding.columns = model.hidden;
  CheckpointPiece hidden = embedding;
  hidden.name = "mtp.fc_hidden.weight";
  hidden.first_column = model.hidden;
  return {embedding, hidden};
}

// "blk.12.attn_q.weight" to 12 and "attn_q.weight".
struct BlockName {
  int64_t block = 0;
  std::string_view suffix;
};

std::optional<BlockName> parse_block_name(std::string_view tensor) {
  constexpr std::string_view kPrefix = "blk.";
  if (!tensor.starts_with(kPrefix)) return std::nullopt;
  tensor.remove_prefix(kPrefix.size());
  if (tensor.empty()) return std::nullopt;
  BlockName name;
  const auto [end, error] = std::from_chars(tensor.data(), tensor.data() + tensor.size(), name.block);
  const auto digits = static_cast<size_t>(end - tensor.data());
  const bool canonical = tensor[0] != '-' && (tensor[0] != '0' || digits == 1);
  if (error != std::errc{} || !canonical || digits >= tensor.size() || tensor[digits] != '.') return std::nullopt;
  name.suffix = tensor.substr(digits + 1);
  return name;
}

std::vector<CheckpointPiece> block_pieces(const GgufModel& model, const BlockName& name) {
  constexpr std::string_view kDraft = "nextn.";
  const int64_t draft = name.block - model.layers;
  if (draft >= model.draft_layers) return {};
  if (name.suffix.starts_with(kDraft)) {
    const std::string_view suffix = name.suffix.substr(kDraft.size());
    if (draft != 0) return {};
    if (suffix == "eh_proj.weight") return combiner_pieces(model);
    const NameRow* row = find_row(kDraftNames, suffix);
    return row == nullptr ? std::vector<CheckpointPiece>{} : std::vector{piece_of(model, *row, "")};
  }
  const NameRow* row = find_row(kLayerNames, name.suffix);
  if (row == nullptr) return {};
  CheckpointPiece piece = piece_of(
      model, *row,
      draft >= 0 ? fmt::format("mtp.layers.{}.", draft) : fmt::format("model.language_model.layers.{}.", name.block));
  if (name.suffix == "indexer.k_proj.weight") piece.first_row = model.index_query_rows;
  return {piece};
}

}  // namespace

GgufModel read_gguf_model(const GgufMetadata& metadata, const std::string& source) {
  const std::string& architecture = metadata.string("general.architecture");
  GgufModel model;
  if (architecture == "qwen35") {
    model.family = "qwen3_5";
  } else if (architecture == "qwen35moe") {
    model.family = "qwen3_5_moe";
  } else if (architecture == "qwen4exp") {
    model.family = "qwen4_exp";
  } else {
    base::bad_input(source, "general.architecture is {}; known are qwen35, qwen35moe and qwen4exp",
                    checkpoint::describe(metadata.at("general.architecture")));
  }
  const auto figure = [&](const char* key, int64_t limit) {
    return gguf_figure(metadata, fmt::format("{}.{}", architecture, key), limit, source);
  };
  const std::string draft_key = architecture + ".nextn_predict_layers";
  const uint64_t draft = metadata.find(draft_key) == nullptr ? 0 : metadata.unsigned_integer(draft_key);
  model.layers = figure("block_count", 1024);
  if (draft >= static_cast<uint64_t>(model.layers)) {
    base::bad_input(source, "{} is {}, of {} blocks", draft_key, draft, model.layers);
  }
  model.draft_layers = static_cast<int64_t>(draft);
  model.layers -= model.draft_layers;
  model.hidden = figure("embedding_length", int64_t{1} << 20);
  model.key_heads = figure("ssm.group_count", 4096);
  model.value_heads = figure("ssm.time_step_rank", 4096);
  model.key_head_dim = figure("ssm.state_size", 4096);
  const int64_t inner = figure("ssm.inner_size", int64_t{1} << 20);
  if (model.value_heads % model.key_heads != 0 || inner % model.value_heads != 0) {
    base::bad_input(source, "{} key heads, {} value heads and {} channels of a DeltaNet do not fit together",
                    model.key_heads, model.value_heads, inner);
  }
  model.value_head_dim = inner / model.value_heads;
  if (model.family != "qwen4_exp") return model;
  model.streams = figure("hyper_connection.count", 64);
  if (model.streams == 1) base::bad_input(source, "{}.hyper_connection.count is 1, outside 2 to 64", architecture);
  model.index_query_rows = figure("attention.indexer.head_count", 4096) * figure("attention.indexer.key_length", 4096);
  if (metadata.find("qwen4exp.ple.layers") == nullptr) return model;
  const std::vector<int64_t> memories = metadata.integers("qwen4exp.ple.layers");
  if (memories.size() != 1 || memories[0] < 0 || memories[0] >= model.layers) {
    base::bad_input(source, "qwen4exp.ple.layers must hold one layer of {}", model.layers);
  }
  model.ngram_layer = memories[0];
  return model;
}

std::vector<CheckpointPiece> checkpoint_pieces(const GgufModel& model, std::string_view tensor,
                                               const std::string& source) {
  std::vector<CheckpointPiece> pieces;
  if (const NameRow* row = find_row(kGlobalNames, tensor); row != nullptr) {
    pieces.push_back(piece_of(model, *row, ""));
  } else if (tensor == "per_layer_token_embd.weight" && model.ngram_layer >= 0) {
    pieces.emplace_back().name = fmt::format(
        "model.language_model.layers.{}.ple.ple_embedding.ngram_embedding.shard_*.weight", model.ngram_layer);
  } else if (const std::optional<BlockName> name = parse_block_name(tensor); name) {
    pieces = block_pieces(model, *name);
  }
  if (pieces.empty()) base::bad_input(source, "holds tensor {}, which no {} model has", tensor, model.family);
  return pieces;
}

int64_t gguf_value_head(const GgufModel& model, int64_t head) {
  const int64_t shared = model.value_heads / model.key_heads;
  return head % shared * model.key_heads + head / shared;
}

std::vector<int64_t> gguf_rows(const GgufModel& model, const CheckpointPiece& piece, int64_t rows,
                               const std::string& source) {
  const bool tiled = piece.heads != GgufHeads::kNone;
  if (tiled && rows != piece.first_head_row + model.value_heads * piece.head_width) {
    base::bad_input(source, "{} has {} {}; {} value heads of {} behind {} are expected", piece.name, rows,
                    piece.heads == GgufHeads::kRows ? "rows" : "columns", model.value_heads, piece.head_width,
                    piece.first_head_row);
  }
  std::vector<int64_t> out(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t in_heads = row - piece.first_head_row;
    out[static_cast<size_t>(row)] = !tiled || in_heads < 0
                                        ? row
                                        : piece.first_head_row +
                                              gguf_value_head(model, in_heads / piece.head_width) * piece.head_width +
                                              in_heads % piece.head_width;
  }
  return out;
}

void undo_gguf_form(GgufForm form, std::span<float> values, const std::string& source) {
  if (form == GgufForm::kSame) return;
  for (size_t i = 0; i < values.size(); ++i) {
    float& value = values[i];
    if (!std::isfinite(value) || (form == GgufForm::kMinusExp && value >= 0)) {
      base::bad_input(source, "value {} is {}, which {}", i, value,
                      form == GgufForm::kMinusExp ? "is no -exp(A_log)" : "is not finite");
    }
    value = form == GgufForm::kOnePlus ? value - 1.0f : std::log(-value);
  }
}

}  // namespace tandem::convert
