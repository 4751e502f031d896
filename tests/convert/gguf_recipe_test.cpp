// Conversions that read GGUF files: routed experts taken over as they are, and whole models.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "artifact/artifact.h"
#include "context/sequence.h"
#include "convert/verify.h"
#include "gguf_of_checkpoint.h"
#include "numeric/bf16.h"
#include "python_reader.h"
#include "synth/write.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using artifact::Artifact;
using artifact::Encoding;
using checkpoint::Checkpoint;
using numeric::ExpertFormat;
using numeric::GgmlType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace tandem::testing;

const std::string kLayers = "model.language_model.layers.";

std::vector<float> logits_of(const fs::path& path, const model::LoadOptions& options = {}) {
  const Artifact artifact = Artifact::open(path);
  base::WorkerPool pool(1);
  const auto model = model::Model::load(artifact, device::host(), pool, options);
  context::SequencePool sequences(*model, 128, 1);
  auto sequence = sequences.create();
  const std::vector<int32_t> tokens = {3, 100, 14, 15, 92, 65, 35, 89, 79};
  model::ForwardOutput output;
  model::ForwardRequest request;
  request.logits = static_cast<int64_t>(tokens.size());
  sequence.forward(tokens, request, output);
  return output.logits;
}

// Layer by layer another format of gate and up; down's 64 inputs are whole units of one alone.
GgmlType type_of(const std::string& tensor) {
  if (tensor.find("down") != std::string::npos) return GgmlType::kIq4nl;
  static constexpr GgmlType kTypes[] = {GgmlType::kIq2s, GgmlType::kIq3xxs, GgmlType::kIq3s, GgmlType::kIq4xs,
                                        GgmlType::kQ2_0};
  const size_t layer = static_cast<size_t>(tensor.at(4) - '0');
  return kTypes[(layer + (tensor.find("up") != std::string::npos ? 1 : 0)) % 5];
}

std::optional<GgufBlocks> blocks_of_experts(const std::string& name, const std::vector<int64_t>& shape) {
  const GgmlType type = type_of(name);
  return GgufBlocks{type, random_blocks(type, shape[0] * shape[1] * shape[2], std::hash<std::string>()(name))};
}

class GgufExperts : public PythonReader {
 protected:
  void SetUp() override {}  // most do without Python

  SourceFolders with_experts(GgufOptions options = {}) {
    options.only_experts = true;
    if (!options.blocks) options.blocks = blocks_of_experts;
    write_gguf(Checkpoint::open(demo_flash()), "qwen4exp", gguf_, options);
    SourceFolders source = demo_flash();
    source.experts_from = gguf_;
    return source;
  }

  fs::path gguf_ = folder_ / "experts.gguf";
};

TEST_F(GgufExperts, AreTakenAsTheyAre) {
  const SourceFolders source = with_experts();
  const Result result = convert(source, out_, quiet_options());
  EXPECT_THAT(result.model, HasSubstr("experts IQ3_XXS and IQ4_NL and IQ3_S and IQ2_S and IQ4_XS and Q2_0"));
  const Artifact artifact = Artifact::open(out_);
  const artifact::Object& object = artifact.at(kLayers + "2.mlp.experts");
  EXPECT_EQ(object.encoding, Encoding::kExpertsMixed);
  EXPECT_THAT(object.formats, ElementsAre(ExpertFormat::kIq3s, ExpertFormat::kIq4xs, ExpertFormat::kIq4nl));
  EXPECT_EQ(artifact.find(kLayers + "2.mlp.experts.scalars"), nullptr);
  // The draft head keeps its own.
  EXPECT_EQ(artifact.at("mtp.layers.0.mlp.experts").encoding, Encoding::kExpertsFp8Block);
  const Verification found = verify(artifact, source, true);
  EXPECT_THAT(found.faults, IsEmpty());
  EXPECT_GT(found.tensor_bytes, artifact.at(kLayers + "2.mlp.experts").bytes);
  EXPECT_TRUE(artifact.provenance()["choices"].contains("experts-from"));
  std::vector<std::string> files;
  for (const base::Json& file : artifact.provenance()["source"]["files"]) files.push_back(file["name"]);
  EXPECT_THAT(files, ::testing::Contains("experts-from/experts.gguf"));
  EXPECT_THAT(error_of([&] { verify(artifact, source.base, true); }), HasSubstr("was made with --experts-from"));
  for (const float logit : logits_of(out_)) ASSERT_TRUE(std::isfinite(logit));
}

TEST_F(GgufExperts, AreReadBackByThePythonReader) {
  require_python();
  if (IsSkipped()) return;
  convert(with_experts(), out_, quiet_options());
  std::vector<std::string> command = {"tensor"};
  std::string expected;
  for (const int layer : {0, 1, 2, 3}) {
    for (const char* projection : {"gate", "up", "down"}) {
      const std::string name = fmt::format("blk.{}.ffn_{}_exps.weight", layer, projection);
      const std::string all = blocks_of_experts(name, {24, 64, 256})->data;
      const size_t each = all.size() / 24;
      command.push_back(fmt::format("{}{}.mlp.experts.17.{}_proj.weight", kLayers, layer, projection));
      expected += all.substr(17 * each, each);
    }
  }
  ASSERT_EQ(read(command), 0);
  EXPECT_TRUE(output_ == expected);
}

TEST_F(GgufExperts, JoinedGateAndUpAreTakenApart) {
  const auto blocks = [](const std::string& name, const std::vector<int64_t>& shape) {
    const GgmlType type = name.find("down") == std::string::npos ? GgmlType::kIq3xxs : GgmlType::kIq4nl;
    // Expert by expert gate's rows, then up's.
    std::string data;
    const bool joined = name.find("gate_up") != std::string::npos;
    for (int64_t e = 0; e < shape[0]; ++e) {
      for (const char* part : joined ? std::vector{"gate", "up"}
                                     : std::vector{name.find("gate") != std::string::npos ? "gate"
                                                   : name.find("up") != std::string::npos ? "up"
                                                                                          : "down"}) {
        data += random_blocks(type, (joined ? shape[1] / 2 : shape[1]) * shape[2],
                              std::hash<std::string>()(part) + static_cast<uint64_t>(e));
      }
    }
    return std::optional(GgufBlocks{type, data});
  };
  GgufOptions options;
  options.blocks = blocks;
  convert(with_experts(options), out_, quiet_options());
  options.joined_gate_up = true;
  convert(with_experts(options), folder_ / "joined.tandem", quiet_options());
  const Artifact apart = Artifact::open(out_);
  const Artifact joined = Artifact::open(folder_ / "joined.tandem");
  for (const artifact::Object& object : apart.objects()) {
    EXPECT_EQ(joined.at(object.name).xxh3_128, object.xxh3_128) << object.name;
  }
}

TEST_F(GgufExperts, BadFilesAreRefusedWithTheirTensor) {
  GgufOptions options;
  options.blocks = [](const std::string& name, const std::vector<int64_t>& shape) {
    auto blocks = blocks_of_experts(name, shape);
    if (name == "blk.1.ffn_up_exps.weight") {
      const int64_t block = numeric::ggml_type(blocks->type).block_bytes;
      const uint16_t infinite = 0x7c00;
      std::memcpy(blocks->data.data() + (5 * 64 + 3) * block, &infinite, 2);  // a block is a row of 256
    }
    return blocks;
  };
  SourceFolders source = with_experts(options);
  EXPECT_THAT(error_of([&] { convert(source, out_, quiet_options()); }),
              HasSubstr("layers.1.mlp.experts.up_proj.stack: expert 5, row 3, block 0 of IQ3_S [24, 64, 256] has a "
                        "scale that is not finite"));
  EXPECT_FALSE(fs::exists(out_));
  // 64 inputs are half a unit of Q2_0.
  options.blocks = [](const std::string& name, const std::vector<int64_t>& shape) {
    auto blocks = blocks_of_experts(name, shape);
    if (name.find("down") == std::string::npos) return blocks;
    return std::optional(
        GgufBlocks{GgmlType::kQ2_0, random_blocks(GgmlType::kQ2_0, shape[0] * shape[1] * shape[2], 1)});
  };
  source = with_experts(options);
  EXPECT_THAT(error_of([&] { convert(source, out_, quiet_options()); }),
              HasSubstr("which experts_mixed cannot hold in iq2_s, iq3_xxs and q2_0 (rows must be multiples of 16"));
  SourceFolders dense = demo_dense();
  dense.experts_from = gguf_;
  EXPECT_THAT(error_of([&] { convert(dense, out_, quiet_options()); }), HasSubstr("of which"));
  options.blocks = [](const std::string&, const std::vector<int64_t>& shape) {
    return std::optional(
        GgufBlocks{GgmlType::kBF16, std::string(static_cast<size_t>(2 * shape[0] * shape[1] * shape[2]), '\0')});
  };
  source = with_experts(options);
  EXPECT_THAT(error_of([&] { convert(source, out_, quiet_options()); }),
              HasSubstr("a type that experts can't keep; they can keep IQ3_XXS, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, Q2_0"));
  source.experts_from = demo_flash() / "config.json";
  EXPECT_THAT(error_of([&] { convert(source, out_, quiet_options()); }), HasSubstr("config.json"));
}

class WholeGguf : public ::testing::Test {
 protected:
  SourceFolders gguf_of(const fs::path& folder, const std::string& architecture, const GgufOptions& options = {}) {
    write_gguf(Checkpoint::open(folder), architecture, folder_ / "model.gguf", options);
    SourceFolders source = folder_ / "model.gguf";
    source.texts_from = folder;
    return source;
  }
  // Every object of an artifact of the folder is there with the same values: those of matrices to the bit.
  void expect_same(const fs::path& folder) {
    convert(folder, folder_ / "folder.tandem", quiet_options());
    const Artifact expected = Artifact::open(folder_ / "folder.tandem");
    const Artifact found = Artifact::open(out_);
    ASSERT_EQ(found.objects().size(), expected.objects().size());
    for (const artifact::Object& object : expected.objects()) {
      const artifact::Object& other = found.at(object.name);
      EXPECT_EQ(other.shape, object.shape) << object.name;
      if (other.encoding == object.encoding) {
        if (object.encoding == Encoding::kF32) {
          expect_close(values(expected, object), values(found, other), object.name);
        } else {
          EXPECT_EQ(other.xxh3_128, object.xxh3_128) << object.name;
        }
        continue;
      }
      EXPECT_EQ(other.encoding, Encoding::kF32) << object.name;
      expect_close(values(expected, object), values(found, other), object.name);
    }
  }
  // 1 + w and exp(w) in FP32 and back.
  static void expect_close(const std::vector<float>& a, const std::vector<float>& b, const std::string& name) {
    ASSERT_EQ(a.size(), b.size()) << name;
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2.5e-7 * std::max(1.0f, std::fabs(a[i]))) << name;
  }
  static std::vector<float> values(const Artifact& artifact, const artifact::Object& object) {
    const std::vector<std::byte> bytes = artifact.read(object);
    std::vector<float> out;
    if (object.encoding == Encoding::kF32) {
      out.resize(bytes.size() / 4);
      std::memcpy(out.data(), bytes.data(), bytes.size());
    } else {
      EXPECT_EQ(object.encoding, Encoding::kBF16);
      for (size_t i = 0; i < bytes.size(); i += 2) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + i, 2);
        out.push_back(numeric::bf16_to_float(bits));
      }
    }
    return out;
  }
  void expect_close_logits() {
    const std::vector<float> expected = logits_of(folder_ / "folder.tandem");
    const std::vector<float> found = logits_of(out_);
    ASSERT_EQ(expected.size(), found.size());
    float largest = 0;
    for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(expected[i], found[i], 1e-4f * largest);
  }

  TempFolder folder_;
  fs::path out_ = folder_ / "model.tandem";
};

TEST_F(WholeGguf, Qwen35IsTheModelThatItWasMadeFrom) {
  const SourceFolders source = gguf_of(demo_dense(), "qwen35");
  convert(source, out_, quiet_options());
  expect_same(demo_dense());
  expect_close_logits();
  const Artifact artifact = Artifact::open(out_);
  EXPECT_THAT(verify(artifact, source, true).faults, IsEmpty());
  EXPECT_TRUE(artifact.provenance()["choices"].contains("texts-from"));
}

TEST_F(WholeGguf, Qwen4ExpIsTheModelThatItWasMadeFrom) {
  convert(gguf_of(qsa_random(), "qwen4exp"), out_, quiet_options());
  expect_same(qsa_random());
  expect_close_logits();
  GgufOptions options;
  options.joined_gate_up = true;
  convert(gguf_of(qsa_random(), "qwen4exp", options), folder_ / "joined.tandem", quiet_options());
  const Artifact joined = Artifact::open(folder_ / "joined.tandem");
  const Artifact apart = Artifact::open(out_);
  for (const artifact::Object& object : apart.objects()) EXPECT_EQ(joined.at(object.name).xxh3_128, object.xxh3_128);
}

TEST_F(WholeGguf, Qwen35MoeIsTheModelThatItWasMadeFrom) {
  const fs::path moe = fs::path(TANDEM_GOLDEN_DIR) / "moe-random";
  convert(gguf_of(moe, "qwen35moe"), out_, quiet_options());
  expect_same(moe);
  expect_close_logits();
}

TEST_F(WholeGguf, SyntheticModelsAreTheModelsThatTheyWereMadeFrom) {
  for (const auto& [form, architecture] : {std::pair("flash-bf16", "qwen4exp"), std::pair("27b-bf16", "qwen35")}) {
    synth::Settings settings;
    settings.form = form;
    synth::WriteOptions quiet;
    quiet.quiet = quiet.force = true;
    synth::write_checkpoint(synth::Model(settings), folder_ / "synthetic", quiet);
    Options forced = quiet_options();
    forced.force = true;
    convert(gguf_of(folder_ / "synthetic", architecture), out_, forced);
    fs::remove_all(folder_ / "folder.tandem");
    expect_same(folder_ / "synthetic");
    expect_close_logits();
  }
}

// Blocks whose weights are BF16 numbers, and the same weights as BF16: with activations as they are, the same logits.
TEST_F(WholeGguf, ExpertsInBlocksComputeWhatTheirDecodedWeightsDo) {
  const auto blocks = [](const std::string& name, const std::vector<int64_t>& shape) -> std::optional<GgufBlocks> {
    if (!name.ends_with("_exps.weight")) return std::nullopt;
    const int64_t elements = shape[0] * shape[1] * shape[2];
    return GgufBlocks{GgmlType::kIq4nl,
                      random_blocks(GgmlType::kIq4nl, elements, std::hash<std::string>()(name), true)};
  };
  const auto decoded = [&](const std::string& name, const std::vector<int64_t>& shape) -> std::optional<GgufBlocks> {
    const auto made = blocks(name, shape);
    if (!made) return std::nullopt;
    std::vector<float> values(static_cast<size_t>(shape[0] * shape[1] * shape[2]));
    numeric::ggml_decode(made->type, std::as_bytes(std::span(made->data)), values);
    std::string bits(values.size() * 2, '\0');
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bf16 = numeric::bf16_from_float(values[i]);
      EXPECT_EQ(numeric::bf16_to_float(bf16), values[i]);
      std::memcpy(bits.data() + 2 * i, &bf16, 2);
    }
    return GgufBlocks{GgmlType::kBF16, bits};
  };
  GgufOptions options;
  options.blocks = blocks;
  convert(gguf_of(demo_flash(), "qwen4exp", options), out_, quiet_options());
  options.blocks = decoded;
  convert(gguf_of(demo_flash(), "qwen4exp", options), folder_ / "decoded.tandem", quiet_options());
  const std::string layer = kLayers + "1.mlp.experts";
  EXPECT_EQ(Artifact::open(out_).at(layer).encoding, Encoding::kExpertsMixed);
  EXPECT_EQ(Artifact::open(folder_ / "decoded.tandem").at(layer).encoding, Encoding::kExpertsBF16);
  model::LoadOptions plain;
  plain.activations = model::Activations::kF32;
  plain.expert_mode = model::ExpertMode::kW4A16;
  const std::vector<float> logits = logits_of(out_, plain);
  EXPECT_EQ(logits, logits_of(folder_ / "decoded.tandem", plain));
  EXPECT_NE(logits, logits_of(out_));  // 8-bit activations
}

// Blocks of dense matrices become BF16; experts keep theirs where they may and become BF16 elsewhere.
TEST_F(WholeGguf, BlocksAreDecodedWhereThereAreNoKernels) {
  const auto type_of_tensor = [](const std::string& name) -> std::optional<GgmlType> {
    if (name.find("gate_exps") != std::string::npos) return GgmlType::kIq3xxs;
    if (name.find("up_exps") != std::string::npos) return GgmlType::kQ6K;
    if (name.find("down_exps") != std::string::npos) return GgmlType::kQ8_0;
    if (name == "blk.3.attn_q.weight" || name == "output.weight") return GgmlType::kQ4K;
    if (name == "blk.0.ssm_out.weight" || name == "blk.0.attn_qkv.weight") return GgmlType::kQ8_0;
    return std::nullopt;
  };
  std::map<std::string, GgufBlocks> made;
  GgufOptions options;
  options.blocks = [&](const std::string& name, const std::vector<int64_t>& shape) -> std::optional<GgufBlocks> {
    const auto type = type_of_tensor(name);
    if (!type) return std::nullopt;
    int64_t elements = 1;
    for (const int64_t dimension : shape) elements *= dimension;
    // Q6_K has its scale at the end; one scale in all blocks is good enough there.
    std::string data = random_blocks(*type == GgmlType::kQ6K ? GgmlType::kQ8_0 : *type, elements, made.size());
    if (*type == GgmlType::kQ6K || *type == GgmlType::kQ4K) {
      const auto& traits = numeric::ggml_type(*type);
      data.assign(static_cast<size_t>(elements / traits.block_elements * traits.block_bytes), '\x11');
    }
    made[name] = {*type, data};
    return made[name];
  };
  const SourceFolders source = gguf_of(demo_flash(), "qwen4exp", options);
  convert(source, out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  EXPECT_THAT(artifact.at(kLayers + "0.mlp.experts").formats,
              ElementsAre(ExpertFormat::kIq3xxs, ExpertFormat::kBF16, ExpertFormat::kBF16));
  EXPECT_EQ(artifact.at("lm_head.weight").encoding, Encoding::kBF16);
  const GgufBlocks& head = made.at("output.weight");
  std::vector<float> decoded(4096 * 256);
  numeric::ggml_decode(head.type, std::as_bytes(std::span(head.data)), decoded);
  const std::vector<float> stored = values(artifact, artifact.at("lm_head.weight"));
  for (size_t i = 0; i < stored.size(); ++i) {
    ASSERT_EQ(stored[i], numeric::bf16_to_float(numeric::bf16_from_float(decoded[i]))) << i;
  }
  EXPECT_THAT(verify(artifact, source, true).faults, IsEmpty());
  for (const float logit : logits_of(out_)) ASSERT_TRUE(std::isfinite(logit));
}

// The draft layer's experts in BF16 are re-encoded where that is asked for; the other layers' blocks are kept.
TEST_F(WholeGguf, DraftExpertsBecomeNvfp4) {
  GgufOptions options;
  options.blocks = [](const std::string& name, const std::vector<int64_t>& shape) -> std::optional<GgufBlocks> {
    if (!name.ends_with("_exps.weight")) return std::nullopt;
    const auto elements = static_cast<size_t>(shape[0] * shape[1] * shape[2]);
    if (!name.starts_with("blk.4.")) {
      return GgufBlocks{GgmlType::kIq4nl, random_blocks(GgmlType::kIq4nl, static_cast<int64_t>(elements), 1)};
    }
    std::string bits(elements * 2, '\0');
    for (size_t i = 0; i < elements; ++i) {
      const uint16_t bf16 = numeric::bf16_from_float(0.01f * static_cast<float>(i * i % 23) - 0.1f);
      std::memcpy(bits.data() + 2 * i, &bf16, 2);
    }
    return GgufBlocks{GgmlType::kBF16, bits};
  };
  Options choices = quiet_options();
  choices.choices.mtp_experts = MtpExperts::kNvfp4;
  const SourceFolders source = gguf_of(demo_flash(), "qwen4exp", options);
  convert(source, out_, choices);
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.at("mtp.layers.0.mlp.experts").encoding, Encoding::kExpertsNvfp4);
  EXPECT_EQ(artifact.at(kLayers + "0.mlp.experts").encoding, Encoding::kExpertsMixed);
  const Verification found = verify(artifact, source, true);
  EXPECT_THAT(found.faults, IsEmpty());
  EXPECT_EQ(found.reencoded, 3u);
  // The largest weight is -0.1.
  std::vector<float> scales(3);
  artifact.read(artifact.at("mtp.layers.0.mlp.experts.scalars"), 0, std::as_writable_bytes(std::span(scales)));
  EXPECT_THAT(scales, ::testing::Each(::testing::FloatNear(0.1f / 2688, 0.001f / 2688)));
}

TEST_F(WholeGguf, WhatDoesNotFitIsRefused) {
  SourceFolders source = gguf_of(demo_dense(), "qwen35");
  source.texts_from = demo_flash();
  EXPECT_THAT(error_of([&] { convert(source, out_, quiet_options()); }),
              HasSubstr("is a qwen3_5 model, the config tells of qwen4_exp"));
  source.texts_from.clear();
  EXPECT_THAT(error_of([&] { convert(source, out_, quiet_options()); }),
              HasSubstr("--texts-from must name the folder"));
  SourceFolders folder = demo_dense();
  folder.texts_from = demo_dense();
  EXPECT_THAT(error_of([&] { convert(folder, out_, quiet_options()); }), HasSubstr("--texts-from: is for GGUF files"));
  source.texts_from = demo_dense();
  Options options = quiet_options();
  options.consume = true;
  EXPECT_THAT(error_of([&] { convert(source, out_, options); }), HasSubstr("--consume: deletes shards of a folder"));
  EXPECT_FALSE(fs::exists(out_));
}

}  // namespace
}  // namespace tandem::convert
