// `tandem bench api` and what it measures with.
#include <gtest/gtest.h>

#include "base/json.h"
#include "capture_replay.h"
#include "tandem_runner.h"
#include "tool_call_trials.h"

namespace tandem {
namespace {

TEST(ToolCallTrials, HostileCallsComeBackAsTheyWere) {
  const auto trials = app::run_tool_call_trials(1, 4000, 1000);
  EXPECT_EQ(trials.malformed, 0) << trials.first_fault;
  EXPECT_GE(trials.calls, 4000);
  EXPECT_EQ(trials.mutilated, 1000);
  EXPECT_GT(trials.splits, 10'000);
}

TEST(EventStream, FaultsAreNamed) {
  const std::string good = ": note\n\ndata: {\"a\":1}\n\nevent: ping\ndata: {}\n\ndata: [DONE]\n\n";
  EXPECT_EQ(app::event_stream_fault(good), "");
  EXPECT_EQ(app::event_stream_fault("event: message_stop\ndata: {}\n\n"), "");
  for (const char* bad : {"", "data: {}\n\n", "data: [DONE]\n", "data: {\n\ndata: [DONE]\n\n", "text\n\n",
                          "data: [DONE]\n\ndata: {}\n\n", "event: error\ndata: {}\n\ndata: [DONE]\n\n"}) {
    EXPECT_NE(app::event_stream_fault(bad), "") << bad;
  }
}

TEST(BenchApi, TellsEveryFigure) {
  const testing::TandemRunner runner("tandem-bench-api");
  const std::string model = runner.path("demo.tandem");
  ASSERT_EQ(runner.run({"convert", TANDEM_SOURCE_DIR "/models/demo-flash", "-o", model}).code, 0);
  const auto result =
      runner.run({"bench", "api", model, "--json", "--calls", "200", "--mutilated", "50", "--connections", "8",
                  "--tokens", "20", "--disconnects", "200", "--captures", TANDEM_CAPTURES});
  ASSERT_EQ(result.code, 0) << result.error;
  const base::Json figures = base::parse_json(result.out, "report").at("figures");
  EXPECT_GE(figures.at("tools.calls"), 200);
  EXPECT_EQ(figures.at("tools.malformed"), 0);
  EXPECT_EQ(figures.at("api.captures_total"), 99);
  EXPECT_EQ(figures.at("api.captures_ok"), 99) << result.error;
  EXPECT_GT(figures.at("request.overhead_ms"), 0);
  EXPECT_GT(figures.at("load.tokens_per_s"), 0);
  EXPECT_GE(figures.at("load.p99_gap_ms"), 0);
  EXPECT_GT(figures.at("mask.median_us"), 0);
  EXPECT_TRUE(figures.contains("disconnect.rss_growth_fraction"));
  EXPECT_EQ(figures.at("disconnect.descriptors_left"), 0);
  EXPECT_EQ(figures.at("disconnect.slots_left"), 0);
  EXPECT_EQ(runner.run({"bench", "api", model, "--connections", "65"}).code, 2);
  EXPECT_EQ(runner.run({"bench", "api", runner.path("absent.tandem")}).code, 2);
}

}  // namespace
}  // namespace tandem
