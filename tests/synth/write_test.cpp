#include "synth/write.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <iterator>
#include <map>

#include "artifact/artifact.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/recognise.h"
#include "checkpoint/safetensors_writer.h"
#include "context/sequence.h"
#include "convert/convert.h"
#include "convert/verify.h"
#include "synth/tokenizer.h"
#include "tests/artifact/temp_folder.h"
#include "text/tokenizer.h"

namespace tandem::synth {
namespace {

namespace fs = std::filesystem;

WriteResult write(const Settings& settings, const fs::path& out, WriteOptions options = {}) {
  options.quiet = true;
  return write_checkpoint(Model(settings), out, options);
}

WriteOptions forced() {
  WriteOptions options;
  options.force = true;
  return options;
}

Settings tiny(const std::string& form) {
  Settings settings;
  settings.form = form;
  return settings;
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  return files;
}

struct Answer {
  std::vector<float> logits;
  std::vector<int32_t> router_ids;
};
Answer answer(const fs::path& artifact_folder, std::span<const int32_t> tokens) {
  const auto artifact = artifact::Artifact::open(artifact_folder);
  base::WorkerPool pool(2);
  const auto model = model::Model::load(artifact, device::host(), pool, {});
  context::SequencePool sequences(*model, 256, 1);
  auto sequence = sequences.create();
  model::ForwardRequest request;
  request.logits = static_cast<int64_t>(tokens.size());
  request.routing = true;
  model::ForwardOutput output;
  sequence.forward(tokens, request, output);
  return {std::move(output.logits), std::move(output.router_ids)};
}

class EveryForm : public ::testing::TestWithParam<NamedForm> {};

INSTANTIATE_TEST_SUITE_P(Forms, EveryForm, ::testing::ValuesIn(forms().begin(), forms().end()), [](const auto& form) {
  std::string name = form.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(EveryForm, IsRecognisedConvertsVerifiesAndAnswers) {
  const testing::TempFolder folder;
  const auto written = write(tiny(GetParam().name), folder / "checkpoint");
  EXPECT_GE(written.shards, 2U);
  const auto opened = checkpoint::Checkpoint::open(folder / "checkpoint");
  const auto recognised = checkpoint::recognise(opened);
  EXPECT_EQ(recognised.family, GetParam().family);
  EXPECT_EQ(recognised.tensors, written.tensors);
  EXPECT_EQ(recognised.bytes, written.bytes);
  EXPECT_TRUE(recognised.has_draft_head);

  convert::Options options;
  options.quiet = true;
  convert::convert(folder / "checkpoint", folder / "a.tandem", options);
  const auto verified = convert::verify(artifact::Artifact::open(folder / "a.tandem"), folder / "checkpoint", true);
  EXPECT_TRUE(verified.holds()) << (verified.faults.empty() ? "" : verified.faults.front());
  EXPECT_EQ(verified.tensors, written.tensors);
  const std::vector<int32_t> tokens = {1, 500, 77, 77, 1200, 3, 2000, 1999};
  const Answer result = answer(folder / "a.tandem", tokens);
  ASSERT_EQ(result.logits.size(), tokens.size() * 2048);
  double squares = 0;
  for (const float logit : result.logits) {
    ASSERT_TRUE(std::isfinite(logit));
    squares += static_cast<double>(logit) * logit;
  }
  const double spread = std::sqrt(squares / static_cast<double>(result.logits.size()));
  EXPECT_GT(spread, 0.1);
  EXPECT_LT(spread, 10);
}

// `from` as one shard without the draft head and the vision tower, as some publishers leave them out.
void write_without_extras(const fs::path& from, const fs::path& out) {
  fs::create_directories(out);
  for (const char* text : {"config.json", "tokenizer.json", "generation_config.json"}) {
    fs::copy_file(from / text, out / text);
  }
  const auto source = checkpoint::Checkpoint::open(from);
  std::vector<std::vector<std::byte>> data;
  std::vector<checkpoint::TensorData> tensors;
  data.reserve(source.tensors().size());
  for (const checkpoint::Tensor& tensor : source.tensors()) {
    if (tensor.name.starts_with("mtp.") || tensor.name.starts_with("model.visual.")) continue;
    data.push_back(source.read(tensor));
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, data.back()});
  }
  checkpoint::write_safetensors(out / "model.safetensors", tensors);
}

TEST(Write, ThreeBitsTakeDraftHeadAndVisionFromTheOfficialModel) {
  for (const char* form : {"27b-gsq3", "27b-gsq3-stream"}) {
    const testing::TempFolder folder;
    Settings settings = tiny("27b-bf16");
    settings.config = Model(settings).config();
    settings.config["language_model_only"] = false;
    settings.config["vision_config"] = {{"depth", 2},
                                        {"hidden_size", 64},
                                        {"num_heads", 4},
                                        {"intermediate_size", 96},
                                        {"in_channels", 3},
                                        {"patch_size", 4},
                                        {"temporal_patch_size", 2},
                                        {"spatial_merge_size", 2},
                                        {"num_position_embeddings", 16},
                                        {"out_hidden_size", settings.config["text_config"]["hidden_size"]}};
    write(settings, folder / "official");
    settings.form = form;
    settings.seed = 7;
    write(settings, folder / "whole");
    write_without_extras(folder / "whole", folder / "gsq");
    convert::SourceFolders source = folder / "gsq";
    source.mtp_from = folder / "official";
    source.vision_from = folder / "official";
    convert::Options options;
    options.quiet = true;
    const auto converted = convert::convert(source, folder / "a.tandem", options);
    EXPECT_THAT(converted.model, ::testing::HasSubstr("with a draft head and a vision tower"));
    const auto artifact = artifact::Artifact::open(folder / "a.tandem");
    EXPECT_TRUE(convert::verify(artifact, source, true).holds());
    const auto official = checkpoint::Checkpoint::open(folder / "official");
    size_t taken = 0;
    for (const checkpoint::Tensor& tensor : official.tensors()) {
      if (!tensor.name.starts_with("mtp.") && !tensor.name.starts_with("model.visual.")) continue;
      EXPECT_EQ(artifact.read(artifact.at(tensor.name)), official.read(tensor)) << tensor.name;
      ++taken;
    }
    EXPECT_GT(taken, 40U);
    const std::string packed = "model.language_model.layers.0.mlp.gate_proj.weight_packed";
    EXPECT_EQ(artifact.at(packed).encoding, artifact::Encoding::kInt3);
    EXPECT_TRUE(artifact.provenance()["choices"].contains("mtp-from"));
    EXPECT_TRUE(artifact.provenance()["choices"].contains("vision-from"));
    for (const float logit : answer(folder / "a.tandem", std::vector<int32_t>{1, 500, 77, 77}).logits) {
      ASSERT_TRUE(std::isfinite(logit));
    }
  }
}

// Logits of the draft head for entries behind a few tokens.
std::vector<float> draft_logits(const fs::path& artifact_folder) {
  const auto artifact = artifact::Artifact::open(artifact_folder);
  base::WorkerPool pool(2);
  model::LoadOptions options;
  options.draft_head = true;
  const auto model = model::Model::load(artifact, device::host(), pool, options);
  context::SequencePool sequences(*model, 256, 1);
  auto sequence = sequences.create();
  const std::vector<int32_t> tokens = {1, 500, 77, 77, 1200, 3, 2000, 1999};
  model::ForwardRequest request;
  request.draft_hidden = true;
  model::ForwardOutput output;
  sequence.forward(tokens, request, output);
  model::Model::DraftOutput draft;
  sequence.draft({.first = 0, .next_tokens = tokens, .hidden = output.draft_hidden, .logits = 8}, draft);
  return draft.logits;
}

TEST(Write, DraftExpertsOfEveryFormWithSomeBecomeNvfp4) {
  for (const char* form : {"flash-nvfp4", "flash-fp8", "flash-bf16"}) {
    const testing::TempFolder folder;
    write(tiny(form), folder / "checkpoint");
    convert::Options options;
    options.quiet = true;
    convert::convert(folder / "checkpoint", folder / "kept.tandem", options);
    options.choices.mtp_experts = convert::MtpExperts::kNvfp4;
    convert::convert(folder / "checkpoint", folder / "a.tandem", options);
    const auto artifact = artifact::Artifact::open(folder / "a.tandem");
    EXPECT_EQ(artifact.at("mtp.layers.0.mlp.experts").encoding, artifact::Encoding::kExpertsNvfp4);
    const auto verified = convert::verify(artifact, folder / "checkpoint", true);
    EXPECT_TRUE(verified.holds()) << form << (verified.faults.empty() ? "" : verified.faults.front());
    EXPECT_GT(verified.reencoded, 0U);
    const std::vector<float> kept = draft_logits(folder / "kept.tandem");
    const std::vector<float> got = draft_logits(folder / "a.tandem");
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      difference += std::pow(static_cast<double>(got[i]) - kept[i], 2);
      norm += std::pow(static_cast<double>(kept[i]), 2);
    }
    // Two products with four bits on both sides, beside a residual that they add to.
    EXPECT_LT(std::sqrt(difference / norm), 0.2) << form;
    EXPECT_GT(difference, 0) << form;
  }
}

TEST(Write, TheSameSeedMakesTheSameBytes) {
  const testing::TempFolder folder;
  Settings settings = tiny("flash-nvfp4");
  settings.router_skew = 1;
  settings.locality = 0.5;
  write(settings, folder / "a");
  write(settings, folder / "b");
  EXPECT_EQ(contents(folder / "a"), contents(folder / "b"));
  settings.seed = 2;
  write(settings, folder / "c");
  const auto a = contents(folder / "a");
  const auto c = contents(folder / "c");
  for (const auto& [name, text] : a) {
    EXPECT_EQ(text == c.at(name), !name.ends_with(".safetensors")) << name;
  }
}

TEST(Write, SkewMakesSomeExpertsPopular) {
  const testing::TempFolder folder;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 128; ++i) tokens.push_back(i * 13 + 5);
  std::map<double, int> most;
  for (const double skew : {0.0, 2.0}) {
    Settings settings = tiny("flash-bf16");
    settings.router_skew = skew;
    write(settings, folder / "checkpoint", forced());
    convert::Options options;
    options.quiet = true;
    options.force = true;
    convert::convert(folder / "checkpoint", folder / "a.tandem", options);
    std::map<int32_t, int> counts;
    const auto ids = answer(folder / "a.tandem", tokens).router_ids;
    // Of the first layer, whose router sees little but the embedding.
    for (size_t i = 0; i < tokens.size() * 4; ++i) ++counts[ids[i]];
    for (const auto& [id, count] : counts) most[skew] = std::max(most[skew], count);
    EXPECT_LE(counts.size(), 16U);
  }
  EXPECT_GT(most[2.0], most[0.0] * 5 / 4);
}

TEST(Write, ItsTokenizerWritesAnyTextAndHasTheConfigsIds) {
  for (const int64_t vocab : {300, 2048, 40000}) {
    const auto tokenizer = text::Tokenizer::from_json(tokenizer_json(vocab), "synthetic");
    EXPECT_EQ(tokenizer.size(), vocab);
    const std::string text = "Hello wörld, the quick 狐\n\t42!";
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, text::AddedTokens::kPlain), false), text);
  }
  EXPECT_THROW(tokenizer_json(200), base::Error);
}

TEST(Write, LeavesWhatIsThereUnlessForced) {
  const testing::TempFolder folder;
  write(tiny("27b-bf16"), folder / "a");
  EXPECT_THROW(write(tiny("27b-bf16"), folder / "a"), base::Error);
  write(tiny("flash-bf16"), folder / "a", forced());
  EXPECT_EQ(checkpoint::recognise(checkpoint::Checkpoint::open(folder / "a")).family, "qwen4_exp");
  fs::create_directories(folder / "mine");
  EXPECT_THROW(write(tiny("27b-bf16"), folder / "mine", forced()), base::Error) << "it is no checkpoint";
}

TEST(Write, LeavesNothingBehindWhereItIsInterrupted) {
  const testing::TempFolder folder;
  int pieces = 0;
  WriteOptions options;
  options.quiet = true;
  options.stop = [&] { return ++pieces > 20; };
  try {
    write_checkpoint(Model(tiny("flash-nvfp4")), folder / "a", options);
    FAIL() << "it was not interrupted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kCancelled);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Write, RefusesWhatTheDiskCannotHoldBeforeItWrites) {
  const testing::TempFolder folder;
  Settings settings = tiny("27b-bf16");
  settings.scale = Scale::kFull;
  settings.sizes.layers = 1000;
  settings.sizes.hidden = 32768;
  settings.sizes.inner = 1 << 20;
  try {
    write(settings, folder / "a");
    FAIL() << "a disk of 200 TB?";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the disk has"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace tandem::synth
