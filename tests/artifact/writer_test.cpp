#include "artifact/writer.h"

#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "artifact/artifact.h"
#include "small_artifact.h"
#include "temp_folder.h"

namespace tandem::artifact {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace tandem::testing;

constexpr uint64_t kPart = 20480;

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = base::read_text(entry.path(), 1 << 24);
  }
  return files;
}

class Resuming : public ::testing::Test {
 protected:
  Writer writer() { return Writer(partial_, small_objects(kPart), new_journal(partial_)); }
  void finish(Writer& writer) {
    while (writer.completed() < writer.objects().size()) write_next(writer);
    writer.finish(out_, {{"tool", "test"}});
  }
  std::map<std::string, std::string> uninterrupted() {
    write_small(folder_ / "whole.tandem", kPart);
    return files_of(folder_ / "whole.tandem");
  }

  TempFolder folder_;
  fs::path out_ = folder_ / "small.tandem";
  fs::path partial_ = partial_folder(out_);
};

TEST_F(Resuming, GivesTheSameBytesAfterAnyNumberOfObjects) {
  const auto expected = uninterrupted();
  EXPECT_GT(expected.size(), 3u);  // several parts
  for (size_t stop = 0; stop <= small_objects(kPart).size(); ++stop) {
    {
      Writer first = writer();
      while (first.completed() < stop) write_next(first);
      if (stop == 2)
        first.append(small_content(first.objects()[2]).size() > 10
                         ? std::span<const std::byte>(small_content(first.objects()[2])).first(10)
                         : std::span<const std::byte>());
    }
    Writer second = writer();
    EXPECT_EQ(second.completed(), stop);
    finish(second);
    EXPECT_EQ(files_of(out_), expected) << "stopped after " << stop;
    fs::remove_all(out_);
  }
}

TEST_F(Resuming, WritesAgainWhatDidNotReachTheDisk) {
  const auto expected = uninterrupted();
  {
    Writer first = writer();
    for (int i = 0; i < 2; ++i) write_next(first);
  }
  // The journal says two objects, but the second one's bytes were lost.
  const Object second = small_objects(kPart)[1];
  base::File::open_write(partial_ / part_name(second.part)).truncate(second.offset + 1);
  Writer again = writer();
  EXPECT_EQ(again.completed(), 1u);
  finish(again);
  EXPECT_EQ(files_of(out_), expected);
}

TEST_F(Resuming, DoesNotTrustWhatAnEarlierReadBackDidNotFind) {
  const auto expected = uninterrupted();
  {
    Writer first = writer();
    for (int i = 0; i < 2; ++i) write_next(first);
  }
  const Object second = small_objects(kPart)[1];
  base::File::open_write(partial_ / part_name(second.part)).truncate(second.offset + 1);
  // Settles on one object, and is interrupted before it writes the second one again.
  EXPECT_EQ(writer().completed(), 1u);
  Writer again = writer();
  EXPECT_EQ(again.completed(), 1u);
  finish(again);
  EXPECT_EQ(files_of(out_), expected);
}

TEST_F(Resuming, IgnoresATornJournalLine) {
  const auto expected = uninterrupted();
  {
    Writer first = writer();
    for (int i = 0; i < 3; ++i) write_next(first);
  }
  const uint64_t bytes = fs::file_size(partial_ / kJournalFile);
  fs::resize_file(partial_ / kJournalFile, bytes - 5);
  Writer again = writer();
  EXPECT_LE(again.completed(), 3u);
  EXPECT_GE(again.completed(), 2u);
  finish(again);
  EXPECT_EQ(files_of(out_), expected);
}

TEST_F(Resuming, OneProcessAtATime) {
  const Writer first = writer();
  EXPECT_THAT(error_of([&] { (void)writer(); }), HasSubstr("another conversion is writing here"));
}

TEST_F(Resuming, AFinishedArtifactReplacesTheOneThatWasThere) {
  write_small(out_);
  const auto before = files_of(out_);
  write_small(out_, kPart);
  EXPECT_NE(files_of(out_), before);
  EXPECT_FALSE(fs::exists(partial_));
  std::vector<std::string> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, ::testing::ElementsAre("small.tandem"));
}

// A limit on file sizes stands in for a full disk: the write fails in the same place.
TEST_F(Resuming, AFailedWriteIsAnErrorThatNamesTheFileAndKeepsWhatIsDone) {
  const auto expected = uninterrupted();
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 30000, .rlim_max = 30000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = error_of([&] {
      Writer first = writer();
      while (first.completed() < first.objects().size()) write_next(first);
    });
    ::_exit(message.find("part-0000") != std::string::npos && message.find("cannot write") != std::string::npos ? 0
                                                                                                                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Writer again = writer();
  EXPECT_GE(again.completed(), 2u);
  finish(again);
  EXPECT_EQ(files_of(out_), expected);
}

}  // namespace
}  // namespace tandem::artifact
