#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <thread>

#include "files.h"

namespace tandem::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CheckpointTest : public TemporaryFolder {
 protected:
  // Two shards: a.safetensors with x and y, b.safetensors with z.
  void SetUp() override {
    base::write_text(folder_ / "config.json", R"({"model_type":"test"})");
    write_bytes(
        folder_ / "a.safetensors",
        file_bytes("{" + entry("x", "U8", {4}, 0, 4) + "," + entry("y", "BF16", {1, 2}, 4, 8) + "}", "abcdefgh"));
    write_bytes(folder_ / "b.safetensors", file_bytes("{" + entry("z", "U8", {3}, 0, 3) + "}", "123"));
    write_index({{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}});
  }

  void write_index(const std::vector<std::pair<std::string, std::string>>& map) {
    std::string text;
    for (const auto& [tensor, file] : map) {
      text += fmt::format(R"({}"{}":"{}")", text.empty() ? "" : ",", tensor, file);
    }
    base::write_text(folder_ / "model.safetensors.index.json", R"({"metadata":{},"weight_map":{)" + text + "}}");
  }

  std::string open_refusal(const std::filesystem::path& path) {
    return refusal([&] { (void)Checkpoint::open(path); });
  }
  std::string open_refusal() { return open_refusal(folder_); }
};

std::string text_of(const Checkpoint& checkpoint, const char* name) {
  const std::vector<std::byte> bytes = checkpoint.read(checkpoint.at(name));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(CheckpointTest, ReadsAShardedFolder) {
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  ASSERT_EQ(checkpoint.shards().size(), 2u);
  EXPECT_EQ(checkpoint.shards()[1].path.filename(), "b.safetensors");
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.at("z").shard, 1u);
  EXPECT_EQ(text_of(checkpoint, "x"), "abcd");
  EXPECT_EQ(text_of(checkpoint, "y"), "efgh");
  EXPECT_EQ(text_of(checkpoint, "z"), "123");
  EXPECT_EQ(checkpoint.find("w"), nullptr);
  EXPECT_THAT(refusal([&] { (void)checkpoint.at("w"); }),
              AllOf(HasSubstr(folder_.string()), HasSubstr("lacks the tensor w")));
  EXPECT_EQ(base::json_string(checkpoint.config(), "model_type", "config"), "test");
}

TEST_F(CheckpointTest, NamesStayValidWhenItMoves) {
  Checkpoint first = Checkpoint::open(folder_);
  const Checkpoint second = std::move(first);
  EXPECT_EQ(text_of(second, "z"), "123");
}

TEST_F(CheckpointTest, ReadsPartsAndRefusesToLeaveTheTensor) {
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  const Tensor& y = checkpoint.at("y");
  std::vector<std::byte> two(2);
  checkpoint.read(y, 1, two);
  EXPECT_EQ(std::to_integer<char>(two[0]), 'f');
  EXPECT_THROW(checkpoint.read(y, 3, two), base::Error);
  EXPECT_THROW(checkpoint.read(y, UINT64_MAX, two), base::Error);
}

TEST_F(CheckpointTest, SeveralThreadsMayRead) {
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) EXPECT_EQ(text_of(checkpoint, "y"), "efgh");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CheckpointTest, ReadsASingleFileWithAndWithoutItsFolder) {
  const Checkpoint file = Checkpoint::open(folder_ / "b.safetensors");
  EXPECT_EQ(text_of(file, "z"), "123");
  EXPECT_TRUE(file.config().is_null());
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  EXPECT_THAT(open_refusal(), HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  std::filesystem::rename(folder_ / "b.safetensors", folder_ / "model.safetensors");
  EXPECT_EQ(text_of(Checkpoint::open(folder_), "z"), "123");
}

TEST_F(CheckpointTest, FollowsLinksAsDownloadCachesMakeThem) {
  std::filesystem::create_directory(folder_ / "blobs");
  std::filesystem::rename(folder_ / "b.safetensors", folder_ / "blobs" / "1234");
  std::filesystem::create_symlink("blobs/1234", folder_ / "b.safetensors");
  EXPECT_EQ(text_of(Checkpoint::open(folder_), "z"), "123");
}

TEST_F(CheckpointTest, NamesTheMissingShard) {
  std::filesystem::remove(folder_ / "a.safetensors");
  EXPECT_THAT(open_refusal(), AllOf(HasSubstr((folder_ / "a.safetensors").string()),
                                    HasSubstr("is missing; 2 of 3 tensors of the checkpoint are in it")));
}

TEST_F(CheckpointTest, TheIndexAndTheShardsMustAgree) {
  write_index({{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"w", "b.safetensors"}});
  EXPECT_THAT(open_refusal(), HasSubstr("maps tensor w to b.safetensors, which does not hold it"));
  write_index({{"x", "a.safetensors"}, {"y", "b.safetensors"}, {"z", "b.safetensors"}});
  EXPECT_THAT(open_refusal(), HasSubstr("maps tensor y to b.safetensors, but it is in a.safetensors"));
  write_index({{"x", "a.safetensors"}, {"z", "b.safetensors"}});
  EXPECT_THAT(open_refusal(), AllOf(HasSubstr((folder_ / "a.safetensors").string()),
                                    HasSubstr("holds tensor y (BF16 [1, 2]), which the index does not map")));
  write_index({{"z", "b.safetensors"}, {"x", "a.safetensors"}, {"y", "a.safetensors"}});
  write_bytes(folder_ / "b.safetensors",
              file_bytes("{" + entry("z", "U8", {3}, 0, 3) + "," + entry("x", "U8", {1}, 3, 4) + "}", "1234"));
  EXPECT_THAT(open_refusal(), HasSubstr("holds tensor x, which is in a.safetensors too"));
}

TEST_F(CheckpointTest, RefusesDamagedFilesByName) {
  const auto damaged = [&](const std::string& bytes) {
    write_bytes(folder_ / "b.safetensors", bytes);
    const std::string message = open_refusal();
    EXPECT_THAT(message, HasSubstr((folder_ / "b.safetensors").string()));
    return message;
  };
  const std::string good = file_bytes("{" + entry("z", "U8", {3}, 0, 3) + "}", "123");
  EXPECT_THAT(damaged(""), HasSubstr("holds 0 bytes"));
  EXPECT_THAT(damaged(good.substr(0, 7)), HasSubstr("holds 7 bytes"));
  EXPECT_THAT(damaged(good.substr(0, 20)), HasSubstr("truncated"));
  EXPECT_THAT(damaged(good.substr(0, good.size() - 1)), HasSubstr("tensor z (U8 [3]) ends at byte 3"));
  EXPECT_THAT(damaged(good + "4"), HasSubstr("1 bytes too many"));
  EXPECT_THAT(damaged(std::string(64, 'x')), HasSubstr("is not safetensors"));
  EXPECT_EQ(open_refusal(folder_ / "a.safetensors"), "");
}

TEST_F(CheckpointTest, RefusesWhatIsNotAFile) {
  std::filesystem::remove(folder_ / "b.safetensors");
  std::filesystem::create_directory(folder_ / "b.safetensors");
  EXPECT_THAT(open_refusal(), HasSubstr("is not a regular file"));
  std::filesystem::remove(folder_ / "b.safetensors");
  ASSERT_EQ(::mkfifo((folder_ / "b.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(open_refusal(), HasSubstr("is not a regular file"));
  EXPECT_THAT(open_refusal(folder_ / "absent"), HasSubstr("does not exist"));
  EXPECT_THAT(open_refusal(folder_ / "config.json"), HasSubstr("neither a folder nor a .safetensors file"));
}

TEST_F(CheckpointTest, RefusesAFolderWhoseMeaningIsNotClear) {
  std::filesystem::copy_file(folder_ / "b.safetensors", folder_ / "model.safetensors");
  EXPECT_THAT(open_refusal(), HasSubstr("holds both model.safetensors and an index that does not name it"));
  write_index({{"z", "model.safetensors"}});
  EXPECT_EQ(text_of(Checkpoint::open(folder_), "z"), "123");
}

TEST_F(CheckpointTest, NeedsAConfig) {
  base::write_text(folder_ / "config.json", "[1]");
  EXPECT_THAT(open_refusal(), HasSubstr("is not a JSON object"));
  base::write_text(folder_ / "config.json", "{\"a\":1,\"a\":2}");
  EXPECT_THAT(open_refusal(), HasSubstr("twice"));
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_THAT(open_refusal(), HasSubstr("config.json: is missing"));
}

TEST_F(CheckpointTest, TakesTheQuantisationFromEitherFile) {
  EXPECT_TRUE(Checkpoint::open(folder_).quantization().is_null());
  base::write_text(folder_ / "hf_quant_config.json", R"({"producer":{},"quantization":{"quant_algo":"NVFP4"}})");
  EXPECT_EQ(Checkpoint::open(folder_).quantization().at("quant_algo"), "NVFP4");
  base::write_text(folder_ / "config.json", R"({"quantization_config":{"quant_method":"fp8"}})");
  EXPECT_EQ(Checkpoint::open(folder_).quantization().at("quant_method"), "fp8");
}

TEST_F(CheckpointTest, SaysThatAFileChangedWhileItWasOpen) {
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  write_bytes(folder_ / "b.safetensors", "short");
  EXPECT_THAT(refusal([&] { (void)text_of(checkpoint, "z"); }),
              AllOf(HasSubstr("b.safetensors: changed since it was opened"), HasSubstr("holds 5 now")));
  EXPECT_EQ(text_of(checkpoint, "x"), "abcd");
}

TEST_F(CheckpointTest, SaysThatAFileOfTheSameSizeWasWrittenTo) {
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000'000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder_ / "b.safetensors").c_str(), times, 0), 0);
  EXPECT_THAT(refusal([&] { (void)text_of(checkpoint, "z"); }), HasSubstr("b.safetensors: was written to since"));
}

TEST(DemoCheckpoint, OpensWithAllItsTensors) {
  const std::filesystem::path models = std::filesystem::path(TANDEM_SOURCE_DIR) / "models";
  EXPECT_EQ(Checkpoint::open(models / "demo-dense").tensors().size(), 71u);
  const Checkpoint flash = Checkpoint::open(models / "demo-flash");
  EXPECT_EQ(flash.shards().size(), 2u);
  const Tensor& codes = flash.at("model.language_model.layers.0.mlp.experts.23.gate_proj.weight");
  EXPECT_EQ(describe(codes), "U8 [64, 128]");
  EXPECT_EQ(flash.read(codes).size(), 64u * 128);
}

}  // namespace
}  // namespace tandem::checkpoint
