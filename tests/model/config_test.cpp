#include "model/config.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/file.h"

namespace tandem::model {
namespace {

using testing::HasSubstr;

base::Json demo(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(TANDEM_SOURCE_DIR) / "models" / name / "config.json";
  return base::parse_json(base::read_text(path, 1 << 20), path.string());
}

std::string refusal(const base::Json& json) {
  try {
    (void)Config::from_json(json, "config.json");
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    return error.what();
  }
  return "";
}

TEST(Config, ReadsTheDenseFamily) {
  const Config config = Config::from_json(demo("demo-dense"), "config.json");
  EXPECT_EQ(config.family, Family::kQwen35);
  EXPECT_EQ(config.streams, 1);
  EXPECT_EQ(config.intermediate, 512);
  EXPECT_FALSE(config.moe());
  EXPECT_FALSE(config.sparse());
  EXPECT_FALSE(config.output_gate_sigmoid);
  EXPECT_EQ(config.rotary_dims, 64);
  EXPECT_EQ(config.layer_types,
            (std::vector<LayerType>{LayerType::kLinear, LayerType::kLinear, LayerType::kLinear, LayerType::kFull}));
}

TEST(Config, ReadsTheExperimentalFamily) {
  const Config config = Config::from_json(demo("demo-flash"), "config.json");
  EXPECT_EQ(config.family, Family::kQwen4Exp);
  EXPECT_EQ(config.width(), 4 * 256);
  EXPECT_TRUE(config.output_gate_sigmoid);
  EXPECT_EQ(config.ngram_layers, std::vector<int64_t>{1});  // the file counts from 1
  EXPECT_EQ(config.indexer_budget, 2048);
  EXPECT_EQ(config.mtp_layers, 1);
}

TEST(Config, TakesTheIntervalWhereLayerTypesAreAbsent) {
  base::Json json = demo("demo-dense");
  json["text_config"].erase("layer_types");
  json["text_config"]["num_hidden_layers"] = 8;
  const Config config = Config::from_json(json, "config.json");
  EXPECT_EQ(config.layer_types[3], LayerType::kFull);
  EXPECT_EQ(config.layer_types[4], LayerType::kLinear);
  EXPECT_EQ(config.layer_types[7], LayerType::kFull);
}

TEST(Config, RefusesOtherArchitecturesByName) {
  base::Json json = demo("demo-dense");
  json["model_type"] = "llama";
  EXPECT_THAT(refusal(json), HasSubstr("\"llama\""));
  json.erase("model_type");
  EXPECT_THAT(refusal(json), HasSubstr("model_type"));
  EXPECT_THAT(refusal(base::Json::array()), HasSubstr("not a JSON object"));
}

TEST(Config, RefusesValuesThatNoCheckpointHasAndNamesThem) {
  const std::vector<std::tuple<std::string, base::Json>> cases = {
      {"hidden_size", 0},
      {"hidden_size", 250},
      {"hidden_size", "256"},
      {"num_hidden_layers", -1},
      {"vocab_size", 1e12},
      {"head_dim", 100},
      {"num_attention_heads", 3},
      {"linear_key_head_dim", 512},
      {"linear_num_value_heads", 5},
      {"num_experts_per_tok", 25},
      {"indexer_compress_ratio", 0},
      {"indexer_budget", 2047},
      {"ngram_size", 4},
      {"hc_count", 0},
      {"output_gate_type", "tanh"},
      {"hidden_act", "gelu"},
      {"layer_types", base::Json::array({"full_attention"})},
      {"ple_layer_ids", base::Json::array({9})},
  };
  for (const auto& [key, value] : cases) {
    base::Json json = demo("demo-flash");
    json["text_config"][key] = value;
    EXPECT_THAT(refusal(json), HasSubstr(key)) << value.dump();
  }
}

TEST(Config, RefusesRotaryScalingItDoesNotCompute) {
  base::Json json = demo("demo-flash");
  json["text_config"]["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_THAT(refusal(json), HasSubstr("yarn"));
}

}  // namespace
}  // namespace tandem::model
