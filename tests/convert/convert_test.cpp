#include "convert/convert.h"

#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "artifact/artifact.h"
#include "base/units.h"
#include "checkpoint_folder.h"
#include "convert/verify.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using artifact::Artifact;
using artifact::Encoding;
using ::testing::HasSubstr;
using namespace tandem::testing;

class Converting : public ::testing::Test {
 protected:
  TempFolder folder_;
  fs::path out_ = folder_ / "model.tandem";
  fs::path partial_ = folder_ / "model.tandem.partial";
};

class Published : public Converting, public ::testing::WithParamInterface<const char*> {};

TEST_P(Published, EveryTensorIsKeptBitForBit) {
  const fs::path source = GetParam();
  const Result result = convert(source, out_, quiet_options());
  EXPECT_FALSE(fs::exists(partial_));
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.objects().size(), result.objects);
  const Verification verification = verify(artifact, source, true);
  EXPECT_THAT(verification.faults, ::testing::IsEmpty());
  EXPECT_EQ(verification.tensors, checkpoint::Checkpoint::open(source).tensors().size());
  EXPECT_EQ(verification.texts, artifact.texts().size());
  EXPECT_EQ(verification.objects, result.objects);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Published,
                         ::testing::Values(TANDEM_SOURCE_DIR "/models/demo-flash",
                                           TANDEM_SOURCE_DIR "/models/demo-dense", TANDEM_GOLDEN_DIR "/qsa-random"),
                         [](const auto& parameter) {
                           std::string name = fs::path(parameter.param).filename().string();
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_F(Converting, TheTextsComeAlong) {
  convert(demo_flash(), out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.tokenizer_json(), base::read_text(demo_flash() / "tokenizer.json", 1 << 20));
  EXPECT_EQ(artifact.chat_template(), base::read_text(demo_flash() / "chat_template.jinja", 1 << 20));
  EXPECT_EQ(artifact.config()["model_type"], "qwen4_exp");
  EXPECT_TRUE(artifact.generation_config().contains("eos_token_id"));
  EXPECT_TRUE(artifact.texts().contains("hf_quant_config.json"));
}

TEST_F(Converting, ExpertsAndNgramRowsHaveTheirLayouts) {
  convert(demo_flash(), out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  const auto& experts = artifact.at("model.language_model.layers.0.mlp.experts");
  EXPECT_EQ(experts.encoding, Encoding::kExpertsNvfp4);
  EXPECT_THAT(experts.shape, ::testing::ElementsAre(24, 64, 256));
  EXPECT_EQ(experts.record_bytes, 28672u);  // 3 * 64 * 256 * 9 / 16 = 27,648
  EXPECT_THAT(artifact.at("model.language_model.layers.0.mlp.experts.scalars").shape, ::testing::ElementsAre(24, 6));
  EXPECT_EQ(artifact.at("mtp.layers.0.mlp.experts").encoding, Encoding::kExpertsFp8Block);
  const std::string table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding";
  EXPECT_EQ(artifact.at(table).encoding, Encoding::kNgramF8E4M3);
  EXPECT_THAT(artifact.at(table).shape, ::testing::ElementsAre(33024, 16));
  EXPECT_EQ(artifact.at(table + ".weight_scale").encoding, Encoding::kBF16);
  // Row 8256 + 5 is row 5 of shard 1.
  const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(demo_flash());
  std::vector<std::byte> expected(16), found(16);
  source.read(source.at(table + ".shard_1.weight"), 5 * 16, expected);
  const uint64_t row = 8256 + 5;
  artifact.read(artifact.at(table), row / 256 * 4096 + row % 256 * 16, found);
  EXPECT_EQ(found, expected);
}

TEST_F(Converting, ScalarsOfAnExpertStandInTheirOrder) {
  convert(demo_flash(), out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(demo_flash());
  const std::string module = "model.language_model.layers.2.mlp.experts";
  std::vector<std::byte> found(24), expected;
  artifact.read(artifact.at(module + ".scalars"), 7 * 24, found);
  for (const char* suffix : {"weight_scale_2", "input_scale"}) {
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      const auto bytes = source.read(source.at(fmt::format("{}.7.{}.{}", module, projection, suffix)));
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
  }
  EXPECT_EQ(found, expected);
}

TEST_F(Converting, PartsHaveTheSizeThatWasAskedFor) {
  Options options = quiet_options();
  options.part_bytes = 1 << 20;
  const Result result = convert(demo_flash(), out_, options);
  EXPECT_GT(result.parts, 10u);
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.parts(), result.parts);
  for (const auto& object : artifact.objects()) {
    const uint64_t part = artifact.part(object.part).size();
    EXPECT_TRUE(part <= options.part_bytes || part == base::round_up(object.bytes, 4096)) << object.name;
  }
  EXPECT_TRUE(verify(artifact, demo_flash(), true).holds());
}

TEST_F(Converting, TwiceGivesTheSameBytes) {
  convert(qsa_random(), out_, quiet_options());
  convert(qsa_random(), folder_ / "again.tandem", quiet_options());
  EXPECT_EQ(files_of(out_), files_of(folder_ / "again.tandem"));
}

TEST_F(Converting, InterruptedAfterAnyObjectGivesTheSameBytes) {
  convert(qsa_random(), folder_ / "whole.tandem", quiet_options());
  const auto expected = files_of(folder_ / "whole.tandem");
  const size_t objects = Artifact::open(folder_ / "whole.tandem").objects().size();
  for (size_t stop = 0; stop < objects; stop += 14) {
    Options options = quiet_options();
    options.stop = [&](size_t done) { return done >= stop; };
    EXPECT_THAT(error_of([&] { convert(qsa_random(), out_, options); }),
                AllOf(HasSubstr("was interrupted"), HasSubstr(fmt::format("of {} objects are kept in", objects)),
                      HasSubstr("the same command goes on from there")));
    EXPECT_FALSE(fs::exists(out_));
    const Result result = convert(qsa_random(), out_, quiet_options());
    EXPECT_EQ(result.resumed_objects, std::max<size_t>(stop, 1));
    EXPECT_EQ(files_of(out_), expected) << "interrupted after " << stop;
    EXPECT_FALSE(fs::exists(partial_));
    fs::remove_all(out_);
  }
}

// The child kills itself at a chunk, with no chance to clean up.
void convert_and_be_killed(const fs::path& source, const fs::path& out, int chunk, bool consume) {
  const pid_t child = ::fork();
  if (child == 0) {
    Options options = quiet_options();
    options.consume = consume;
    int seen = 0;
    options.stop = [&](size_t) {
      if (++seen == chunk) ::kill(::getpid(), SIGKILL);
      return false;
    };
    convert(source, out, options);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the conversion ended before chunk " << chunk;
}

TEST_F(Converting, KilledAgainAndAgainGivesTheSameBytes) {
  convert(demo_flash(), folder_ / "whole.tandem", quiet_options());
  // Later kills count the chunks after the earlier ones.
  for (const int chunk : {1, 40, 60, 30}) convert_and_be_killed(demo_flash(), out_, chunk, false);
  EXPECT_FALSE(fs::exists(out_));
  const Result result = convert(demo_flash(), out_, quiet_options());
  EXPECT_GE(result.resumed_objects, 50u);
  EXPECT_EQ(files_of(out_), files_of(folder_ / "whole.tandem"));
}

TEST_F(Converting, GoesOnWithTheDateOfItsStart) {
  Options options = quiet_options();
  options.stop = [](size_t done) { return done >= 3; };
  error_of([&] { convert(qsa_random(), out_, options); });
  Options later = quiet_options();
  later.date = "2027-01-01T00:00:00Z";
  convert(qsa_random(), out_, later);
  EXPECT_EQ(Artifact::open(out_).provenance()["date"], "2026-11-29T00:00:00Z");
}

TEST_F(Converting, StartsAfreshWhereTheSourceHasChanged) {
  copy_folder(qsa_random(), folder_ / "source");
  Options options = quiet_options();
  options.stop = [](size_t done) { return done >= 20; };
  error_of([&] { convert(folder_ / "source", out_, options); });
  overwrite_tensor(folder_ / "source", "lm_head.weight", 10, "changed");
  const Result result = convert(folder_ / "source", out_, quiet_options());
  EXPECT_EQ(result.resumed_objects, 0u);
  EXPECT_TRUE(verify(Artifact::open(out_), folder_ / "source", true).holds());
}

TEST_F(Converting, EndsTheCleanUpThatAnInterruptionLeft) {
  convert(qsa_random(), out_, quiet_options());
  const auto expected = files_of(out_);
  base::write_text(out_ / artifact::kJournalFile, "{}\n");
  const Result result = convert(qsa_random(), out_, quiet_options());
  EXPECT_THAT(result.warnings, ::testing::ElementsAre(HasSubstr("complete already")));
  EXPECT_EQ(files_of(out_), expected);
}

TEST_F(Converting, AnArtifactIsReplacedOnlyWithForce) {
  convert(demo_dense(), out_, quiet_options());
  EXPECT_THAT(error_of([&] { convert(qsa_random(), out_, quiet_options()); }), HasSubstr("--force replaces it"));
  EXPECT_EQ(Artifact::open(out_).config()["model_type"], "qwen3_5");
  Options options = quiet_options();
  options.force = true;
  convert(qsa_random(), out_, options);
  EXPECT_EQ(Artifact::open(out_).config()["model_type"], "qwen4_exp");
}

TEST_F(Converting, ForceDoesNotReplaceWhatIsNoArtifact) {
  fs::create_directories(out_);
  base::write_text(out_ / "letter.txt", "dear");
  Options options = quiet_options();
  options.force = true;
  EXPECT_THAT(error_of([&] { convert(qsa_random(), out_, options); }), HasSubstr("replaces only artifacts"));
  EXPECT_TRUE(fs::exists(out_ / "letter.txt"));
}

TEST_F(Converting, AForeignPartialFolderIsLeftAlone) {
  fs::create_directories(partial_);
  base::write_text(partial_ / "letter.txt", "dear");
  EXPECT_THAT(error_of([&] { convert(qsa_random(), out_, quiet_options()); }), HasSubstr("is in the way"));
  EXPECT_TRUE(fs::exists(partial_ / "letter.txt"));
}

TEST_F(Converting, ASourceWithoutTokenizerIsConvertedWithAWarning) {
  EXPECT_THAT(convert(qsa_random(), out_, quiet_options()).warnings,
              ::testing::ElementsAre(HasSubstr("no tokenizer.json")));
  EXPECT_EQ(Artifact::open(out_).tokenizer_json(), "");
}

TEST_F(Converting, RecordsEverySourceFile) {
  convert(demo_flash(), out_, quiet_options());
  const base::Json provenance = Artifact::open(out_).provenance();
  std::map<std::string, std::string> found;
  for (const base::Json& file : provenance["source"]["files"]) {
    EXPECT_EQ(file["bytes"], fs::file_size(demo_flash() / file["name"].get<std::string>()));
    found[file["name"]] = file["sha256"];
  }
  EXPECT_EQ(found.size(), 9u);  // 6 texts, 2 shards, the index
  base::Sha256 hash;
  const std::string shard = base::read_text(demo_flash() / "model-00002-of-00002.safetensors", 1 << 26);
  hash.update(std::as_bytes(std::span(shard)));
  EXPECT_EQ(found["model-00002-of-00002.safetensors"], hash.hex());
  EXPECT_EQ(provenance["recipe"], "published");
  EXPECT_TRUE(provenance["source"]["repository"].is_null());
}

TEST_F(Converting, KnowsRepositoryAndRevisionFromACachePath) {
  const std::string revision(40, 'a');
  const fs::path source = folder_ / "models--ORG--NAME-2" / "snapshots" / revision;
  fs::create_directories(source.parent_path());
  copy_folder(qsa_random(), source);
  base::write_text(source / "LICENSE", "Apache License");
  convert(source, out_, quiet_options());
  const Artifact artifact = Artifact::open(out_);
  EXPECT_EQ(artifact.provenance()["source"]["repository"], "ORG/NAME-2");
  EXPECT_EQ(artifact.provenance()["source"]["revision"], revision);
  EXPECT_THAT(artifact.provenance()["licences"], ::testing::ElementsAre("LICENSE"));
  EXPECT_EQ(artifact.texts().at("LICENSE"), "Apache License");
}

TEST_F(Converting, KnowsTheRevisionFromDownloadRecords) {
  copy_folder(qsa_random(), folder_ / "source");
  const fs::path records = folder_ / "source" / ".cache" / "huggingface" / "download";
  fs::create_directories(records);
  const std::string revision(40, 'b');
  base::write_text(records / "config.json.metadata", revision + "\n0123\n1.5\n");
  Options options = quiet_options();
  options.source_id = "ORG/OTHER";
  convert(folder_ / "source", out_, options);
  EXPECT_EQ(Artifact::open(out_).provenance()["source"]["revision"], revision);
  EXPECT_EQ(Artifact::open(out_).provenance()["source"]["repository"], "ORG/OTHER");
}

}  // namespace
}  // namespace tandem::convert
