// Synthetic checkpoints and the bench of the n-gram reader, as users call them.
#include <gmock/gmock.h>
#include <string>

#include "base/json.h"
#include "tandem_runner.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Synth, ACheckpointMadeByTheCommandConvertsAndAnswers) {
  const testing::TandemRunner runner("tandem-cli-synth");
  const auto made = runner.run({"synth", "flash-nvfp4", "-o", runner.path("tiny"), "--layers", "2", "--json"});
  ASSERT_EQ(made.code, 0) << made.error;
  const base::Json result = base::parse_json(made.out, "synth");
  EXPECT_GE(result["shards"].get<int>(), 2);
  ASSERT_EQ(runner.run({"convert", runner.path("tiny"), "-o", runner.path("tiny.tandem"), "--quiet"}).code, 0);
  const auto answer = runner.run({"run", runner.path("tiny.tandem"), "--raw", "hello", "--max-tokens", "3"});
  EXPECT_EQ(answer.code, 0) << answer.error;
}

TEST(Synth, WhatIsWrongIsOneLineAndExitCode2) {
  const testing::TandemRunner runner("tandem-cli-synth-bad");
  const auto unknown = runner.run({"synth", "flash-int1", "-o", runner.path("a")});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.error, HasSubstr("\"flash-int1\" is not known; known are flash-nvfp4"));
  const auto scale = runner.run({"synth", "27b-bf16", "-o", runner.path("a"), "--scale", "huge"});
  EXPECT_EQ(scale.code, 2);
  EXPECT_THAT(scale.error, HasSubstr("none of tiny, small, full"));
  EXPECT_EQ(runner.run({"synth", "27b-bf16"}).code, 2) << "no --out";
  EXPECT_EQ(runner.run({"synth", "27b-bf16", "-o", runner.path("a"), "--hidden", "7"}).code, 2);
}

TEST(Bench, NgramGivesItsFiguresAndLeavesNothingBehind) {
  const testing::TandemRunner runner("tandem-cli-bench-ngram");
  const auto result =
      runner.run({"bench", "ngram", "--dir", runner.path(""), "--size", "8MiB", "--reads", "512", "--json"});
  ASSERT_EQ(result.code, 0) << result.error;
  const base::Json report = base::parse_json(result.out, "bench");
  for (const char* figure : {"ngram.disk_reads_s", "ngram.rows_s", "ngram.random_read_fraction", "ngram.cached_us"}) {
    EXPECT_GT(report["figures"][figure].get<double>(), 0) << figure;
  }
  EXPECT_EQ(report["raw"]["cached_waits"], 0);
  for (const auto& entry : std::filesystem::directory_iterator(runner.path(""))) {
    EXPECT_THAT(entry.path().filename().string(), StartsWith("std")) << "only the runner's own files";
  }
  EXPECT_EQ(runner.run({"bench", "ngram", "--size", "1KiB"}).code, 2);
}

}  // namespace
}  // namespace tandem
