#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

namespace tandem::checkpoint {
namespace {

class SafetensorsWriter : public ::testing::Test {
 protected:
  SafetensorsWriter() { std::filesystem::create_directories(folder_); }
  ~SafetensorsWriter() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tandem-safetensors-writer-" + std::to_string(getpid()));
};

TEST_F(SafetensorsWriter, WhatItWritesTheReaderReads) {
  const std::vector<float> logits = {1.5f, -2.0f, 3.25f, 0.0f, 7.0f, 8.0f};
  const std::vector<uint8_t> blocks = {1, 0, 1};
  const std::vector<TensorData> tensors = {
      {.name = "logits", .dtype = Dtype::kF32, .shape = {2, 3}, .bytes = std::as_bytes(std::span(logits))},
      {.name = "empty", .dtype = Dtype::kI32, .shape = {0, 4}, .bytes = {}},
      {.name = "blocks", .dtype = Dtype::kU8, .shape = {1, 1, 3}, .bytes = std::as_bytes(std::span(blocks))}};
  const auto path = folder_ / "out.safetensors";
  write_safetensors(path, tensors, {{"command", "a \"quoted\" one"}});
  const auto read = Checkpoint::open(path);
  ASSERT_EQ(read.tensors().size(), 3u);
  for (const auto& tensor : tensors) {
    EXPECT_EQ(read.at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(read.at(tensor.name).dtype, tensor.dtype);
    EXPECT_EQ(read.read(read.at(tensor.name)), std::vector<std::byte>(tensor.bytes.begin(), tensor.bytes.end()));
  }
  EXPECT_EQ(read.shards().at(0).data_offset % 8, 0u);
}

TEST_F(SafetensorsWriter, LeavesNothingWhereItFails) {
  std::filesystem::create_directories(folder_ / "taken.safetensors" / "inside");
  EXPECT_THROW(write_safetensors(folder_ / "taken.safetensors", {}), base::Error);
  EXPECT_THROW(write_safetensors(folder_ / "absent" / "x.safetensors", {}), base::Error);
  const std::vector<TensorData> wrong = {{.name = "x", .dtype = Dtype::kF32, .shape = {2}, .bytes = {}}};
  EXPECT_THROW(write_safetensors(folder_ / "wrong.safetensors", wrong), base::Error);
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++entries;
  EXPECT_EQ(entries, 1u);
}

TEST_F(SafetensorsWriter, ReplacesAnOlderFileWhole) {
  const auto path = folder_ / "out.safetensors";
  base::write_text(path, std::string(100000, 'x'));
  write_safetensors(path, {});
  EXPECT_TRUE(Checkpoint::open(path).tensors().empty());
}

}  // namespace
}  // namespace tandem::checkpoint
