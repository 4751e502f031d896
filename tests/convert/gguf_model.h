// What llama.cpp's converter writes for a model: its metadata and the names of its tensors.
#pragma once

#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/gguf_metadata.h"
#include "convert/gguf_names.h"

namespace tandem::testing {

using Figures = std::map<std::string, uint32_t>;

inline base::Json demo_config(const std::string& model) {
  const auto path = std::filesystem::path(TANDEM_SOURCE_DIR) / "models" / model / "config.json";
  return base::parse_json(base::read_text(path, 1 << 20), path.string());
}

// The numbers of the metadata that a config becomes, by their keys behind the architecture's name.
inline Figures gguf_figures(const std::string& architecture, const base::Json& config) {
  const base::Json& text = config["text_config"];
  const auto number = [&](const char* key) { return text[key].get<uint32_t>(); };
  const uint32_t draft = text.value("mtp_num_hidden_layers", 0);
  Figures figures = {{"block_count", number("num_hidden_layers") + draft},
                     {"nextn_predict_layers", draft},
                     {"embedding_length", number("hidden_size")},
                     {"ssm.group_count", number("linear_num_key_heads")},
                     {"ssm.time_step_rank", number("linear_num_value_heads")},
                     {"ssm.state_size", number("linear_key_head_dim")},
                     {"ssm.inner_size", number("linear_num_value_heads") * number("linear_value_head_dim")}};
  if (architecture == "qwen4exp") {
    figures["hyper_connection.count"] = number("hc_count");
    figures["attention.indexer.head_count"] = number("indexer_n_heads");
    figures["attention.indexer.key_length"] = number("indexer_head_dim");
    figures["ple.layers"] = text["ple_layer_ids"][0].get<uint32_t>() - 1;
  }
  return figures;
}

// Whether the figure stands in the metadata as a list of one.
inline bool is_list(const std::string& key) {
  return key == "ple.layers";
}

inline void add_all(std::vector<std::string>& out, const std::string& prefix,
                    std::initializer_list<const char*> names) {
  for (const char* name : names) out.push_back(prefix + name);
}

// The tensors that llama.cpp's loaders ask for (src/models/qwen35.cpp, qwen35moe.cpp, qwen4exp.cpp).
inline std::vector<std::string> gguf_tensors(const convert::GgufModel& model, const base::Json& config) {
  const bool streams = model.streams > 1;
  const auto is_delta_net = [&](int64_t layer) {
    const base::Json& types = base::json_member(config["text_config"], "layer_types");
    if (!types.is_array()) return (layer + 1) % config["text_config"]["full_attention_interval"].get<int64_t>() != 0;
    return types[static_cast<size_t>(layer) % types.size()] == "linear_attention";  // a test may add layers
  };
  std::vector<std::string> out = {"token_embd.weight", "output.weight"};
  if (streams) {
    add_all(out, "output_hc_", {"norm.weight", "down.weight", "up.weight"});
    out.emplace_back("per_layer_token_embd.weight");
  } else {
    out.emplace_back("output_norm.weight");
  }
  for (int64_t i = 0; i < model.layers + model.draft_layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    if (streams) {
      for (const char* half : {"hc_attn_", "hc_ffn_"}) {
        add_all(out, block + half, {"norm.weight", "down.weight", "up.weight", "inject.weight"});
      }
    } else {
      add_all(out, block, {"attn_norm.weight", "post_attention_norm.weight"});
    }
    if (i < model.layers && is_delta_net(i)) {
      add_all(out, block,
              {"attn_qkv.weight", "attn_gate.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_beta.weight",
               "ssm_alpha.weight", "ssm_norm.weight", "ssm_out.weight"});
    } else {
      add_all(out, block,
              {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q_norm.weight",
               "attn_k_norm.weight"});
      if (streams) {
        add_all(out, block + "indexer.", {"q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"});
      }
    }
    if (i == model.ngram_layer) {
      add_all(
          out, block + "ple_",
          {"key.weight", "value.weight", "norm_key.weight", "norm_query.weight", "norm_conv.weight", "conv1d.weight"});
    }
    if (model.family == "qwen3_5") {
      add_all(out, block + "ffn_", {"gate.weight", "up.weight", "down.weight"});
    } else {
      add_all(out, block + "ffn_",
              {"gate_inp.weight", "gate_exps.weight", "up_exps.weight", "down_exps.weight", "gate_inp_shexp.weight",
               "gate_shexp.weight", "up_shexp.weight", "down_shexp.weight"});
    }
    if (i < model.layers) continue;
    add_all(out, block + "nextn.", {"eh_proj.weight", "enorm.weight", "hnorm.weight"});
    if (streams) {
      add_all(out, block + "nextn.hc_head_", {"norm.weight", "down.weight", "up.weight"});
    } else {
      out.push_back(block + "nextn.shared_head_norm.weight");
    }
  }
  return out;
}

}  // namespace tandem::testing
