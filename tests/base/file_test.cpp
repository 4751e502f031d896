#include "base/file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "base/error.h"

namespace tandem::base {
namespace {

using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tandem_file_" + std::to_string(::getpid()));
};

TEST_F(FileTest, WritesAndReadsByPosition) {
  File file = File::open_write(folder_ / "data");
  const std::string text = "hello";
  file.write_at(3, std::as_bytes(std::span(text)));
  EXPECT_EQ(file.size(), 8u);
  std::string back(5, '?');
  File::open_read(folder_ / "data").read_at(3, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, text);
}

TEST_F(FileTest, ReadingPastTheEndTellsTheFigures) {
  write_text(folder_ / "short", "abc");
  std::string out(10, '?');
  try {
    File::open_read(folder_ / "short").read_at(1, std::as_writable_bytes(std::span(out)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("short"));
    EXPECT_THAT(error.what(), HasSubstr("ends at byte 3, but bytes 1 to 11"));
  }
}

TEST_F(FileTest, RefusesFoldersAbsentFilesAndTooLargeTexts) {
  EXPECT_THROW((void)File::open_read(folder_), Error);
  EXPECT_THROW((void)File::open_read(folder_ / "absent"), Error);
  write_text(folder_ / "text", "12345");
  EXPECT_THROW((void)read_text(folder_ / "text", 4), Error);
  EXPECT_EQ(read_text(folder_ / "text", 5), "12345");
}

TEST_F(FileTest, ReplacingATextLeavesNoPartialFile) {
  write_text(folder_ / "text", "old");
  write_text(folder_ / "text", "new");
  EXPECT_EQ(read_text(folder_ / "text", 10), "new");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1);
}

TEST_F(FileTest, FreeSpaceIsTakenFromTheNearestExistingFolder) {
  EXPECT_GT(free_disk_bytes(folder_ / "not" / "yet" / "there"), 0u);
}

}  // namespace
}  // namespace tandem::base
