// The largest published checkpoint, headers only: recognised within the time and memory that a start-up may take.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "checkpoint/recognise.h"
#include "files.h"
#include "tests/support/slack.h"

namespace tandem::checkpoint {
namespace {

using testing_support::kSlack;

class FlashNextHeaders : public TemporaryFolder {
 protected:
  void SetUp() override {
    const std::string command = fmt::format("python3 '{}/tests/checkpoint/flash_next_headers.py' '{}' > '{}'",
                                            TANDEM_SOURCE_DIR, folder_.string(), (folder_ / "log").string());
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
};

// Runs in a process of its own, so that its peak memory is its own.
int recognise_and_compare(const std::filesystem::path& folder) {
  const Recognised found = recognise(Checkpoint::open(folder));
  const std::string expected =
      "qwen4_exp, modelopt MIXED_PRECISION: 179999981459 parameters in 299545 tensors, 123.5 GiB; experts NVFP4, "
      "n-gram "
      "table FP8 tensor, draft experts FP8 128x128, all other matrices BF16; with a draft head and a vision tower";
  if (found.text() == expected && found.has_input_scales) return 0;
  std::fprintf(stderr, "recognised as: %s\n", found.text().c_str());
  return 1;
}

TEST_F(FlashNextHeaders, AreRecognisedInThreeSecondsAndOneGibibyte) {
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int result = 2;
    try {
      result = recognise_and_compare(folder_);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::_Exit(result);
  }
  int status = 0;
  rusage usage{};
  ASSERT_EQ(::wait4(child, &status, 0, &usage), child);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  // The processor's time is judged, for other work on the machine must not fail the test.
  const double processor = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  const double gibibytes = static_cast<double>(usage.ru_maxrss) / (1 << 20);
  std::printf("processor %.2f s, wall %.2f s, peak %.3f GiB\n", processor, wall.count(), gibibytes);
  EXPECT_LT(processor, 3 * kSlack);
  EXPECT_LT(gibibytes, 1 * kSlack);
}

}  // namespace
}  // namespace tandem::checkpoint
