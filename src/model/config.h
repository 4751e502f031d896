// A model's shape and constants, read from config.json (docs/architecture.md, "Models"). Field names are the
// checkpoint's own where it has one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::model {

enum class Family {
  kQwen35,     // qwen3_5: dense
  kQwen35Moe,  // qwen3_5_moe
  kQwen4Exp,   // qwen4_exp: hyper-connections, sparse attention, n-gram memory, experts
};

enum class LayerType { kLinear, kFull };

struct Config {
  Family family = Family::kQwen35;
  std::string model_type;  // as the file names it

  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t vocab = 0;
  double rms_norm_eps = 1e-6;
  std::vector<LayerType> layer_types;
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  int64_t eos_token = -1;  // the text config's: what n-gram windows are cut by

  // gated attention
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t rotary_dims = 0;
  double rope_theta = 1e7;
  std::array<int64_t, 3> mrope_section{};

  // gated DeltaNet
  int64_t key_heads = 0, value_heads = 0, key_head_dim = 0, value_head_dim = 0;
  int64_t conv_kernel = 4;
  bool output_gate_sigmoid = false;  // else silu

  // feed-forward
  int64_t intermediate = 0;  // dense
  int64_t experts = 0, top_k = 0, expert_intermediate = 0, shared_intermediate = 0;

  // qwen4_exp
  int64_t streams = 1;  // residual streams
  int64_t hc_lowrank = 0;
  int64_t indexer_heads = 0, indexer_head_dim = 0, indexer_budget = 0, indexer_ratio = 0;
  std::vector<int64_t> ngram_layers;  // layer indices, from 0
  int64_t ngram_size = 0, ngram_heads_per_size = 0, ngram_embed_dim = 0, ngram_conv_kernel = 0;

  int64_t mtp_layers = 0;

  bool moe() const { return experts > 0; }
  bool sparse() const { return indexer_budget > 0; }
  int64_t width() const { return streams * hidden; }  // of the residual state

  // Throws base::Error{kBadInput} for an architecture other than the three families and for values that no checkpoint
  // of them has, naming the key.
  static Config from_json(const base::Json& config, const std::string& source);
};

}  // namespace tandem::model
