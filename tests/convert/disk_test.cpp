// What a conversion asks of the disk, and what happens where it gets less.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "artifact/artifact.h"
#include "checkpoint_folder.h"
#include "convert/convert.h"
#include "convert/disk_need.h"
#include "convert/plans.h"
#include "convert/verify.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace tandem::testing;

class Disk : public ::testing::Test {
 protected:
  TempFolder folder_;
  fs::path out_ = folder_ / "model.tandem";
};

TEST_F(Disk, TooSmallIsRefusedWithTheFiguresBeforeAnythingIsWritten) {
  Options options = quiet_options();
  options.free_bytes = [](const fs::path&) { return uint64_t{10} << 20; };
  std::string message;
  try {
    convert(demo_flash(), out_, options);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kUnavailable);
    message = error.what();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("MiB of free disk"), HasSubstr("10 MiB"), HasSubstr("10485760 bytes")));
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_FALSE(fs::exists(folder_ / "model.tandem.partial"));
}

TEST_F(Disk, ConsumingNeedsLess) {
  copy_folder(demo_flash(), folder_ / "source");
  // The artifact has 19.8 MiB; the first shard's 14.9 MiB come back before the second shard's objects are written.
  Options options = quiet_options();
  options.free_bytes = [](const fs::path&) { return uint64_t{18} << 20; };
  EXPECT_THAT(error_of([&] { convert(folder_ / "source", out_, options); }), HasSubstr("with --consume"));
  options.consume = true;
  convert(folder_ / "source", out_, options);
  EXPECT_TRUE(verify(artifact::Artifact::open(out_), demo_flash(), true).holds());
}

TEST_F(Disk, WhatIsThereAlreadyIsNotAskedForAgain) {
  Options options = quiet_options();
  options.stop = [](size_t done) { return done >= 100; };
  error_of([&] { convert(demo_flash(), out_, options); });
  options.stop = nullptr;
  options.free_bytes = [](const fs::path&) { return uint64_t{16} << 20; };
  EXPECT_GE(convert(demo_flash(), out_, options).resumed_objects, 100u);
}

// A limit on file sizes makes a write fail where a full disk would.
TEST_F(Disk, AFailingWriteKeepsWhatIsDoneAndSaysSo) {
  convert(qsa_random(), folder_ / "whole.tandem", quiet_options());
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message;
    try {
      convert(qsa_random(), out_, quiet_options());
    } catch (const base::Error& error) {
      if (error.kind() == base::ErrorKind::kUnavailable) message = error.what();
    }
    const bool told = message.find("part-00000.bin: cannot write") != std::string::npos &&
                      message.find("the same command goes on from there") != std::string::npos;
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_GT(convert(qsa_random(), out_, quiet_options()).resumed_objects, 10u);
  EXPECT_EQ(files_of(out_), files_of(folder_ / "whole.tandem"));
}

class ThreeTensors : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < 3; ++i) {
      tensors_[i] = {.name = fmt::format("t{}", i),
                     .dtype = checkpoint::Dtype::kU8,
                     .shape = {4096 * 100},
                     .shard = i,
                     .offset = 0,
                     .bytes = 4096 * 100};
      plans_.push_back(plan_tensor(tensors_[i]));
    }
  }
  uint64_t peak(size_t done, const std::vector<uint64_t>& freed) const {
    return peak_bytes(plans_, done, last_uses(plans_, 3), freed) - peak_bytes({}, 0, {}, {}) - 3 * 1024;
  }

  checkpoint::Tensor tensors_[3];
  Plans plans_;
};

TEST_F(ThreeTensors, PeakIsTheSumWithoutConsuming) {
  EXPECT_EQ(peak(0, {0, 0, 0}), 3 * 409600u);
  EXPECT_EQ(peak(2, {0, 0, 0}), 409600u);
}

TEST_F(ThreeTensors, PeakIsOneShardAheadWhereEachIsFreedAfterItsUse) {
  EXPECT_EQ(peak(0, {409600, 409600, 409600}), 409600u);
  EXPECT_EQ(peak(0, {0, 409600, 409600}), 2 * 409600u);
}

}  // namespace
}  // namespace tandem::convert
