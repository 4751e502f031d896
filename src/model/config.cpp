#include "model/config.h"

#include "base/error.h"
#include "numeric/expert_reference.h"

namespace tandem::model {

namespace {

using base::bad_input;
using base::Json;

// Reads the text part of a config with bounds, so that no later size computation can overflow.
class Reader {
 public:
  Reader(const Json& object, const std::string& source) : object_(object), source_(source) {}

  int64_t count(const char* key, int64_t least = 1, int64_t most = int64_t{1} << 24) const {
    return check(key, base::json_int(object_, key, source_), least, most);
  }
  int64_t count_or(const char* key, int64_t fallback, int64_t least = 0, int64_t most = int64_t{1} << 24) const {
    return check(key, base::json_int(object_, key, fallback, source_), least, most);
  }
  double number_or(const char* key, double fallback) const {
    return base::json_number(object_, key, fallback, source_);
  }
  std::string text_or(const char* key, const std::string& fallback) const {
    return base::json_string(object_, key, fallback, source_);
  }
  const Json& member(const char* key) const { return base::json_member(object_, key); }
  const std::string& source() const { return source_; }

 private:
  int64_t check(const char* key, int64_t value, int64_t least, int64_t most) const {
    if (value < least || value > most) bad_input(source_, "\"{}\" is {}, expected {} to {}", key, value, least, most);
    return value;
  }

  const Json& object_;
  const std::string& source_;
};

void require_multiple(const std::string& source, const char* key, int64_t value, int64_t multiple) {
  if (value % multiple != 0) bad_input(source, "\"{}\" is {}, not a multiple of {}", key, value, multiple);
}

Family family_of(const std::string& model_type, const std::string& source) {
  if (model_type == "qwen3_5" || model_type == "qwen3_5_text") return Family::kQwen35;
  if (model_type == "qwen3_5_moe" || model_type == "qwen3_5_moe_text") return Family::kQwen35Moe;
  if (model_type == "qwen4_exp" || model_type == "qwen4_exp_text") return Family::kQwen4Exp;
  bad_input(source, "model_type \"{}\" is not one that Tandem runs (qwen3_5, qwen3_5_moe, qwen4_exp)", model_type);
}

void read_layer_types(const Reader& text, Config& config) {
  const Json& types = text.member("layer_types");
  if (types.is_null()) {
    const int64_t interval = text.count("full_attention_interval");
    for (int64_t i = 0; i < config.layers; ++i) {
      config.layer_types.push_back((i + 1) % interval == 0 ? LayerType::kFull : LayerType::kLinear);
    }
    return;
  }
  if (!types.is_array() || static_cast<int64_t>(types.size()) != config.layers) {
    bad_input(text.source(), "\"layer_types\" has {} entries for {} layers", types.size(), config.layers);
  }
  for (const Json& type : types) {
    if (type == "linear_attention") {
      config.layer_types.push_back(LayerType::kLinear);
    } else if (type == "full_attention" || type == "qwen_sparse_attention") {
      config.layer_types.push_back(LayerType::kFull);
    } else {
      bad_input(text.source(), "\"layer_types\" holds {}, expected linear_attention or full_attention", type.dump());
    }
  }
}

void read_attention(const Reader& text, Config& config) {
  config.heads = text.count("num_attention_heads", 1, 1024);
  config.kv_heads = text.count("num_key_value_heads", 1, 1024);
  config.head_dim = text.count("head_dim", 16, 1024);
  require_multiple(text.source(), "head_dim", config.head_dim, 16);
  require_multiple(text.source(), "num_attention_heads", config.heads, config.kv_heads);
  const Json& rope = text.member("rope_parameters");
  const Reader parameters(rope, text.source());
  const std::string type = parameters.text_or("rope_type", "default");
  if (type != "default") bad_input(text.source(), "rope_type \"{}\" is not supported (default is)", type);
  config.rope_theta = parameters.number_or("rope_theta", text.number_or("rope_theta", 1e7));
  const double fraction = parameters.number_or("partial_rotary_factor", text.number_or("partial_rotary_factor", 0.25));
  config.rotary_dims = static_cast<int64_t>(static_cast<double>(config.head_dim) * fraction + 0.5);
  if (!(fraction > 0 && fraction <= 1) || config.rotary_dims % 2 != 0 || !(config.rope_theta > 1)) {
    bad_input(text.source(), "rotary settings are out of range: factor {}, theta {}", fraction, config.rope_theta);
  }
  const Json& section = parameters.member("mrope_section");
  if (section.is_array() && section.size() == 3) {
    for (size_t i = 0; i < 3; ++i)
      config.mrope_section[i] = section[i].is_number_integer() ? section[i].get<int64_t>() : 0;
  }
}

void read_delta_net(const Reader& text, Config& config) {
  config.key_heads = text.count("linear_num_key_heads", 1, 1024);
  config.value_heads = text.count("linear_num_value_heads", 1, 1024);
  config.key_head_dim = text.count("linear_key_head_dim", 16, 256);
  config.value_head_dim = text.count("linear_value_head_dim", 16, 256);
  config.conv_kernel = text.count("linear_conv_kernel_dim", 2, 16);
  require_multiple(text.source(), "linear_key_head_dim", config.key_head_dim, 16);
  require_multiple(text.source(), "linear_value_head_dim", config.value_head_dim, 16);
  require_multiple(text.source(), "linear_num_value_heads", config.value_heads, config.key_heads);
  const std::string gate = text.text_or("output_gate_type", "swish");
  if (gate != "sigmoid" && gate != "swish" && gate != "silu") {
    bad_input(text.source(), "output_gate_type \"{}\" is not sigmoid, swish or silu", gate);
  }
  config.output_gate_sigmoid = gate == "sigmoid";
}

void read_feed_forward(const Reader& text, Config& config) {
  if (const std::string act = text.text_or("hidden_act", "silu"); act != "silu") {
    bad_input(text.source(), "hidden_act \"{}\" is not silu", act);
  }
  if (config.family == Family::kQwen35) {
    config.intermediate = text.count("intermediate_size");
    return;
  }
  config.experts = text.count("num_experts", 1, 65536);
  // More would not fit the fixed point of the sum over experts (docs/architecture.md, "Numbers").
  config.top_k = text.count("num_experts_per_tok", 1, std::min<int64_t>(config.experts, numeric::kMostExpertsPerToken));
  config.expert_intermediate = text.count("moe_intermediate_size");
  config.shared_intermediate = text.count("shared_expert_intermediate_size");
}

void read_exp(const Reader& text, Config& config) {
  config.streams = text.count("hc_count", 1, 16);
  config.hc_lowrank = text.count("hc_lowrank");
  config.indexer_heads = text.count("indexer_n_heads", 1, 256);
  config.indexer_head_dim = text.count("indexer_head_dim", 16, 1024);
  config.indexer_ratio = text.count("indexer_compress_ratio", 1, 16);
  config.indexer_budget = text.count("indexer_budget", config.indexer_ratio);
  require_multiple(text.source(), "indexer_head_dim", config.indexer_head_dim, 16);
  require_multiple(text.source(), "indexer_budget", config.indexer_budget, config.indexer_ratio);
  if (64 % config.indexer_ratio != 0) {
    bad_input(text.source(), "\"indexer_compress_ratio\" is {}, which does not divide a page of 64",
              config.indexer_ratio);
  }
  if (config.rotary_dims > config.indexer_head_dim) {
    bad_input(text.source(), "{} rotary dimensions exceed indexer_head_dim {}", config.rotary_dims,
              config.indexer_head_dim);
  }
  const int64_t kv_heads = text.count_or("indexer_kv_heads", 1);
  if (kv_heads != 1) bad_input(text.source(), "\"indexer_kv_heads\" is {}, expected 1", kv_heads);
  const Json& layers = text.member("ple_layer_ids");
  if (layers.is_array()) {
    for (const Json& id : layers) {
      // The file counts layers from 1.
      const int64_t layer = id.is_number_integer() ? id.get<int64_t>() - 1 : -1;
      if (layer < 0 || layer >= config.layers) bad_input(text.source(), "\"ple_layer_ids\" holds {}", id.dump());
      config.ngram_layers.push_back(layer);
    }
  }
  if (config.ngram_layers.empty()) return;
  config.ngram_size = text.count("ngram_size", 2, 3);
  config.ngram_heads_per_size = text.count("heads_per_ngram", 1, 64);
  config.ngram_embed_dim = text.count("ple_embed_dim");
  config.ngram_conv_kernel = text.count("ple_conv_kernel_size", 2, 16);
  if (config.ngram_size != 3) bad_input(text.source(), "\"ngram_size\" is {}, expected 3", config.ngram_size);
  require_multiple(text.source(), "ple_embed_dim", config.ngram_embed_dim,
                   (config.ngram_size - 1) * config.ngram_heads_per_size);
}

}  // namespace

Config Config::from_json(const base::Json& root, const std::string& source) {
  if (!root.is_object()) bad_input(source, "is not a JSON object");
  Config config;
  config.model_type = base::json_string(root, "model_type", source);
  config.family = family_of(config.model_type, source);
  const Json& nested = base::json_member(root, "text_config");
  const Reader text(nested.is_object() ? nested : root, source);

  config.hidden = text.count("hidden_size", 16);
  require_multiple(source, "hidden_size", config.hidden, 16);
  config.layers = text.count("num_hidden_layers", 1, 4096);
  config.vocab = text.count("vocab_size");
  config.rms_norm_eps = text.number_or("rms_norm_eps", 1e-6);
  config.max_position_embeddings = text.count("max_position_embeddings");
  config.tie_word_embeddings = base::json_bool(root, "tie_word_embeddings", false, source);
  const Json& eos = text.member("eos_token_id");
  config.eos_token = eos.is_number_integer() ? eos.get<int64_t>() : -1;
  if (base::json_bool(nested.is_object() ? nested : root, "attention_bias", false, source)) {
    bad_input(source, "\"attention_bias\" is true; checkpoints of these families have no biases");
  }
  read_layer_types(text, config);
  read_attention(text, config);
  read_delta_net(text, config);
  read_feed_forward(text, config);
  if (config.family == Family::kQwen4Exp) read_exp(text, config);
  config.mtp_layers = text.count_or("mtp_num_hidden_layers", 0, 0, 1);
  if (!config.ngram_layers.empty() && (config.eos_token < 0 || config.eos_token >= config.vocab)) {
    bad_input(source, "\"eos_token_id\" is {} for a vocabulary of {}; the n-gram memory needs it", config.eos_token,
              config.vocab);
  }
  return config;
}

}  // namespace tandem::model
