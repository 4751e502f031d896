#include "checkpoint/architecture.h"

#include <array>
#include <numeric>

#include "base/error.h"
#include "checkpoint/json_scanner.h"

namespace tandem::checkpoint {

namespace {

using base::Json;

constexpr std::array<std::string_view, kGroups> kGroupNames = {
    "embedding",     "head",    "norms",         "attention",    "delta net",  "hyper-connections", "mlp",   "router",
    "shared expert", "experts", "n-gram memory", "n-gram table", "draft head", "draft experts",     "vision"};

// Typed access to one object of the config. Sizes are bounded so that no product of three leaves 63 bits.
class Section {
 public:
  Section(const Json& object, const std::string& source) : object_(object), source_(source) {}

  int64_t size(const char* key, int64_t limit = int64_t{1} << 20) const {
    return bounded(key, base::json_int(object_, key, source_), 1, limit);
  }
  int64_t size_or(const char* key, int64_t fallback, int64_t least, int64_t limit = int64_t{1} << 20) const {
    return bounded(key, base::json_int(object_, key, fallback, source_), least, limit);
  }
  bool flag(const char* key, bool fallback) const { return base::json_bool(object_, key, fallback, source_); }
  const Json& member(const char* key) const { return base::json_member(object_, key); }
  const std::string& source() const { return source_; }

 private:
  int64_t bounded(const char* key, int64_t value, int64_t least, int64_t limit) const {
    if (value < least || value > limit) {
      base::bad_input(source_, "\"{}\" is {}, outside {} to {}", key, value, least, limit);
    }
    return value;
  }

  const Json& object_;
  const std::string& source_;
};

bool is_prime(int64_t value) {
  for (int64_t divisor = 2; divisor * divisor <= value; ++divisor) {
    if (value % divisor == 0) return false;
  }
  return value > 1;
}

// Adds the parameters of one model. Prefixes end in a point.
class Lister {
 public:
  Lister(const Section& text, Architecture& out) : text_(text), out_(out) {
    hidden_ = text.size("hidden_size");
    moe_ = out.family != "qwen3_5";
    streams_ = out.family == "qwen4_exp" ? text.size("hc_count", 64) : 1;
  }

  void language_model(bool tied) {
    const int64_t vocab = text_.size("vocab_size", int64_t{1} << 24);
    matrix(Group::kEmbedding, "model.language_model.embed_tokens", vocab, hidden_);
    if (!tied) matrix(Group::kHead, "lm_head", vocab, hidden_);
    final_mixer(Group::kNorms, "model.language_model.");
    const std::vector<bool> linear = linear_layers();
    for (size_t i = 0; i < linear.size(); ++i) {
      const std::string prefix = fmt::format("model.language_model.layers.{}.", i);
      layer_norms(prefix);
      if (linear[i]) {
        delta_net(prefix + "linear_attn.");
      } else {
        attention(prefix + "self_attn.");
      }
      feed_forward(prefix + "mlp.");
    }
    if (streams_ > 1) ngram_memories(static_cast<int64_t>(linear.size()));
  }

  void draft_head() {
    const int64_t layers = text_.size_or("mtp_num_hidden_layers", 0, 0, 64);
    if (layers == 0) return;
    if (text_.flag("mtp_use_dedicated_embeddings", false)) {
      base::bad_input(text_.source(),
                      "\"mtp_use_dedicated_embeddings\" is true: draft heads with their own embedding are not known");
    }
    drafting_ = true;
    plain(Group::kDraft, "mtp.pre_fc_norm_embedding.weight", {hidden_});
    plain(Group::kDraft, "mtp.pre_fc_norm_hidden.weight", {streams_ * hidden_});
    if (streams_ > 1) {
      matrix(Group::kDraft, "mtp.fc_embedding", hidden_, hidden_);
      matrix(Group::kDraft, "mtp.fc_hidden", hidden_, hidden_);
    } else {
      matrix(Group::kDraft, "mtp.fc", hidden_, 2 * hidden_);
    }
    final_mixer(Group::kDraft, "mtp.");
    for (int64_t i = 0; i < layers; ++i) {
      const std::string prefix = fmt::format("mtp.layers.{}.", i);
      layer_norms(prefix);
      attention(prefix + "self_attn.");
      feed_forward(prefix + "mlp.");
    }
    drafting_ = false;
  }

  void vision(const Section& config) {
    const int64_t width = config.size("hidden_size");
    const int64_t inner = config.size("intermediate_size");
    const int64_t patch = config.size("patch_size", 256);
    const int64_t merge = config.size("spatial_merge_size", 16);
    const int64_t frames = config.size("temporal_patch_size", 16);
    const Json& deepstack = config.member("deepstack_visual_indexes");
    if (!deepstack.is_null() && !deepstack.empty()) {
      base::bad_input(config.source(), "\"deepstack_visual_indexes\" is not empty: such vision towers are not known");
    }
    const std::string prefix = "model.visual.";
    plain(Group::kVision, prefix + "patch_embed.proj.weight",
          {width, config.size_or("in_channels", 3, 1, 16), frames, patch, patch});
    plain(Group::kVision, prefix + "patch_embed.proj.bias", {width});
    plain(Group::kVision, prefix + "pos_embed.weight", {config.size("num_position_embeddings"), width});
    const int64_t depth = config.size("depth", 1024);
    for (int64_t i = 0; i < depth; ++i) {
      const std::string block = fmt::format("{}blocks.{}.", prefix, i);
      layer_norm(block + "norm1", width);
      layer_norm(block + "norm2", width);
      biased(block + "attn.qkv", 3 * width, width);
      biased(block + "attn.proj", width, width);
      biased(block + "mlp.linear_fc1", inner, width);
      biased(block + "mlp.linear_fc2", width, inner);
    }
    const int64_t merged = merge * merge * width;
    layer_norm(prefix + "merger.norm", width);
    biased(prefix + "merger.linear_fc1", merged, merged);
    biased(prefix + "merger.linear_fc2", config.size("out_hidden_size"), merged);
  }

 private:
  void add(ParameterKind kind, Group group, std::string name, std::vector<int64_t> shape) {
    if (drafting_) group = kind == ParameterKind::kExperts ? Group::kDraftExperts : Group::kDraft;
    out_.parameters.push_back({std::move(name), kind, group, std::move(shape)});
  }
  void plain(Group group, std::string name, std::vector<int64_t> shape) {
    add(ParameterKind::kPlain, group, std::move(name), std::move(shape));
  }
  void matrix(Group group, std::string module, int64_t rows, int64_t inputs) {
    add(ParameterKind::kMatrix, group, std::move(module), {rows, inputs});
  }
  void layer_norm(const std::string& module, int64_t width) {
    plain(Group::kVision, module + ".weight", {width});
    plain(Group::kVision, module + ".bias", {width});
  }
  void biased(const std::string& module, int64_t rows, int64_t inputs) {
    matrix(Group::kVision, module, rows, inputs);
    plain(Group::kVision, module + ".bias", {rows});
  }

  std::vector<bool> linear_layers() const {
    const auto layers = static_cast<size_t>(text_.size("num_hidden_layers", 1024));
    std::vector<bool> linear(layers);
    const Json& types = text_.member("layer_types");
    if (types.is_null()) {
      const auto interval = static_cast<size_t>(text_.size_or("full_attention_interval", 4, 1));
      for (size_t i = 0; i < layers; ++i) linear[i] = (i + 1) % interval != 0;
      return linear;
    }
    if (!types.is_array() || types.size() != layers) {
      base::bad_input(text_.source(), "\"layer_types\" must list {} layers, as \"num_hidden_layers\" says", layers);
    }
    for (size_t i = 0; i < layers; ++i) {
      const std::string type = types[i].is_string() ? types[i].get<std::string>() : types[i].type_name();
      if (type != "linear_attention" && type != "full_attention") {
        base::bad_input(text_.source(),
                        "\"layer_types\" has \"{}\" for layer {}; known are linear_attention and full_attention",
                        printable(type), i);
      }
      linear[i] = type == "linear_attention";
    }
    return linear;
  }

  // qwen4_exp mixes streams where the others have one norm.
  void final_mixer(Group group, const std::string& prefix) {
    if (streams_ > 1) {
      mixer(prefix + "hyper_connection_mixer.", false);
    } else {
      plain(group, prefix + "norm.weight", {hidden_});
    }
  }
  void layer_norms(const std::string& prefix) {
    if (streams_ > 1) {
      mixer(prefix + "attn_hyper_connection.", true);
      mixer(prefix + "mlp_hyper_connection.", true);
    } else {
      plain(Group::kNorms, prefix + "input_layernorm.weight", {hidden_});
      plain(Group::kNorms, prefix + "post_attention_layernorm.weight", {hidden_});
    }
  }
  void mixer(const std::string& prefix, bool injects) {
    const int64_t width = streams_ * hidden_;
    const int64_t rank = text_.size("hc_lowrank");
    plain(Group::kHyperConnections, prefix + "hc_norm.weight", {width});
    matrix(Group::kHyperConnections, prefix + "input_mix_weight_down", rank, width);
    matrix(Group::kHyperConnections, prefix + "input_mix_weight_up", width, rank);
    if (injects) matrix(Group::kHyperConnections, prefix + "block_inject_weight", streams_, width);
  }

  void delta_net(const std::string& prefix) {
    const int64_t value_heads = text_.size("linear_num_value_heads", 4096);
    const int64_t value_dim = text_.size("linear_value_head_dim", 4096);
    const int64_t keys = text_.size("linear_num_key_heads", 4096) * text_.size("linear_key_head_dim", 4096);
    const int64_t values = value_heads * value_dim;
    matrix(Group::kDeltaNet, prefix + "in_proj_qkv", 2 * keys + values, hidden_);
    matrix(Group::kDeltaNet, prefix + "in_proj_z", values, hidden_);
    matrix(Group::kDeltaNet, prefix + "in_proj_b", value_heads, hidden_);
    matrix(Group::kDeltaNet, prefix + "in_proj_a", value_heads, hidden_);
    plain(Group::kDeltaNet, prefix + "conv1d.weight", {2 * keys + values, 1, text_.size("linear_conv_kernel_dim", 64)});
    plain(Group::kDeltaNet, prefix + "A_log", {value_heads});
    plain(Group::kDeltaNet, prefix + "dt_bias", {value_heads});
    plain(Group::kDeltaNet, prefix + "norm.weight", {value_dim});
    matrix(Group::kDeltaNet, prefix + "out_proj", hidden_, values);
  }

  void attention(const std::string& prefix) {
    const int64_t head = text_.size("head_dim", 4096);
    const int64_t queries = text_.size("num_attention_heads", 4096) * head;
    const int64_t keys = text_.size("num_key_value_heads", 4096) * head;
    const int64_t gated = text_.flag("attn_output_gate", true) ? 2 : 1;
    matrix(Group::kAttention, prefix + "q_proj", gated * queries, hidden_);
    matrix(Group::kAttention, prefix + "k_proj", keys, hidden_);
    matrix(Group::kAttention, prefix + "v_proj", keys, hidden_);
    matrix(Group::kAttention, prefix + "o_proj", hidden_, queries);
    plain(Group::kAttention, prefix + "q_norm.weight", {head});
    plain(Group::kAttention, prefix + "k_norm.weight", {head});
    if (streams_ == 1) return;
    const int64_t index = text_.size("indexer_head_dim", 4096);
    const int64_t heads = text_.size("indexer_n_heads", 4096) + text_.size_or("indexer_kv_heads", 1, 1, 4096);
    matrix(Group::kAttention, prefix + "indexer.index_qk_proj", heads * index, hidden_);
    plain(Group::kAttention, prefix + "indexer.q_layernorm.weight", {index});
    plain(Group::kAttention, prefix + "indexer.k_layernorm.weight", {index});
  }

  void feed_forward(const std::string& prefix) {
    if (!moe_) return mlp(Group::kMlp, prefix, text_.size("intermediate_size"));
    const int64_t experts = text_.size("num_experts", 65536);
    matrix(Group::kRouter, prefix + "gate", experts, hidden_);
    add(ParameterKind::kExperts, Group::kExperts, prefix + "experts",
        {experts, text_.size("moe_intermediate_size"), hidden_});
    mlp(Group::kSharedExpert, prefix + "shared_expert.", text_.size("shared_expert_intermediate_size"));
    matrix(Group::kSharedExpert, prefix + "shared_expert_gate", 1, hidden_);
  }
  void mlp(Group group, const std::string& prefix, int64_t inner) {
    matrix(group, prefix + "gate_proj", inner, hidden_);
    matrix(group, prefix + "up_proj", inner, hidden_);
    matrix(group, prefix + "down_proj", hidden_, inner);
  }

  void ngram_memories(int64_t layers) {
    const Json& ids = text_.member("ple_layer_ids");
    if (ids.is_null()) return;
    if (!ids.is_array()) base::bad_input(text_.source(), "\"ple_layer_ids\" must be a list of layers");
    std::vector<bool> listed(static_cast<size_t>(layers) + 1);
    for (const Json& id : ids) {
      // The config counts layers from 1.
      const int64_t layer = id.is_number_integer() ? id.get<int64_t>() : 0;
      if (layer < 1 || layer > layers || listed[static_cast<size_t>(layer)]) {
        base::bad_input(text_.source(), "\"ple_layer_ids\" must hold layers from 1 to {}, each once", layers);
      }
      listed[static_cast<size_t>(layer)] = true;
      ngram_memory(fmt::format("model.language_model.layers.{}.ple.", layer - 1));
    }
  }

  void ngram_memory(const std::string& prefix) {
    const int64_t width = streams_ * hidden_;
    const int64_t embed = text_.size("ple_embed_dim");
    const int64_t size = text_.size("ngram_size", 16);
    const int64_t heads = (size - 1) * text_.size("heads_per_ngram", 64);
    if (size < 2 || embed % heads != 0) {
      base::bad_input(text_.source(), "\"ple_embed_dim\" {} can't be cut among {} heads of n-grams", embed, heads);
    }
    matrix(Group::kNgramMemory, prefix + "key_proj", width, embed);
    matrix(Group::kNgramMemory, prefix + "value_proj", hidden_, embed);
    for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) {
      plain(Group::kNgramMemory, fmt::format("{}{}.weight", prefix, norm), {width});
    }
    plain(Group::kNgramMemory, prefix + "conv1d.weight", {width, 1, text_.size("ple_conv_kernel_size", 64)});
    const std::string embedding = prefix + "ple_embedding.";
    const auto integers = [&](const char* name, int64_t count) {
      add(ParameterKind::kInteger, Group::kNgramMemory, embedding + name, {count});
    };
    integers("layer_multipliers", size);
    integers("ngram_heads_vocab_sizes", heads);
    integers("ngram_heads_offsets", heads);
    const int64_t parts = text_.size("split_ngram_parts", 65536);
    if (ngram_rows_ == 0) ngram_rows_ = count_ngram_rows(heads);
    const int64_t rows = ngram_rows_;
    if (rows % parts != 0) {
      base::bad_input(text_.source(), "\"split_ngram_parts\" {} does not divide the table's {} rows", parts, rows);
    }
    add(ParameterKind::kTable, Group::kNgramTable, embedding + "ngram_embedding", {parts, rows / parts, embed / heads});
  }

  // Each head has a prime number of rows, successive primes from the base; the sum is padded.
  int64_t count_ngram_rows(int64_t heads) const {
    int64_t prime = text_.size("ngram_vocab_size_base", int64_t{1} << 30);
    int64_t rows = 0;
    for (int64_t head = 0; head < heads; ++head, ++prime) {
      while (!is_prime(prime)) ++prime;
      rows += prime;
    }
    const int64_t multiple = text_.size_or("make_ngram_vocab_size_divisible_by", 128, 1);
    return (rows + multiple - 1) / multiple * multiple;
  }

  const Section& text_;
  Architecture& out_;
  int64_t hidden_ = 0;
  int64_t streams_ = 1;
  bool moe_ = false;
  bool drafting_ = false;
  int64_t ngram_rows_ = 0;  // the same for all layers
};

std::string read_family(const Json& config, const std::string& source) {
  const std::string family = base::json_string(config, "model_type", source);
  if (family != "qwen3_5" && family != "qwen3_5_moe" && family != "qwen4_exp") {
    base::bad_input(source, "the architecture \"{}\" is not known; known are qwen3_5, qwen3_5_moe and qwen4_exp",
                    printable(family));
  }
  return family;
}

}  // namespace

std::string_view group_name(Group group) {
  return kGroupNames[static_cast<size_t>(group)];
}

uint64_t Architecture::elements(Group group) const {
  uint64_t sum = 0;
  for (const Parameter& parameter : parameters) {
    if (parameter.group != group) continue;
    uint64_t elements = parameter.kind == ParameterKind::kExperts ? 3 : 1;
    for (const int64_t extent : parameter.shape) elements *= static_cast<uint64_t>(extent);
    sum += elements;
  }
  return sum;
}

uint64_t Architecture::elements() const {
  uint64_t sum = 0;
  for (size_t group = 0; group < kGroups; ++group) sum += elements(static_cast<Group>(group));
  return sum;
}

Architecture read_architecture(const Json& config, const std::string& source) {
  Architecture architecture;
  architecture.family = read_family(config, source);
  const Json& text_config = base::json_member(config, "text_config");
  if (!text_config.is_object()) base::bad_input(source, "lacks the object \"text_config\"");
  const Section text(text_config, source);
  Lister lister(text, architecture);
  const bool tied = base::json_bool(config, "tie_word_embeddings", text.flag("tie_word_embeddings", false), source);
  lister.language_model(tied);
  lister.draft_head();
  const Json& vision_config = base::json_member(config, "vision_config");
  if (vision_config.is_object() && !base::json_bool(config, "language_model_only", false, source)) {
    lister.vision(Section(vision_config, source));
  }
  return architecture;
}

}  // namespace tandem::checkpoint
