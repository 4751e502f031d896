// What a conversion can choose: matrices re-encoded as FP8, draft head and vision tower of another checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "artifact/artifact.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint_folder.h"
#include "convert/verify.h"
#include "numeric/bf16.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_row.h"
#include "numeric/nvfp4.h"

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
  options.choices.dense = DensePolicy::kFp8Row;
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

constexpr const char* kDraftExperts = "mtp.layers.0.mlp.experts";

Options mtp_nvfp4() {
  Options options = quiet_options();
  options.choices.mtp_experts = MtpExperts::kNvfp4;
  return options;
}

// A matrix of the demo's draft experts, decoded.
std::vector<float> draft_matrix(const checkpoint::Checkpoint& source, int64_t expert, const char* projection,
                                int64_t rows, int64_t inputs) {
  const std::string name = fmt::format("{}.{}.{}.weight", kDraftExperts, expert, projection);
  const std::vector<std::byte> codes = source.read(source.at(name));
  const std::vector<std::byte> scales = source.read(source.at(name + "_scale_inv"));
  std::vector<float> weights(codes.size());
  numeric::fp8_block_decode({reinterpret_cast<const uint8_t*>(codes.data()), codes.size()},
                            {scales, numeric::Fp8ScaleType::kBF16}, rows, inputs, weights);
  return weights;
}

TEST_F(Choices, DraftExpertsBecomeNvfp4ByTheScalarDefinition) {
  convert(demo_flash(), out_, mtp_nvfp4());
  const Artifact artifact = Artifact::open(out_);
  const artifact::Object& experts = artifact.at(kDraftExperts);
  ASSERT_EQ(experts.encoding, Encoding::kExpertsNvfp4);
  const artifact::Object& scalars = artifact.at(std::string(kDraftExperts) + ".scalars");
  ASSERT_EQ(scalars.shape, (std::vector<int64_t>{experts.shape[0], 3}));
  const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(demo_flash());
  for (const int64_t expert : {int64_t{0}, experts.shape[0] - 1}) {
    std::vector<std::byte> want(experts.record_bytes);
    std::vector<float> want_scales;
    size_t at = 0;
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = projection[0] == 'd';
      const int64_t rows = experts.shape[down ? 2 : 1];
      const int64_t inputs = experts.shape[down ? 1 : 2];
      const std::vector<float> weights = draft_matrix(source, expert, projection, rows, inputs);
      std::vector<uint8_t> codes(weights.size() / 2);
      std::vector<uint8_t> scales(weights.size() / 16);
      want_scales.push_back(numeric::nvfp4_encode(weights, rows, inputs, codes, scales));
      const size_t bytes = codes.size() + scales.size();
      numeric::pack_units(codes, scales, rows, inputs, std::span(want).subspan(at, bytes));
      at += bytes;
    }
    std::vector<std::byte> found(want.size());
    artifact.read(experts, static_cast<uint64_t>(expert) * experts.record_bytes, found);
    EXPECT_EQ(found, want);
    std::vector<float> found_scales(3);
    artifact.read(scalars, static_cast<uint64_t>(expert) * 12, std::as_writable_bytes(std::span(found_scales)));
    EXPECT_EQ(found_scales, want_scales);
  }
  EXPECT_EQ(artifact.provenance()["recipe"], "mtp-experts-nvfp4");
  EXPECT_EQ(artifact.provenance()["choices"]["mtp-experts"], "nvfp4");
  EXPECT_EQ(artifact.provenance()["choices"]["dense"], "keep");
}

TEST_F(Choices, OnlyTheDraftExpertsBecomeNvfp4) {
  convert(demo_flash(), out_, mtp_nvfp4());
  convert(demo_flash(), folder_ / "kept.tandem", quiet_options());
  const Artifact artifact = Artifact::open(out_);
  const Artifact kept = Artifact::open(folder_ / "kept.tandem");
  EXPECT_EQ(artifact.objects().size(), kept.objects().size() + 1);
  for (const artifact::Object& object : kept.objects()) {
    if (object.name == kDraftExperts) continue;
    EXPECT_EQ(artifact.at(object.name).xxh3_128, object.xxh3_128) << object.name;
  }
  EXPECT_EQ(kept.provenance()["choices"]["mtp-experts"], "keep");
}

TEST_F(Choices, VerifyingMakesDraftExpertsAgain) {
  copy_folder(demo_flash(), folder_ / "source");
  Options options = mtp_nvfp4();
  options.choices.dense = DensePolicy::kFp8Row;
  convert(folder_ / "source", out_, options);
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.provenance()["recipe"], "dense-fp8-row+mtp-experts-nvfp4");
  const Verification found = verify(artifact, folder_ / "source", true);
  EXPECT_THAT(found.faults, ::testing::IsEmpty());
  EXPECT_EQ(found.tensors + found.reencoded, checkpoint::Checkpoint::open(demo_flash()).tensors().size());
  EXPECT_GE(found.reencoded, 24u * 6);
  const std::string name = std::string(kDraftExperts) + ".7.down_proj.weight";
  overwrite_tensor(folder_ / "source", name, 3 * 64 + 5, "\x7e");
  EXPECT_THAT(verify(artifact, folder_ / "source", true).faults, ::testing::Contains(HasSubstr(kDraftExperts)));
}

TEST_F(Choices, ADraftHeadIsNotReencodedHalfway) {
  // Another choice is another conversion: what the first has left is not taken up.
  Options options = mtp_nvfp4();
  options.stop = [](size_t objects) { return objects > 20; };
  EXPECT_THROW(convert(demo_flash(), out_, options), base::Error);
  EXPECT_EQ(convert(demo_flash(), out_, quiet_options()).resumed_objects, 0u);
  EXPECT_EQ(Artifact::open(out_).at(kDraftExperts).encoding, Encoding::kExpertsFp8Block);
}

TEST_F(Choices, DraftExpertsThatCannotBeReencodedAreNamed) {
  copy_folder(demo_flash(), folder_ / "source");
  const std::string name = std::string(kDraftExperts) + ".5.up_proj.weight";
  overwrite_tensor(folder_ / "source", name, 3 * 256 + 7, "\x7f");
  EXPECT_THAT(error_of([&] { convert(folder_ / "source", out_, mtp_nvfp4()); }),
              ::testing::AllOf(HasSubstr(name), HasSubstr("[3, 7]")));
  overwrite_tensor(folder_ / "source", name, 3 * 256 + 7, "\x7e");
  overwrite_tensor(folder_ / "source", name + "_scale_inv", 0, std::string_view("\x7f\x7f", 2));
  EXPECT_THAT(error_of([&] { convert(folder_ / "source", out_, mtp_nvfp4()); }),
              HasSubstr("up_proj of expert 5 is inf at ["));
  EXPECT_THAT(error_of([&] { convert(demo_dense(), out_, mtp_nvfp4()); }),
              HasSubstr("has no draft head with routed experts that could be re-encoded"));
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
