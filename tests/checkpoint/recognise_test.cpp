#include "checkpoint/recognise.h"

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "files.h"

namespace tandem::checkpoint {
namespace {

using base::Json;
using testing::AllOf;
using testing::HasSubstr;

std::filesystem::path source_folder() {
  return TANDEM_SOURCE_DIR;
}

Json read_json(const std::filesystem::path& path) {
  return base::parse_json(base::read_text(path, 1 << 20), path.string());
}

// The published configs, as far as shapes follow from them.
Json flash_next_config() {
  return Json::parse(R"({"model_type":"qwen4_exp","language_model_only":false,"text_config":{
    "hidden_size":2560,"num_hidden_layers":48,"full_attention_interval":4,"vocab_size":248320,
    "num_attention_heads":24,"num_key_value_heads":2,"head_dim":256,"linear_num_key_heads":16,
    "linear_num_value_heads":48,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4,
    "num_experts":512,"num_experts_per_tok":10,"moe_intermediate_size":640,"shared_expert_intermediate_size":640,
    "hc_count":4,"hc_lowrank":320,"indexer_n_heads":4,"indexer_kv_heads":1,"indexer_head_dim":128,
    "ple_layer_ids":[2],"ple_embed_dim":2560,"ple_conv_kernel_size":4,"ngram_size":3,"heads_per_ngram":8,
    "ngram_vocab_size_base":20000000,"make_ngram_vocab_size_divisible_by":128,"split_ngram_parts":128,
    "tie_word_embeddings":false,"mtp_num_hidden_layers":1},
    "vision_config":{"depth":27,"hidden_size":1152,"intermediate_size":4304,"patch_size":16,"temporal_patch_size":2,
    "spatial_merge_size":2,"num_position_embeddings":2304,"out_hidden_size":2560,"deepstack_visual_indexes":[]}})");
}

Json dense_27b_config() {
  Json config = flash_next_config();
  config["model_type"] = "qwen3_5";
  config["text_config"] = Json::parse(R"({"hidden_size":5120,"num_hidden_layers":64,"full_attention_interval":4,
    "vocab_size":248320,"num_attention_heads":24,"num_key_value_heads":4,"head_dim":256,"linear_num_key_heads":16,
    "linear_num_value_heads":48,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4,
    "intermediate_size":17408,"tie_word_embeddings":false,"mtp_num_hidden_layers":1})");
  config["vision_config"]["out_hidden_size"] = 5120;
  return config;
}

const std::vector<ExpectedTensor>& flash_next_nvfp4() {
  static const std::vector<ExpectedTensor> tensors = expected_tensors(flash_next_config(), kFormNvfp4, "config");
  return tensors;
}

uint64_t bytes_of(const ExpectedTensor& tensor) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(tensor.dtypes.first()));
  for (const int64_t extent : tensor.shapes.front()) bits *= static_cast<uint64_t>(extent);
  return bits / 8;
}

size_t count_prefix(const std::vector<ExpectedTensor>& tensors, std::string_view prefix) {
  return static_cast<size_t>(std::count_if(tensors.begin(), tensors.end(), [prefix](const ExpectedTensor& tensor) {
    return tensor.name.starts_with(prefix);
  }));
}

TEST(ExpectedTensors, CountThoseOfThePublishedFlashNextForms) {
  const Json config = flash_next_config();
  EXPECT_EQ(flash_next_nvfp4().size(), 299'545u);
  EXPECT_EQ(expected_tensors(config, kFormQwenFp8, "config").size(), 152'089u);
  const std::vector<ExpectedTensor> bf16 = expected_tensors(config, kFormBf16, "config");
  EXPECT_EQ(bf16.size(), 1'658u);
  EXPECT_EQ(count_prefix(bf16, "model.visual."), 333u);
  EXPECT_EQ(count_prefix(bf16, "mtp."), 31u);
}

TEST(ExpectedTensors, AddUpToThePublishedParameters) {
  const Architecture flash = read_architecture(flash_next_config(), "config");
  EXPECT_EQ(flash.elements(), 179'999'981'459u);  // 179,999,981,424 and 35 integers
  EXPECT_EQ(flash.elements(Group::kExperts), 48u * 2'516'582'400);
  EXPECT_EQ(flash.elements(Group::kNgramTable), 51'200'245'760u);
  uint64_t experts = 0;
  for (const ExpectedTensor& tensor : flash_next_nvfp4()) {
    const bool scalar = tensor.shapes.front().empty();
    if (tensor.name.starts_with("model.") && tensor.name.find(".experts.") != std::string::npos && !scalar) {
      experts += bytes_of(tensor);
    }
  }
  EXPECT_EQ(experts, 67'947'724'800u);
  const Architecture dense = read_architecture(dense_27b_config(), "config");
  EXPECT_NEAR(static_cast<double>(dense.elements()), 27.78e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(dense.elements(Group::kDraft)), 0.425e9, 0.0005e9);
}

TEST(ExpectedTensors, HaveThePublishedNamesAndShapes) {
  const auto shape = [](const std::string& name) {
    const auto found = std::find_if(flash_next_nvfp4().begin(), flash_next_nvfp4().end(),
                                    [&](const ExpectedTensor& tensor) { return tensor.name == name; });
    return found == flash_next_nvfp4().end() ? std::vector<int64_t>{-1} : found->shapes.front();
  };
  using Shape = std::vector<int64_t>;
  const std::string layers = "model.language_model.layers.";
  EXPECT_EQ(shape(layers + "0.linear_attn.in_proj_qkv.weight"), (Shape{10240, 2560}));
  EXPECT_EQ(shape(layers + "0.linear_attn.conv1d.weight"), (Shape{10240, 1, 4}));
  EXPECT_EQ(shape(layers + "3.self_attn.q_proj.weight"), (Shape{12288, 2560}));
  EXPECT_EQ(shape(layers + "47.self_attn.indexer.index_qk_proj.weight"), (Shape{640, 2560}));
  EXPECT_EQ(shape(layers + "5.mlp.experts.511.down_proj.weight"), (Shape{2560, 320}));
  EXPECT_EQ(shape(layers + "5.mlp.experts.511.down_proj.weight_scale"), (Shape{2560, 40}));
  EXPECT_EQ(shape(layers + "5.mlp.experts.0.gate_proj.weight_scale_2"), Shape{});
  EXPECT_EQ(shape(layers + "1.ple.ple_embedding.ngram_embedding.shard_127.weight"), (Shape{2500012, 160}));
  EXPECT_EQ(shape("mtp.layers.0.mlp.experts.3.up_proj.weight_scale_inv"), (Shape{5, 20}));
  EXPECT_EQ(shape("mtp.pre_fc_norm_hidden.weight"), Shape{10240});
  EXPECT_EQ(shape("model.visual.patch_embed.proj.weight"), (Shape{1152, 3, 2, 16, 16}));
  EXPECT_EQ(shape("model.visual.merger.linear_fc2.weight"), (Shape{2560, 4608}));
}

TEST(Recognise, KnowsTheDemos) {
  const Recognised flash = recognise(Checkpoint::open(source_folder() / "models/demo-flash"));
  EXPECT_EQ(flash.family, "qwen4_exp");
  EXPECT_EQ(flash.form, "modelopt MIXED_PRECISION");
  EXPECT_TRUE(flash.has_draft_head);
  EXPECT_FALSE(flash.has_vision);
  EXPECT_TRUE(flash.has_input_scales);
  EXPECT_EQ(flash.parameters, 11'638'948u + 2'690'304u + 35);  // with the integers of the n-gram hash
  EXPECT_THAT(flash.text(), AllOf(HasSubstr("experts NVFP4"), HasSubstr("draft experts FP8 128x128"),
                                  HasSubstr("n-gram table FP8 tensor"), HasSubstr("all other matrices BF16")));
  const Recognised dense = recognise(Checkpoint::open(source_folder() / "models/demo-dense"));
  EXPECT_EQ(dense.family, "qwen3_5");
  EXPECT_EQ(dense.form, "not quantised");
  EXPECT_EQ(dense.parameters, 6'909'092u + 1'574'656u);
  EXPECT_EQ(dense.tensors, 71u);
  const Recognised fused = recognise(Checkpoint::open(std::filesystem::path(TANDEM_GOLDEN_DIR) / "qsa-random"));
  EXPECT_EQ(fused.parameters, 1'113'003u);
  EXPECT_FALSE(fused.has_draft_head);
  const auto experts = std::find_if(fused.groups.begin(), fused.groups.end(),
                                    [](const GroupFormat& entry) { return entry.group == Group::kExperts; });
  ASSERT_NE(experts, fused.groups.end());
  EXPECT_TRUE(experts->fused);
  EXPECT_EQ(experts->matrices, 3u * 4 * 3);
}

// A small model of each family, its headers written from expected_tensors, to be damaged one tensor at a time.
class RecogniseTest : public TemporaryFolder {
 protected:
  struct Stored {
    std::string dtype;
    std::vector<int64_t> shape;
  };
  using Stock = std::map<std::string, Stored>;

  static Json small_config(const std::string& family) {
    Json config = read_json(source_folder() / "models/demo-flash/config.json");
    config["model_type"] = family;
    config["text_config"]["num_hidden_layers"] = 2;
    config["text_config"]["layer_types"] = {"linear_attention", "full_attention"};
    config["text_config"]["num_experts"] = 2;
    config["text_config"]["intermediate_size"] = 192;
    config.erase("quantization_config");
    return config;
  }

  static Stock stock_of(const Json& config, const Form& form) {
    Stock stock;
    for (const ExpectedTensor& tensor : expected_tensors(config, form, "config")) {
      stock[tensor.name] = {std::string(dtype_name(tensor.dtypes.first())), tensor.shapes.front()};
    }
    return stock;
  }

  Recognised recognise_stock(const Json& config, const Stock& stock) {
    std::string header;
    uint64_t end = 0;
    for (const auto& [name, stored] : stock) {
      const std::optional<Dtype> dtype = dtype_from_name(stored.dtype);
      if (!dtype) throw std::logic_error("a test names an unknown dtype");
      uint64_t bytes = static_cast<uint64_t>(dtype_bits(*dtype)) / 8;
      for (const int64_t extent : stored.shape) bytes *= static_cast<uint64_t>(extent);
      header += (header.empty() ? "{" : ",") + entry(name, stored.dtype, stored.shape, end, end + bytes);
      end += bytes;
    }
    header += "}";
    write_bytes(folder_ / "model.safetensors", file_bytes(header, ""));
    std::filesystem::resize_file(folder_ / "model.safetensors", 8 + header.size() + end);
    base::write_text(folder_ / "config.json", config.dump());
    return recognise(Checkpoint::open(folder_));
  }

  std::string refused(const Json& config, const Stock& stock) {
    return refusal([&] { (void)recognise_stock(config, stock); });
  }

  static constexpr const char* kGate = "model.language_model.layers.1.mlp.experts.1.gate_proj";
};

TEST_F(RecogniseTest, KnowsEachFamilyInEachPublishedForm) {
  for (const char* family : {"qwen3_5", "qwen3_5_moe", "qwen4_exp"}) {
    const Json config = small_config(family);
    for (const Form& form : {kFormBf16, kFormQwenFp8, kFormNvfp4}) {
      const Recognised found = recognise_stock(config, stock_of(config, form));
      EXPECT_EQ(found.family, family);
      EXPECT_TRUE(found.has_draft_head);
      EXPECT_EQ(found.has_input_scales, form.experts.format == Format::kNvfp4Modelopt && found.family != "qwen3_5");
    }
  }
}

TEST_F(RecogniseTest, NamesTheMissingTensor) {
  const Json config = small_config("qwen4_exp");
  for (const char* name :
       {"model.language_model.embed_tokens.weight", "model.language_model.layers.0.linear_attn.A_log",
        "model.language_model.layers.0.mlp.experts.1.down_proj.weight_scale_2",
        "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight",
        "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale", "mtp.fc_hidden.weight",
        "mtp.layers.0.mlp.experts.0.up_proj.weight_scale_inv"}) {
    Stock stock = stock_of(config, kFormNvfp4);
    ASSERT_EQ(stock.erase(name), 1u) << name;
    EXPECT_THAT(refused(config, stock),
                AllOf(HasSubstr(folder_.string()), HasSubstr(fmt::format("lacks the tensor {}", name))));
  }
}

TEST_F(RecogniseTest, NamesTheTensorOfTheWrongShapeOrType) {
  const Json config = small_config("qwen4_exp");
  const auto changed = [&](const std::string& name, Stored stored) {
    Stock stock = stock_of(config, kFormNvfp4);
    EXPECT_TRUE(stock.contains(name)) << name;
    stock[name] = std::move(stored);
    const std::string message = refused(config, stock);
    EXPECT_THAT(message, AllOf(HasSubstr("model.safetensors: tensor " + name + " is ")));
    return message;
  };
  EXPECT_THAT(changed("lm_head.weight", {"BF16", {256, 4096}}),
              HasSubstr("is BF16 [256, 4096], but BF16 [4096, 256] is expected"));
  EXPECT_THAT(changed("lm_head.weight", {"I32", {4096, 256}}),
              HasSubstr("no known number format of a matrix has this dtype"));
  EXPECT_THAT(changed("model.language_model.layers.0.linear_attn.A_log", {"I64", {6}}),
              HasSubstr("is I64 [6], but F16 or BF16 or F32 [6] is expected"));
  EXPECT_THAT(changed(std::string(kGate) + ".weight", {"U8", {64, 64}}), HasSubstr("U8 [64, 128] is expected"));
  EXPECT_THAT(changed(std::string(kGate) + ".weight_scale", {"F8_E4M3", {64, 8}}), HasSubstr("F8_E4M3 [64, 16]"));
  EXPECT_THAT(changed(std::string(kGate) + ".weight_scale_2", {"F32", {2}}), HasSubstr("F32 [] is expected"));
  const std::string table = "model.language_model.layers.1.ple.ple_embedding.";
  EXPECT_THAT(changed(table + "layer_multipliers", {"F32", {3}}), HasSubstr("I64 [3] is expected"));
  EXPECT_THAT(changed(table + "ngram_embedding.shard_0.weight", {"U8", {8256, 8}}),
              HasSubstr("[8256, 16] is expected"));
  EXPECT_THAT(changed(table + "ngram_embedding.shard_3.weight", {"BF16", {8256, 16}}), HasSubstr("F8_E4M3 [8256, 16]"));
}

TEST_F(RecogniseTest, NamesTheTensorThatIsTooMuch) {
  const Json config = small_config("qwen4_exp");
  Stock stock = stock_of(config, kFormBf16);
  stock["model.language_model.layers.2.mlp.gate.weight"] = {"BF16", {2, 256}};
  stock["zzz"] = {"BF16", {1}};
  EXPECT_THAT(
      refused(config, stock),
      AllOf(HasSubstr("model.safetensors: holds tensor model.language_model.layers.2.mlp.gate.weight (BF16 [2, 256])"),
            HasSubstr("which no qwen4_exp model with this config has, and 1 more such")));
}

TEST_F(RecogniseTest, ADraftHeadMayBeAbsentAsAWholeOnly) {
  const Json config = small_config("qwen3_5_moe");
  Stock stock = stock_of(config, kFormBf16);
  const uint64_t whole = recognise_stock(config, stock).parameters;
  std::erase_if(stock, [](const auto& item) { return item.first.starts_with("mtp."); });
  const Recognised found = recognise_stock(config, stock);
  EXPECT_FALSE(found.has_draft_head);
  EXPECT_LT(found.parameters, whole);
  stock["mtp.norm.weight"] = {"BF16", {256}};
  EXPECT_THAT(refused(config, stock), HasSubstr("lacks the tensor mtp."));
}

TEST_F(RecogniseTest, AVisionTowerMayBeAbsentAsAWholeOnly) {
  Json config = small_config("qwen3_5");
  config["language_model_only"] = false;
  config["vision_config"] = flash_next_config()["vision_config"];
  config["vision_config"]["depth"] = 1;
  Stock stock = stock_of(config, kFormBf16);
  EXPECT_TRUE(recognise_stock(config, stock).has_vision);
  Stock damaged = stock;
  damaged.erase("model.visual.blocks.0.attn.qkv.bias");
  EXPECT_THAT(refused(config, damaged), HasSubstr("lacks the tensor model.visual.blocks.0.attn.qkv.bias"));
  std::erase_if(stock, [](const auto& item) { return item.first.starts_with("model.visual."); });
  EXPECT_FALSE(recognise_stock(config, stock).has_vision);
}

TEST_F(RecogniseTest, TiedEmbeddingsHaveNoHead) {
  Json config = small_config("qwen3_5");
  config["tie_word_embeddings"] = true;
  Stock stock = stock_of(config, kFormBf16);
  EXPECT_FALSE(stock.contains("lm_head.weight"));
  EXPECT_EQ(recognise_stock(config, stock).family, "qwen3_5");
}

TEST_F(RecogniseTest, KnowsTheOtherFormsOfAMatrix) {
  Json config = small_config("qwen3_5");
  const std::string up = "model.language_model.layers.0.mlp.up_proj";  // [192, 256]
  const auto form_of = [&](const Stock& parts) {
    Stock stock = stock_of(config, kFormBf16);
    stock.erase(up + ".weight");
    for (const auto& [suffix, stored] : parts) stock[up + suffix] = stored;
    for (const GroupFormat& entry : recognise_stock(config, stock).groups) {
      if (entry.group == Group::kMlp && entry.format.format != Format::kBF16) return entry.format;
    }
    return MatrixFormat{};
  };
  const Stored codes = {"F8_E4M3", {192, 256}};
  EXPECT_EQ(form_of({{".weight", codes}, {".weight_scale", {"F32", {}}}, {".input_scale", {"F32", {}}}}),
            MatrixFormat{Format::kFp8Tensor});
  EXPECT_EQ(form_of({{".weight", codes}, {".weight_scale", {"BF16", {192, 1}}}}), MatrixFormat{Format::kFp8Row});
  EXPECT_EQ(form_of({{".weight", codes}, {".weight_scale", {"F32", {2, 2}}}}), MatrixFormat{Format::kFp8BlockModelopt});
  EXPECT_EQ(form_of({{".weight", codes}, {".weight_scale", {"F32", {2, 1, 2, 1}}}}),
            MatrixFormat{Format::kFp8BlockModelopt});
  EXPECT_EQ(form_of({{".weight", codes}, {".weight_scale_inv", {"F32", {2, 2}}}}), MatrixFormat{Format::kFp8Block});
  EXPECT_EQ(form_of({{".weight", {"F32", {192, 256}}}}), MatrixFormat{Format::kF32});
  EXPECT_EQ(form_of({{".weight", {"U8", {192, 128}}},
                     {".weight_scale", {"F8_E4M3", {192, 16}}},
                     {".weight_scale_2", {"F32", {}}}}),
            MatrixFormat{Format::kNvfp4Modelopt});
  EXPECT_THAT(refusal([&] { (void)form_of({{".weight", codes}, {".weight_scale", {"F32", {3, 2}}}}); }),
              HasSubstr("has one scale, one a row or [2, 2] of 128 x 128"));

  config["quantization_config"] = Json::parse(
      R"({"quant_method":"compressed-tensors","format":"pack-quantized",
          "config_groups":{"group_0":{"weights":{"num_bits":3,"type":"int","group_size":128}}}})");
  const auto packed = [&](int64_t columns) {
    return form_of({{".weight_packed", {"I32", {192, columns}}},
                    {".weight_scale", {"BF16", {192, 2}}},
                    {".weight_shape", {"I64", {2}}}});
  };
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 9;
  EXPECT_THAT(refusal([&] { (void)packed(26); }), HasSubstr("packed integers have 2 to 8"));
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "float";
  EXPECT_THAT(refusal([&] { (void)packed(26); }), HasSubstr("names no \"num_bits\""));
  config["quantization_config"]["config_groups"]["group_0"]["weights"] = {{"num_bits", 3}, {"type", "int"}};
  EXPECT_EQ(packed(26), (MatrixFormat{Format::kPackedInt, 3}));
  EXPECT_EQ(packed(24), (MatrixFormat{Format::kPackedIntDense, 3}));
  EXPECT_THAT(refusal([&] { (void)packed(25); }), HasSubstr("no known packing of 256 inputs in 3 bits"));

  config["quantization_config"]["format"] = "nvfp4-pack-quantized";
  const Stock divisor = {{".weight_packed", {"U8", {192, 128}}},
                         {".weight_scale", {"F8_E4M3", {192, 16}}},
                         {".weight_global_scale", {"F32", {1}}},
                         {".input_global_scale", {"F32", {1}}}};
  EXPECT_EQ(form_of(divisor), MatrixFormat{Format::kNvfp4CompressedTensors});
  config["quantization_config"] = Json::parse(R"({"quant_method":"modelopt","quant_algo":"NVFP4"})");
  EXPECT_THAT(refusal([&] { (void)form_of(divisor); }), HasSubstr("is a divisor in compressed-tensors only"));
}

TEST_F(RecogniseTest, RefusesUnknownArchitecturesAndQuantisations) {
  const auto message = [&](const std::function<void(Json&)>& change) {
    Json config = small_config("qwen4_exp");
    change(config);
    return refused(config, {{"x", {"U8", {1}}}});
  };
  EXPECT_THAT(message([](Json& c) { c["model_type"] = "llama"; }),
              AllOf(HasSubstr("config.json: the architecture \"llama\" is not known"), HasSubstr("qwen4_exp")));
  EXPECT_THAT(message([](Json& c) { c["model_type"] = "a\nb"; }), HasSubstr("\"a?b\""));
  EXPECT_THAT(message([](Json& c) { c.erase("model_type"); }), HasSubstr("lacks \"model_type\""));
  EXPECT_THAT(message([](Json& c) { c.erase("text_config"); }), HasSubstr("text_config"));
  const auto quantised = [&](const char* text) {
    return message([text](Json& c) { c["quantization_config"] = Json::parse(text); });
  };
  EXPECT_THAT(quantised(R"({"quant_method":"awq"})"),
              HasSubstr("the quantisation method \"awq\" is not known; known are modelopt"));
  EXPECT_THAT(quantised(R"({"quant_method":"modelopt","quant_algo":"INT4"})"),
              HasSubstr("algorithm \"INT4\" is not known"));
  EXPECT_THAT(quantised(R"({"quant_method":"compressed-tensors","format":"x"})"),
              HasSubstr("format \"x\" is not known"));
  EXPECT_THAT(quantised(R"({"quant_method":"fp8","weight_block_size":[64,64]})"), HasSubstr("weight_block_size"));
  EXPECT_THAT(quantised("[]"), HasSubstr("is not an object"));
}

TEST_F(RecogniseTest, RefusesConfigsThatNoCheckpointHas) {
  const auto message = [&](const char* key, const Json& value) {
    Json config = small_config("qwen4_exp");
    config["text_config"][key] = value;
    const std::string text = refused(config, {{"x", {"U8", {1}}}});
    EXPECT_THAT(text, HasSubstr((folder_ / "config.json").string()));
    return text;
  };
  EXPECT_THAT(message("hidden_size", 0), HasSubstr("\"hidden_size\" is 0, outside 1 to 1048576"));
  EXPECT_THAT(message("hidden_size", -256), HasSubstr("\"hidden_size\" is -256"));
  EXPECT_THAT(message("hidden_size", "256"), HasSubstr("\"hidden_size\" must be a whole number"));
  EXPECT_THAT(message("hidden_size", 1e300), HasSubstr("\"hidden_size\""));
  EXPECT_THAT(message("num_experts", 1 << 30), HasSubstr("outside 1 to 65536"));
  EXPECT_THAT(message("num_hidden_layers", 3), HasSubstr("must list 3 layers"));
  EXPECT_THAT(message("layer_types", {"linear_attention", "mamba"}), HasSubstr("has \"mamba\" for layer 1"));
  EXPECT_THAT(message("ple_layer_ids", {3}), HasSubstr("layers from 1 to 2"));
  EXPECT_THAT(message("ple_layer_ids", {2, 2}), HasSubstr("each once"));
  EXPECT_THAT(message("ple_embed_dim", 250), HasSubstr("can't be cut among 16 heads"));
  EXPECT_THAT(message("split_ngram_parts", 7), HasSubstr("does not divide the table's 33024 rows"));
  EXPECT_THAT(message("mtp_use_dedicated_embeddings", true), HasSubstr("not known"));
}

}  // namespace
}  // namespace tandem::checkpoint
