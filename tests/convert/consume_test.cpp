// Conversions that delete their source as they go.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "artifact/artifact.h"
#include "checkpoint_folder.h"
#include "convert/convert.h"
#include "convert/verify.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace tandem::testing;

class Consuming : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempFolder folder;
    convert(demo_flash(), folder / "whole.tandem", quiet_options());
    expected_ = files_of(folder / "whole.tandem");
  }
  static void TearDownTestSuite() { expected_.clear(); }
  void SetUp() override {
    copy_folder(demo_flash(), source_);
    options_.consume = true;
  }
  fs::path shard(int number) const { return source_ / fmt::format("model-0000{}-of-00002.safetensors", number); }
  void expect_done() {
    EXPECT_EQ(files_of(out_), expected_);
    EXPECT_FALSE(fs::exists(out_ / "consumed"));
    EXPECT_FALSE(fs::exists(folder_ / "model.tandem.partial"));
    EXPECT_FALSE(fs::exists(shard(1)));
    EXPECT_FALSE(fs::exists(shard(2)));
    EXPECT_TRUE(verify(artifact::Artifact::open(out_), demo_flash(), true).holds());
  }

  TempFolder folder_;
  fs::path source_ = folder_ / "source";
  fs::path out_ = folder_ / "model.tandem";
  Options options_ = quiet_options();
  static inline std::map<std::string, std::string> expected_;
};

TEST_F(Consuming, DeletesTheShardsAndNothingElse) {
  const Result result = convert(source_, out_, options_);
  EXPECT_EQ(result.consumed_shards, 2u);
  expect_done();
  EXPECT_TRUE(fs::exists(source_ / "config.json"));
  EXPECT_TRUE(fs::exists(source_ / "model.safetensors.index.json"));
}

TEST_F(Consuming, GoesOnAfterAShardIsGone) {
  options_.stop = [&](size_t) { return !fs::exists(shard(1)); };
  EXPECT_THAT(error_of([&] { convert(source_, out_, options_); }), HasSubstr("was interrupted"));
  ASSERT_FALSE(fs::exists(shard(1)));
  ASSERT_TRUE(fs::exists(shard(2)));
  options_.stop = nullptr;
  const Result result = convert(source_, out_, options_);
  EXPECT_GT(result.resumed_objects, 0u);
  expect_done();
}

TEST_F(Consuming, GoesOnAfterBeingKilled) {
  const pid_t child = ::fork();
  if (child == 0) {
    options_.stop = [&](size_t) {
      if (!fs::exists(shard(1))) ::kill(::getpid(), SIGKILL);
      return false;
    };
    convert(source_, out_, options_);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  convert(source_, out_, options_);
  expect_done();
}

TEST_F(Consuming, EndsADeletionThatWasInterrupted) {
  const std::string bytes = base::read_text(shard(1), 1 << 28);
  options_.stop = [&](size_t) { return !fs::exists(shard(1)); };
  error_of([&] { convert(source_, out_, options_); });
  // As after a crash between the entry in the journal and the deletion.
  base::write_text(shard(1), bytes);
  options_.stop = nullptr;
  convert(source_, out_, options_);
  expect_done();
}

TEST_F(Consuming, KeepsThePartialArtifactWhereTheRestIsBad) {
  overwrite_tensor(source_, "mtp.layers.0.mlp.experts.5.up_proj.weight", 0, "\x7f");
  EXPECT_THAT(error_of([&] { convert(source_, out_, options_); }),
              AllOf(HasSubstr("experts.5.up_proj.weight"), HasSubstr("are kept in")));
  EXPECT_TRUE(fs::exists(folder_ / "model.tandem.partial"));
  EXPECT_TRUE(fs::exists(shard(2)));
}

TEST_F(Consuming, OtherOptionsDoNotDiscardWhatIsLeftOfTheSource) {
  options_.stop = [&](size_t) { return !fs::exists(shard(1)); };
  error_of([&] { convert(source_, out_, options_); });
  Options other = quiet_options();
  other.part_bytes = 1 << 20;
  EXPECT_THAT(error_of([&] { convert(source_, out_, other); }), HasSubstr("has consumed shards already"));
  options_.stop = nullptr;
  convert(source_, out_, options_);
  expect_done();
}

TEST_F(Consuming, ALinkedShardIsDeletedWithItsBlob) {
  const fs::path blob = folder_ / "blob";
  fs::rename(shard(1), blob);
  fs::create_symlink(blob, shard(1));
  convert(source_, out_, options_);
  expect_done();
  EXPECT_FALSE(fs::exists(blob));
  EXPECT_FALSE(fs::is_symlink(shard(1)));
}

TEST_F(Consuming, AnotherHardLinkKeepsItsBytes) {
  const fs::path other = folder_ / "other.safetensors";
  fs::create_hard_link(shard(1), other);
  const std::string bytes = base::read_text(other, 1 << 28);
  convert(source_, out_, options_);
  expect_done();
  EXPECT_EQ(base::read_text(other, 1 << 28), bytes);
}

}  // namespace
}  // namespace tandem::convert
