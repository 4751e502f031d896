// The comparison itself, without a card: the processor against itself agrees, and a wrong operation is found by name.
#include "selftest/selftest.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "ops/host/host_ops.h"
#include "selftest/first_start.h"
#include "selftest/parity_ops.h"

namespace tandem::selftest {
namespace {

using ::testing::Contains;
using ::testing::Key;

TEST(Selftest, TheProcessorAgreesWithItselfOnEveryOperation) {
  base::WorkerPool pool(2);
  Reports all;
  run(device::host(), pool, {.quick = true}, [&](const Trial& trial) {
    EXPECT_TRUE(trial.passed()) << trial.name;
    all.insert(trial.reports.begin(), trial.reports.end());
    for (const auto& [name, report] : trial.reports) EXPECT_EQ(report.worst, 0) << trial.name << " " << name;
  });
  for (const char* name :
       {"embed",           "rms_norm",     "add_rms_norm",    "linear",          "linear_halves",    "linear_group",
        "linear_sum",      "swiglu",       "add_to_streams",  "concatenate",     "hyper_mix",        "hyper_inject",
        "causal_conv",     "delta_net",    "gated_norm",      "gated_delta_net", "attention_inputs", "index_inputs",
        "select_blocks",   "attention",    "gated_attention", "router_and_gate", "hyper_inject_mix", "experts",
        "combine_experts", "ngram_memory", "greedy",          "expert_mixture",  "top_logits"}) {
    EXPECT_THAT(all, Contains(Key(name))) << "no trial runs it";
  }
}

// Adds a little to one value of what a norm gives.
class WrongNorm final : public ops::host::HostOps {
 public:
  using HostOps::HostOps;
  void rms_norm(const float* x, int64_t tokens, int64_t groups, int64_t width, const float* weight, float eps,
                float* out) override {
    HostOps::rms_norm(x, tokens, groups, width, weight, eps, out);
    out[tokens * groups * width - 1] += 0.01F;
  }
};

TEST(Selftest, AWrongOperationIsNamed) {
  base::WorkerPool pool(1);
  WrongNorm wrong(pool, false);
  ops::host::HostOps right(pool, false);
  ops::OpsOptions options;
  options.round_inputs = false;
  ParityOps parity(wrong, device::host(), right, options);
  const std::vector<float> x(64, 1.0F);
  const std::vector<float> weight(32, 0.5F);
  std::vector<float> out(64);
  parity.rms_norm(x.data(), 2, 1, 32, weight.data(), 1e-6F, out.data());
  parity.add(out.data(), x.data(), 64);
  EXPECT_FALSE(parity.reports().at("rms_norm").passed());
  EXPECT_TRUE(parity.reports().at("add").passed());
}

// Keeps its result by card, driver and build; what is no result is not taken for one.
TEST(FirstStart, RunsOnceForACardAndKeepsWhatItFound) {
  const auto folder = std::filesystem::temp_directory_path() / ("tandem_first_start_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  base::WorkerPool pool(2);
  device::Card card;
  card.name = "a card";
  card.driver = "13.0";
  const auto files = [&] {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path());
    return found;
  };
  EXPECT_TRUE(portable_operations(device::host(), card, pool, folder).empty());
  ASSERT_EQ(files().size(), 1u);
  // The stored answer is what the next start takes.
  base::Json stored = base::parse_json(base::read_text(files()[0], 1 << 16), "result");
  stored["portable"] = {"attention"};
  base::write_text(files()[0], stored.dump());
  EXPECT_EQ(portable_operations(device::host(), card, pool, folder), std::set<std::string>{"attention"});
  base::write_text(files()[0], "{\"portable\": [\"linear\"]}");
  EXPECT_TRUE(portable_operations(device::host(), card, pool, folder).empty()) << "a file of nobody's";
  card.driver = "13.1";
  EXPECT_TRUE(portable_operations(device::host(), card, pool, folder).empty());
  EXPECT_EQ(files().size(), 2u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::selftest
