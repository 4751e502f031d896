#include "convert/gguf_names.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/architecture.h"
#include "gguf_model.h"

namespace tandem::convert {
namespace {

using checkpoint::GgufMetadata;
using checkpoint::GgufType;
using checkpoint::GgufValue;
using checkpoint::Parameter;
using checkpoint::ParameterKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace tandem::testing;

GgufValue u32_value(uint32_t number, bool array) {
  GgufValue value;
  value.is_array = array;
  value.numbers.resize(sizeof number);
  std::memcpy(value.numbers.data(), &number, sizeof number);
  return value;
}

GgufValue text_value(const std::string& text) {
  GgufValue value;
  value.type = GgufType::kString;
  value.strings = {text};
  return value;
}

GgufMetadata metadata_of(const std::string& architecture, const Figures& figures) {
  std::vector<GgufMetadata::Pair> pairs = {{"general.architecture", text_value(architecture)}};
  for (const auto& [key, figure] : figures) {
    pairs.emplace_back(fmt::format("{}.{}", architecture, key), u32_value(figure, is_list(key)));
  }
  return GgufMetadata(std::move(pairs), "m.gguf");
}

GgufModel model_of(const std::string& architecture, const base::Json& config) {
  return read_gguf_model(metadata_of(architecture, gguf_figures(architecture, config)), "m.gguf");
}

// The checkpoint's tensors as pieces name them, with the rows at which pieces of them begin.
std::set<std::pair<std::string, int64_t>> expected_pieces(const base::Json& config, const GgufModel& model) {
  std::set<std::pair<std::string, int64_t>> out;
  for (const Parameter& parameter : checkpoint::read_architecture(config, "config.json").parameters) {
    if (parameter.kind == ParameterKind::kInteger) continue;  // metadata in GGUF
    if (parameter.kind == ParameterKind::kExperts) {
      for (const char* matrix : {"gate", "up", "down"}) {
        out.emplace(parameter.name + ".*." + matrix + "_proj.weight", 0);
      }
    } else if (parameter.kind == ParameterKind::kTable) {
      out.emplace(parameter.name + ".shard_*.weight", 0);
    } else {
      out.emplace(parameter.name + (parameter.kind == ParameterKind::kMatrix ? ".weight" : ""), 0);
    }
    if (parameter.name.ends_with("index_qk_proj")) out.emplace(parameter.name + ".weight", model.index_query_rows);
  }
  return out;
}

void expect_all_parameters(const std::string& architecture, const base::Json& config) {
  const GgufModel model = model_of(architecture, config);
  std::set<std::pair<std::string, int64_t>> seen;
  for (const std::string& tensor : gguf_tensors(model, config)) {
    for (const CheckpointPiece& piece : checkpoint_pieces(model, tensor, "m.gguf")) {
      EXPECT_TRUE(seen.emplace(piece.name, piece.first_row).second) << piece.name;
    }
  }
  EXPECT_EQ(seen, expected_pieces(config, model));
}

TEST(GgufNames, GiveEachParameterOfQwen4ExpOnce) {
  expect_all_parameters("qwen4exp", demo_config("demo-flash"));
}

TEST(GgufNames, GiveEachParameterOfQwen35Once) {
  expect_all_parameters("qwen35", demo_config("demo-dense"));
}

TEST(GgufNames, GiveEachParameterOfQwen35MoeOnce) {
  base::Json config = demo_config("demo-dense");
  config["model_type"] = "qwen3_5_moe";
  for (const char* key : {"num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"}) {
    config["text_config"][key] = 8;
  }
  expect_all_parameters("qwen35moe", config);
}

GgufModel flash_next() {
  base::Json config = demo_config("demo-flash");
  config["text_config"]["num_hidden_layers"] = 48;
  config["text_config"]["linear_num_key_heads"] = 16;
  config["text_config"]["linear_num_value_heads"] = 48;
  return model_of("qwen4exp", config);
}

CheckpointPiece only_piece(const GgufModel& model, const std::string& tensor) {
  const std::vector<CheckpointPiece> pieces = checkpoint_pieces(model, tensor, "m.gguf");
  EXPECT_EQ(pieces.size(), 1u);
  return pieces.at(0);
}

TEST(GgufNames, TheDraftHeadIsTheBlockBehindTheLayers) {
  const GgufModel model = flash_next();
  EXPECT_EQ(only_piece(model, "blk.47.attn_q.weight").name, "model.language_model.layers.47.self_attn.q_proj.weight");
  EXPECT_EQ(only_piece(model, "blk.48.attn_q.weight").name, "mtp.layers.0.self_attn.q_proj.weight");
  const std::vector<CheckpointPiece> halves = checkpoint_pieces(model, "blk.48.nextn.eh_proj.weight", "m.gguf");
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(halves[0].name, "mtp.fc_embedding.weight");
  EXPECT_EQ(halves[0].first_column, 0);
  EXPECT_EQ(halves[1].name, "mtp.fc_hidden.weight");
  EXPECT_EQ(halves[1].first_column, model.hidden);
  EXPECT_EQ(halves[1].columns, model.hidden);
}

TEST(GgufNames, OnlyZeroCentredNormsHoldOnePlus) {
  const GgufModel model = flash_next();
  for (const std::string& tensor : gguf_tensors(model, demo_config("demo-flash"))) {
    const bool norm = tensor.find("norm") != std::string::npos && tensor.find("ssm_norm") == std::string::npos;
    for (const CheckpointPiece& piece : checkpoint_pieces(model, tensor, "m.gguf")) {
      EXPECT_EQ(piece.form, tensor.ends_with("ssm_a") ? GgufForm::kMinusExp
                            : norm                    ? GgufForm::kOnePlus
                                                      : GgufForm::kSame)
          << tensor;
    }
  }
}

TEST(GgufNames, TensorsOfNoSuchModelAreRefused) {
  const GgufModel model = flash_next();
  for (const char* tensor : {"", "blk.", "blk.x.attn_q.weight", "blk.3attn_q.weight", "blk.3.", "blk.3", "blk.-1.ssm_a",
                             "blk.03.ssm_a", "blk.49.attn_q.weight", "blk.3.attn_r.weight", "blk.3.nextn.enorm.weight",
                             "blk.99999999999999999999.ssm_a", "rope_freqs.weight"}) {
    try {
      (void)checkpoint_pieces(model, tensor, "m.gguf");
      ADD_FAILURE() << tensor;
    } catch (const base::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("holds tensor ") + tensor + ", which no qwen4_exp model has"));
    }
  }
}

// llama.cpp's converter: [key head][shared][width] becomes [shared][key head][width].
std::vector<int> tile_heads(const std::vector<int>& rows, int64_t key_heads, int64_t shared, int64_t width) {
  std::vector<int> out;
  for (int64_t j = 0; j < shared; ++j) {
    for (int64_t k = 0; k < key_heads; ++k) {
      for (int64_t i = 0; i < width; ++i) out.push_back(rows[static_cast<size_t>((k * shared + j) * width + i)]);
    }
  }
  return out;
}

void expect_order_undone(const GgufModel& model, const std::string& tensor, int64_t before, int64_t width) {
  const CheckpointPiece piece = only_piece(model, tensor);
  EXPECT_EQ(piece.head_width, width) << tensor;
  EXPECT_EQ(piece.first_head_row, before) << tensor;
  std::vector<int> original(static_cast<size_t>(model.value_heads * width));
  std::iota(original.begin(), original.end(), static_cast<int>(before));
  std::vector<int> stored(static_cast<size_t>(before));
  std::iota(stored.begin(), stored.end(), 0);
  for (const int row : tile_heads(original, model.key_heads, model.value_heads / model.key_heads, width)) {
    stored.push_back(row);
  }
  const std::vector<int64_t> rows = gguf_rows(model, piece, static_cast<int64_t>(stored.size()), "m.gguf");
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(stored[static_cast<size_t>(rows[i])], static_cast<int>(i)) << tensor;
  }
}

TEST(GgufNames, TheOrderOfValueHeadsIsUndone) {
  const GgufModel model = flash_next();
  expect_order_undone(model, "blk.0.attn_qkv.weight", 2 * 16 * 128, 128);
  expect_order_undone(model, "blk.0.ssm_conv1d.weight", 2 * 16 * 128, 128);
  expect_order_undone(model, "blk.0.attn_gate.weight", 0, 128);
  expect_order_undone(model, "blk.0.ssm_out.weight", 0, 128);
  for (const char* tensor : {"blk.0.ssm_a", "blk.0.ssm_dt.bias", "blk.0.ssm_beta.weight", "blk.0.ssm_alpha.weight"}) {
    expect_order_undone(model, tensor, 0, 1);
  }
  EXPECT_EQ(only_piece(model, "blk.0.ssm_out.weight").heads, GgufHeads::kColumns);
  EXPECT_THAT(gguf_rows(model, only_piece(model, "blk.0.ssm_norm.weight"), 3, "m.gguf"), ElementsAre(0, 1, 2));
  // In the tiled order, value head h uses key head h mod 16.
  for (int64_t head = 0; head < 48; ++head) EXPECT_EQ(gguf_value_head(model, head) % 16, head / 3);
  EXPECT_THROW((void)gguf_rows(model, only_piece(model, "blk.0.ssm_a"), 47, "m.gguf"), base::Error);
}

TEST(GgufNames, FormsAreUndone) {
  std::vector<float> norm = {1.0f, 0.75f, 2.0f, 1.0f + 0x1p-7f};
  const std::vector<float> stored = norm;
  undo_gguf_form(GgufForm::kOnePlus, norm, "norm");
  EXPECT_THAT(norm, ElementsAre(0.0f, -0.25f, 1.0f, 0x1p-7f));
  for (size_t i = 0; i < norm.size(); ++i) EXPECT_EQ(1.0f + norm[i], stored[i]);
  std::vector<float> decay = {-1.0f, -std::exp(2.5f), -std::exp(-3.0f)};
  undo_gguf_form(GgufForm::kMinusExp, decay, "ssm_a");
  EXPECT_EQ(decay[0], 0.0f);
  EXPECT_FLOAT_EQ(decay[1], 2.5f);
  EXPECT_FLOAT_EQ(decay[2], -3.0f);
  for (const float bad : {0.0f, 1.0f, -INFINITY, NAN}) {
    std::vector<float> one = {bad};
    EXPECT_THROW(undo_gguf_form(GgufForm::kMinusExp, one, "ssm_a"), base::Error) << bad;
  }
  std::vector<float> infinite = {INFINITY};
  EXPECT_THROW(undo_gguf_form(GgufForm::kOnePlus, infinite, "norm"), base::Error);
  undo_gguf_form(GgufForm::kSame, infinite, "any");
}

TEST(GgufNames, RefusesFiguresThatDoNotFit) {
  const Figures good = {{"block_count", 65},         {"nextn_predict_layers", 1}, {"embedding_length", 5120},
                        {"ssm.group_count", 16},     {"ssm.time_step_rank", 48},  {"ssm.state_size", 128},
                        {"ssm.inner_size", 48 * 128}};
  EXPECT_EQ(read_gguf_model(metadata_of("qwen35", good), "m.gguf").layers, 64);
  const auto refused = [&](const std::string& key, uint32_t value) {
    Figures figures = good;
    figures[key] = value;
    try {
      (void)read_gguf_model(metadata_of("qwen35", figures), "m.gguf");
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("block_count", 0), HasSubstr("m.gguf: qwen35.block_count is 0, outside 1 to 1024"));
  EXPECT_THAT(refused("nextn_predict_layers", 65), HasSubstr("qwen35.nextn_predict_layers is 65, of 65 blocks"));
  EXPECT_THAT(refused("ssm.time_step_rank", 47), HasSubstr("do not fit together"));
  EXPECT_THAT(refused("ssm.inner_size", 6143), HasSubstr("do not fit together"));
  EXPECT_THROW((void)read_gguf_model(metadata_of("llama", good), "m.gguf"), base::Error);
  EXPECT_THROW((void)read_gguf_model(metadata_of("qwen4exp", good), "m.gguf"), base::Error);
}

}  // namespace
}  // namespace tandem::convert
