// What a conversion can choose: matrices re-encoded as FP8, draft head and vision tower of another checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "artifact/artifact.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint_folder.h"
#include "convert/verify.h"
#include "numeric/bf16.h"
#include "numeric/fp8_row.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using artifact::Artifact;
using artifact::Encoding;
using ::testing::HasSubstr;
using namespace tandem::testing;

class Choices : public ::testing::Test {
 protected:
  // demo-dense with the tensors whose names the filter keeps.
  fs::path part_of_demo(const std::string& name, const std::function<bool(const std::string&)>& keep) {
    const fs::path folder = folder_ / name;
    copy_folder(demo_dense(), folder);
    const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(demo_dense());
    std::vector<std::vector<std::byte>> data;
    std::vector<checkpoint::TensorData> tensors;
    data.reserve(source.tensors().size());
    for (const checkpoint::Tensor& tensor : source.tensors()) {
      if (!keep(tensor.name)) continue;
      data.push_back(source.read(tensor));
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, data.back()});
    }
    checkpoint::write_safetensors(folder / "model.safetensors", tensors);
    return folder;
  }
  static bool is_draft(const std::string& name) { return name.starts_with("mtp."); }

  TempFolder folder_;
  fs::path out_ = folder_ / "model.tandem";
};

Options fp8_row() {
  Options options = quiet_options();
  options.dense = DensePolicy::kFp8Row;
  return options;
}

TEST_F(Choices, Fp8RowReencodesProjectionsAndNothingThatSteers) {
  convert(demo_flash(), out_, fp8_row());
  const Artifact artifact = Artifact::open(out_);
  const std::string layers = "model.language_model.layers.";
  for (const std::string& module :
       {std::string("lm_head"), layers + "3.self_attn.q_proj", layers + "0.linear_attn.in_proj_qkv",
        layers + "0.linear_attn.out_proj", layers + "0.mlp.shared_expert.up_proj",
        std::string("mtp.layers.0.self_attn.o_proj"), std::string("mtp.fc_hidden")}) {
    EXPECT_EQ(artifact.at(module + ".weight").encoding, Encoding::kF8E4M3) << module;
    EXPECT_EQ(artifact.at(module + ".weight_scale").encoding, Encoding::kF32) << module;
  }
  for (const artifact::Object& object : artifact.objects()) {
    const auto has = [&](const char* part) { return object.name.find(part) != std::string::npos; };
    const bool steers = has("hyper_connection") || has("indexer") || has("mlp.gate.") || has("shared_expert_gate") ||
                        has("norm") || has("conv1d") || has(".ple.key_proj") || has(".ple.value_proj") ||
                        has("in_proj_a") || has("in_proj_b") || has("embed_tokens");
    if (steers) {
      EXPECT_NE(object.encoding, Encoding::kF8E4M3) << object.name;
    }
  }
  EXPECT_EQ(artifact.provenance()["recipe"], "dense-fp8-row");
  EXPECT_EQ(artifact.provenance()["choices"]["dense"], "fp8-row");
}

TEST_F(Choices, Fp8RowHoldsTheCodesOfTheScalarDefinition) {
  convert(demo_dense(), out_, fp8_row());
  const Artifact artifact = Artifact::open(out_);
  const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(demo_dense());
  const std::string name = "model.language_model.layers.3.self_attn.k_proj.weight";
  const std::vector<std::byte> bits = source.read(source.at(name));
  std::vector<float> weights(bits.size() / 2);
  for (size_t i = 0; i < weights.size(); ++i) {
    uint16_t value = 0;
    std::memcpy(&value, bits.data() + 2 * i, 2);
    weights[i] = numeric::bf16_to_float(value);
  }
  std::vector<uint8_t> codes(weights.size());
  std::vector<float> scales(512);
  numeric::fp8_row_encode(weights, 512, 256, codes, scales);
  const auto as_bytes = [](const auto& values) {
    const auto span = std::as_bytes(std::span(values));
    return std::vector<std::byte>(span.begin(), span.end());
  };
  EXPECT_EQ(artifact.read(artifact.at(name)), as_bytes(codes));
  EXPECT_EQ(artifact.read(artifact.at(name + "_scale")), as_bytes(scales));
}

TEST_F(Choices, VerifyingMakesReencodedMatricesAgain) {
  copy_folder(demo_dense(), folder_ / "source");
  convert(folder_ / "source", out_, fp8_row());
  const Artifact artifact = Artifact::open(out_);
  const Verification found = verify(artifact, folder_ / "source", true);
  EXPECT_THAT(found.faults, ::testing::IsEmpty());
  // 3 DeltaNet layers of 3 + 3, one attention layer of 4 + 3, the draft head's 1 + 4 + 3, lm_head.
  EXPECT_EQ(found.reencoded, 34u);
  EXPECT_EQ(found.tensors + found.reencoded, checkpoint::Checkpoint::open(demo_dense()).tensors().size());
  overwrite_tensor(folder_ / "source", "lm_head.weight", 1001, "\x45");
  EXPECT_THAT(verify(artifact, folder_ / "source", true).faults, ::testing::Contains(HasSubstr("lm_head.weight")));
}

TEST_F(Choices, AWeightThatIsNoNumberIsNotReencoded) {
  copy_folder(demo_dense(), folder_ / "source");
  overwrite_tensor(folder_ / "source", "lm_head.weight", 2 * 256 * 3 + 2 * 5, std::string_view("\x80\x7f", 2));
  EXPECT_THAT(error_of([&] { convert(folder_ / "source", out_, fp8_row()); }),
              HasSubstr("lm_head.weight: is inf at [3, 5] and cannot be re-encoded"));
}

TEST_F(Choices, ADraftHeadComesFromAnotherCheckpoint) {
  SourceFolders source = part_of_demo("target", [](const std::string& name) { return !is_draft(name); });
  source.mtp_from = demo_dense();
  convert(source, out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  convert(demo_dense(), folder_ / "whole.tandem", quiet_options());
  const Artifact whole = Artifact::open(folder_ / "whole.tandem");
  ASSERT_EQ(artifact.objects().size(), whole.objects().size());
  for (const artifact::Object& object : whole.objects()) {
    EXPECT_EQ(artifact.at(object.name).xxh3_128, object.xxh3_128) << object.name;
  }
  const Verification found = verify(artifact, source, true);
  EXPECT_THAT(found.faults, ::testing::IsEmpty());
  EXPECT_TRUE(artifact.provenance()["choices"].contains("mtp-from"));
  std::vector<std::string> files;
  for (const base::Json& file : artifact.provenance()["source"]["files"]) files.push_back(file["name"]);
  EXPECT_THAT(files, ::testing::IsSupersetOf({"model.safetensors", "mtp-from/model.safetensors"}));
  EXPECT_THAT(error_of([&] { verify(artifact, source.base, true); }), HasSubstr("was made with --mtp-from"));
  EXPECT_THAT(error_of([&] { verify(whole, source, true); }), HasSubstr("was made without --mtp-from"));
}

TEST_F(Choices, ConsumingLeavesTheOtherCheckpointAlone) {
  SourceFolders source = part_of_demo("target", [](const std::string& name) { return !is_draft(name); });
  source.mtp_from = part_of_demo("draft", is_draft);
  Options options = quiet_options();
  options.consume = true;
  EXPECT_EQ(convert(source, out_, options).consumed_shards, 1u);
  EXPECT_FALSE(fs::exists(source.base / "model.safetensors"));
  EXPECT_TRUE(fs::exists(source.mtp_from / "model.safetensors"));
}

TEST_F(Choices, WhatDoesNotFitIsRefused) {
  SourceFolders twice = demo_dense();
  twice.mtp_from = demo_dense();
  EXPECT_THAT(error_of([&] { convert(twice, out_, quiet_options()); }),
              HasSubstr("itself; nothing named mtp.* can be taken from"));
  SourceFolders without = demo_dense();
  without.vision_from = demo_dense();
  EXPECT_THAT(error_of([&] { convert(without, out_, quiet_options()); }),
              HasSubstr("has no tensors named model.visual.*"));
  EXPECT_FALSE(fs::exists(out_));
}

}  // namespace
}  // namespace tandem::convert
