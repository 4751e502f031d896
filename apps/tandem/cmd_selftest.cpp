// `tandem selftest`: whether a card computes what the processor does.
#include <fmt/format.h>
#include <memory>

#include "base/json.h"
#include "commands.h"
#include "engine/placement.h"
#include "options.h"
#include "selftest/selftest.h"

namespace tandem::app {

namespace {

struct SelftestOptions {
  engine::EngineOptions engine;
  selftest::Settings settings;
  bool json = false;
};

base::Json to_json(const selftest::Trial& trial) {
  base::Json operations = base::Json::object();
  for (const auto& [name, report] : trial.reports) {
    operations[name] = {{"calls", report.calls},
                        {"worst", report.worst},
                        {"tolerance", report.tolerance},
                        {"where", report.where},
                        {"passed", report.passed()}};
  }
  return {{"name", trial.name}, {"passed", trial.passed()}, {"operations", std::move(operations)}};
}

void print_text(const selftest::Trial& trial) {
  fmt::print("{}: {}\n", trial.name, trial.passed() ? "passed" : "FAILED");
  for (const auto& [name, report] : trial.reports) {
    fmt::print("  {:<17} {:>5} calls, error {:.1e} of {:.1e} at {}{}\n", name, report.calls, report.worst,
               report.tolerance, report.where, report.passed() ? "" : "  <- FAILED");
  }
  std::fflush(stdout);
}

void selftest_card(const SelftestOptions& options) {
  const auto device = engine::open_device(options.engine.device);
  base::WorkerPool pool(options.engine.threads);
  const auto trials = selftest::run(*device, pool, options.settings, [&](const selftest::Trial& trial) {
    if (!options.json) print_text(trial);
  });
  bool passed = true;
  for (const selftest::Trial& trial : trials) passed = passed && trial.passed();
  if (options.json) {
    base::Json answer = {{"device", device->describe()}, {"passed", passed}, {"trials", base::Json::array()}};
    for (const selftest::Trial& trial : trials) answer["trials"].push_back(to_json(trial));
    fmt::print("{}\n", answer.dump());
  } else {
    fmt::print("{}: {}\n", device->describe(), passed ? "everything agrees with the processor" : "FAILED");
  }
  if (!passed) throw NegativeAnswer();
}

}  // namespace

void add_selftest(CLI::App& app) {
  const auto options = std::make_shared<SelftestOptions>();
  options->engine.device = "cuda:0";
  CLI::App* command = app.add_subcommand("selftest", "Compare every operation of a card with the processor's");
  add_machine_options(*command, options->engine);
  per_call(command->add_flag("--quick", options->settings.quick, "Shorter prompts: some seconds"));
  per_call(command->add_flag("--json", options->json, "Print JSON"));
  command->footer(
      "Small synthetic models run on the card; every operation's result is compared with what the processor\n"
      "computes from the same inputs. Exit code 1 where one differs by more than its tolerance.\n\n"
      "Example:\n  tandem selftest --device cuda:0");
  command->callback([options] { selftest_card(*options); });
}

}  // namespace tandem::app
