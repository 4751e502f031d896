// `tandem plan`: what a model takes of a card's memory, without loading it.
#include <fmt/format.h>
#include <memory>

#include "artifact/artifact.h"
#include "base/json.h"
#include "base/units.h"
#include "commands.h"
#include "engine/limits.h"
#include "engine/memory_plan.h"
#include "engine/placement.h"
#include "options.h"

namespace tandem::app {

namespace {

struct PlanOptions {
  engine::EngineOptions engine;
  bool json = false;
};

// Without the card that is asked for, the plan is for one of the size of --vram-limit.
device::Card planned_card(const engine::EngineOptions& options, int64_t& free_bytes) {
  const engine::DeviceName name = engine::parse_devices(options.device)[0];
  const auto found = device::cards();
  if (name.kind == engine::DeviceKind::kCuda && name.ordinal < static_cast<int>(found.size())) {
    free_bytes = device::open_card(name.ordinal)->free_bytes();
    return found[static_cast<size_t>(name.ordinal)];
  }
  if (options.vram_limit == 0) {
    base::bad_input("plan", "there is no card to plan for: --vram-limit 16GiB plans for one of that size");
  }
  // What the driver and the kernels take of a card before anything else.
  constexpr int64_t kDriverBytes = int64_t{512} << 20;
  const auto memory = static_cast<int64_t>(options.vram_limit);
  free_bytes = memory - kDriverBytes;
  return {.name = fmt::format("a card of {}", base::format_bytes(options.vram_limit)),
          .capability_major = 12,
          .multiprocessors = 70,
          .driver = "",
          .memory_bytes = memory};
}

void print_text(const engine::MemoryPlan& plan, const device::Card& card) {
  for (const auto& row : plan.rows) {
    fmt::print("{:<12} {:>12}  {}\n", row.name, base::format_bytes(static_cast<uint64_t>(row.bytes)), row.note);
  }
  fmt::print("{:<12} {:>12}  of {} that {} leaves\n", "together",
             base::format_bytes(static_cast<uint64_t>(plan.total())),
             base::format_bytes(static_cast<uint64_t>(std::max<int64_t>(plan.limit, 0))), card.name);
  if (!plan.fits()) fmt::print("{}\n", plan.refusal());
}

void print_json(const engine::MemoryPlan& plan, const device::Card& card) {
  base::Json answer;
  answer["card"] = card.name;
  answer["limit_bytes"] = plan.limit;
  answer["total_bytes"] = plan.total();
  answer["fits"] = plan.fits();
  answer["rows"] = base::Json::array();
  for (const auto& row : plan.rows) {
    answer["rows"].push_back({{"name", row.name}, {"bytes", row.bytes}, {"note", row.note}});
  }
  fmt::print("{}\n", answer.dump());
}

void plan(const PlanOptions& options) {
  int64_t free_bytes = 0;
  const device::Card card = planned_card(options.engine, free_bytes);
  const auto artifact = artifact::Artifact::open(options.engine.artifact);
  const auto config = model::Config::from_json(artifact.config(), artifact.folder().string());
  const engine::EngineOptions limits = engine::resolve_limits(options.engine, config);
  model::LoadOptions load = limits.load;
  const engine::MemoryPlan made =
      engine::fitting_plan(artifact, limits, card, engine::usable_memory(limits, card, free_bytes), load);
  if (options.json) {
    print_json(made, card);
  } else {
    print_text(made, card);
  }
  if (!made.fits()) throw NegativeAnswer();
}

}  // namespace

void add_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  options->engine.device = "cuda:0";
  CLI::App* command = app.add_subcommand("plan", "What a model takes of a card's memory, without loading it");
  add_model_options(*command, options->engine);
  add_context_options(*command, options->engine);
  add_concurrency_options(*command, options->engine);
  per_call(command->add_flag("--json", options->json, "Print JSON"));
  command->footer(
      "Prints every part with its bytes. Exit code 1 where it does not fit.\n\n"
      "Example:\n  tandem plan qwen.tandem --vram-limit 16GiB --kv-cache int8 --max-context 65536");
  command->callback([options] { plan(*options); });
}

}  // namespace tandem::app
