#include "synth/forms.h"

#include <array>
#include <fmt/format.h>
#include <string>

#include "base/error.h"

namespace tandem::synth {

namespace {

using base::Json;
using checkpoint::Form;
using checkpoint::Format;
using checkpoint::Group;
using checkpoint::MatrixFormat;
using checkpoint::Parameter;

// The large products of the text layers; what stays in BF16 everywhere are the two small projections of the delta net,
// embedding, head, draft head and vision.
bool is_large_linear(const Parameter& matrix) {
  if (matrix.group == Group::kMlp || matrix.group == Group::kAttention) return true;
  return matrix.group == Group::kDeltaNet && !matrix.name.ends_with("in_proj_a") && !matrix.name.ends_with("in_proj_b");
}

MatrixFormat fp8_matrix(const Parameter& matrix) {
  const bool draft = matrix.group == Group::kDraft && matrix.name.starts_with("mtp.layers.");
  return {is_large_linear(matrix) || draft ? Format::kFp8Block : Format::kBF16};
}
MatrixFormat modelopt_matrix(const Parameter& matrix) {
  if (matrix.group == Group::kMlp || matrix.group == Group::kHead) return {Format::kNvfp4Modelopt};
  return {is_large_linear(matrix) ? Format::kFp8Tensor : Format::kBF16};
}
MatrixFormat mlp_matrix(const Parameter& matrix) {
  return matrix.group == Group::kMlp ? MatrixFormat{Format::kNvfp4Modelopt} : MatrixFormat{};
}
MatrixFormat compressed_matrix(const Parameter& matrix) {
  return {is_large_linear(matrix) ? Format::kNvfp4CompressedTensors : Format::kBF16};
}
MatrixFormat gsq_matrix(const Parameter& matrix) {
  return is_large_linear(matrix) ? MatrixFormat{Format::kPackedInt, 3} : MatrixFormat{};
}
MatrixFormat gsq_dense_matrix(const Parameter& matrix) {
  return is_large_linear(matrix) ? MatrixFormat{Format::kPackedIntDense, 3} : MatrixFormat{};
}

constexpr Form dense_form(MatrixFormat (*matrix)(const Parameter&)) {
  Form form;
  form.matrix = matrix;
  return form;
}

constexpr std::array kForms = {
    NamedForm{"flash-nvfp4", "qwen4_exp", "Flash-Next as nvidia/…-NVFP4: experts NVFP4, draft experts and table FP8",
              checkpoint::kFormNvfp4},
    NamedForm{"flash-bf16", "qwen4_exp", "Flash-Next in BF16, experts fused", checkpoint::kFormBf16},
    NamedForm{"flash-fp8", "qwen4_exp", "Flash-Next with experts in FP8 blocks and an FP8 table",
              checkpoint::kFormQwenFp8},
    NamedForm{"27b-bf16", "qwen3_5", "27B in BF16", dense_form(nullptr)},
    NamedForm{"27b-fp8", "qwen3_5", "27B in FP8 blocks of 128 x 128", dense_form(fp8_matrix)},
    NamedForm{"27b-nvfp4", "qwen3_5", "27B by ModelOpt: MLP and head NVFP4, attention FP8",
              dense_form(modelopt_matrix)},
    NamedForm{"27b-nvfp4-mlp", "qwen3_5", "27B by ModelOpt: MLP NVFP4, all else BF16", dense_form(mlp_matrix)},
    NamedForm{"27b-nvfp4-ct", "qwen3_5", "27B by compressed-tensors: NVFP4 with divisors",
              dense_form(compressed_matrix)},
    NamedForm{"27b-gsq3", "qwen3_5", "27B in 3 bits (GSQ), ten codes to a word", dense_form(gsq_matrix)},
    NamedForm{"27b-gsq3-stream", "qwen3_5", "27B in 3 bits (GSQ), codes as one stream of bits",
              dense_form(gsq_dense_matrix)},
};

constexpr const char* kFlashText = R"({
  "model_type": "qwen4_exp_text", "hidden_size": 2560, "num_hidden_layers": 48, "full_attention_interval": 4,
  "vocab_size": 248320, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": false,
  "attn_output_gate": true, "partial_rotary_factor": 0.25, "max_position_embeddings": 262144,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "mrope_interleaved": true,
                      "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
  "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "output_gate_type": "sigmoid",
  "mamba_ssm_dtype": "float32", "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 640,
  "shared_expert_intermediate_size": 640, "hidden_act": "silu", "hc_count": 4, "hc_lowrank": 320,
  "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
  "indexer_compress_ratio": 4, "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4,
  "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000,
  "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false
})";

constexpr const char* kDenseText = R"({
  "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, "full_attention_interval": 4,
  "vocab_size": 248320, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "attention_bias": false,
  "attn_output_gate": true, "partial_rotary_factor": 0.25, "max_position_embeddings": 262144,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "mrope_interleaved": true,
                      "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
  "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
  "intermediate_size": 17408, "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
  "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false
})";

constexpr const char* kVision = R"({
  "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16,
  "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
  "hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []
})";

void set(Json& text, std::initializer_list<std::pair<const char*, int64_t>> values) {
  for (const auto& [key, value] : values) {
    if (text.contains(key)) text[key] = value;
  }
}

void shrink(Json& text, Scale scale) {
  if (scale == Scale::kTiny) {
    set(text, {{"hidden_size", 256},
               {"num_hidden_layers", 4},
               {"vocab_size", 2048},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"linear_num_key_heads", 2},
               {"linear_num_value_heads", 6},
               {"intermediate_size", 512},
               {"num_experts", 16},
               {"num_experts_per_tok", 4},
               {"hc_lowrank", 16},
               {"moe_intermediate_size", 64},
               {"ple_embed_dim", 256},
               {"split_ngram_parts", 4},
               {"shared_expert_intermediate_size", 64},
               {"ngram_vocab_size_base", 500},
               {"max_position_embeddings", 32768}});
  } else if (scale == Scale::kSmall) {
    set(text, {{"hidden_size", 1024},
               {"num_hidden_layers", 12},
               {"vocab_size", 32768},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 2},
               {"linear_num_key_heads", 4},
               {"linear_num_value_heads", 12},
               {"intermediate_size", 4096},
               {"num_experts", 64},
               {"num_experts_per_tok", 8},
               {"hc_lowrank", 64},
               {"moe_intermediate_size", 192},
               {"ple_embed_dim", 1024},
               {"split_ngram_parts", 8},
               {"shared_expert_intermediate_size", 192},
               {"ngram_vocab_size_base", 40000},
               {"max_position_embeddings", 32768}});
  }
}

void apply(const Sizes& sizes, Json& text) {
  const auto put = [&text](const char* key, const std::optional<int64_t>& value) {
    if (!value) return;
    if (!text.contains(key)) base::bad_input("sizes", "a {} has no {}", text.value("model_type", "model"), key);
    text[key] = *value;
  };
  put("num_hidden_layers", sizes.layers);
  put("num_experts", sizes.experts);
  put("num_experts_per_tok", sizes.top_k);
  put("hidden_size", sizes.hidden);
  put(text.contains("moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size", sizes.inner);
  put("vocab_size", sizes.vocab);
  if (sizes.ngram_rows) put("ngram_vocab_size_base", *sizes.ngram_rows / 16);
  // A list of layers would contradict their number; the interval says the same.
  if (sizes.layers) text.erase("layer_types");
}

// What the formats and the kernels cut a model by.
void require_whole(const Json& text) {
  const auto multiple = [&text](const char* key, int64_t of) {
    const int64_t value = base::json_int(text, key, of, "config.json");
    if (value < 1 || value % of != 0) base::bad_input("config.json", "\"{}\" is {}, no multiple of {}", key, value, of);
  };
  multiple("hidden_size", 128);
  multiple("intermediate_size", 64);
  multiple("moe_intermediate_size", 64);
  const int64_t experts = base::json_int(text, "num_experts", 1, "config.json");
  const int64_t top_k = base::json_int(text, "num_experts_per_tok", 1, "config.json");
  if (top_k < 1 || top_k > experts) base::bad_input("config.json", "{} of {} experts cannot be used", top_k, experts);
}

// quantization_config, as the publisher of the form writes it.
Json quantization_of(const NamedForm& form, const Json& text) {
  const std::string name = form.name;
  const auto layers = text.value("num_hidden_layers", int64_t{0});
  if (name.ends_with("-bf16")) return nullptr;
  if (name.ends_with("-fp8")) {
    return {{"quant_method", "fp8"},
            {"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", {"lm_head", "model.language_model.embed_tokens", "model.visual"}}};
  }
  if (name.find("gsq3") != std::string::npos || name.ends_with("-ct")) {
    const bool integers = !name.ends_with("-ct");
    Json weights = {{"num_bits", integers ? 3 : 4},
                    {"group_size", integers ? 128 : 16},
                    {"symmetric", true},
                    {"strategy", integers ? "group" : "tensor_group"},
                    {"type", integers ? "int" : "float"}};
    return {{"quant_method", "compressed-tensors"},
            {"format", integers ? "pack-quantized" : "nvfp4-pack-quantized"},
            {"quantization_status", "compressed"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
            {"ignore", {"lm_head", "re:.*in_proj_[ab]", "re:.*visual.*", "re:mtp.*"}}};
  }
  Json quantized = Json::object();
  for (int64_t i = 0; i < layers; ++i) {
    const bool flash = std::string_view(form.family) == "qwen4_exp";
    quantized[fmt::format("model.language_model.layers.{}.mlp{}", i, flash ? ".experts" : "")] = {
        {"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  return {{"quant_method", "modelopt"},
          {"quant_algo", "MIXED_PRECISION"},
          {"producer", {{"name", "modelopt"}, {"version", "0.46.0"}}},
          {"kv_cache_scheme", nullptr},
          {"quantized_layers", quantized},
          {"ignore", {"model.visual*", "mtp.fc*"}}};
}

Json scale_config(const NamedForm& form, Scale scale) {
  const bool flash = std::string_view(form.family) == "qwen4_exp";
  Json text = base::parse_json(flash ? kFlashText : kDenseText, "synth");
  shrink(text, scale);
  Json config = {{"architectures", {flash ? "Qwen4ExpForConditionalGeneration" : "Qwen3_5ForConditionalGeneration"}},
                 {"model_type", form.family},
                 {"dtype", "bfloat16"},
                 {"language_model_only", scale != Scale::kFull},
                 {"tie_word_embeddings", false}};
  if (scale == Scale::kFull) config["vision_config"] = base::parse_json(kVision, "synth");
  config["text_config"] = std::move(text);
  return config;
}

void set_token_ids(Json& config) {
  const int64_t first = first_added_token(config["text_config"].value("vocab_size", int64_t{0}));
  config["vision_start_token_id"] = first + 9;
  config["vision_end_token_id"] = first + 10;
  config["image_token_id"] = first + 12;
  config["video_token_id"] = first + 13;
  config["text_config"]["eos_token_id"] = first;
  config["text_config"]["bos_token_id"] = first;
}

}  // namespace

std::span<const NamedForm> forms() {
  return kForms;
}

const NamedForm& form_named(std::string_view name) {
  std::string names;
  for (const NamedForm& form : kForms) {
    if (name == form.name) return form;
    names += (names.empty() ? "" : ", ") + std::string(form.name);
  }
  base::bad_input("the form", "\"{}\" is not known; known are {}", name, names);
}

int64_t first_added_token(int64_t vocab) {
  // As published: 33 added tokens, then 243 ids that name nothing; a small vocabulary has no ids to waste.
  return vocab - (vocab >= 100000 ? 276 : 33);
}

Json make_config(const NamedForm& form, Scale scale, const Sizes& sizes, const Json& base) {
  Json config = base.is_null() ? scale_config(form, scale) : base;
  const std::string family = base::json_string(config, "model_type", "config.json");
  if (family != form.family) {
    base::bad_input("config.json", "is of a {}, the form {} is one of {}", family, form.name, form.family);
  }
  if (!base::json_member(config, "text_config").is_object()) {
    base::bad_input("config.json", "lacks the object \"text_config\"");
  }
  // References into an ordered object end where a key is added to it.
  apply(sizes, config["text_config"]);
  require_whole(config["text_config"]);
  if (base.is_null()) {
    set_token_ids(config);
    if (config["text_config"].contains("ple_embed_dim") && sizes.hidden) {
      config["text_config"]["ple_embed_dim"] = *sizes.hidden;
    }
    if (config.contains("vision_config")) {
      const Json hidden = config["text_config"]["hidden_size"];
      config["vision_config"]["out_hidden_size"] = hidden;
    }
  }
  const Json quantization = quantization_of(form, config["text_config"]);
  config.erase("quantization_config");
  if (!quantization.is_null()) config["quantization_config"] = quantization;
  return config;
}

}  // namespace tandem::synth
