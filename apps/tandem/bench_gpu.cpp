#include "bench_gpu.h"

#include <memory>

#include "base/error.h"
#include "device/cards.h"
#include "options.h"

#ifdef TANDEM_WITH_CUDA
#include "engine/placement.h"
#include "gpu_start.h"
#include "gpu_steps.h"
#include "ops/cuda/op_figures.h"
#endif

namespace tandem::app {
namespace {

#ifdef TANDEM_WITH_CUDA

void measure_operations(Measured& measured, device::Device& card) {
  auto figures = ops::cuda::measure_dense(card, measured.options.rounds);
  for (auto& figure : ops::cuda::measure_experts(card, measured.options.rounds)) figures.push_back(std::move(figure));
  figures.push_back(ops::cuda::measure_attention(card, measured.options.rounds));
  for (const ops::cuda::OpFigure& figure : figures) {
    measured.report.raw[figure.name] = {
        {"bytes", figure.bytes}, {"operations", figure.operations}, {"s", figure.seconds}};
    measured.report.figures[figure.name + ".read_fraction"] =
        static_cast<double>(figure.bytes) / figure.seconds / measured.ceilings.read_bytes_s;
    measured.report.figures[figure.name + ".matmul_fraction"] =
        figure.operations / figure.seconds / measured.ceilings.matmul_flops_s;
  }
  measured.report.figures["gdn.chunk_speedup"] = ops::cuda::measure_delta_speedup(card, measured.options.rounds);
}

void bench_gpu(const GpuOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
  for (const int64_t chunk : options.prefill_chunks) {
    if (chunk < 64 || chunk % 64 != 0) base::bad_input("--prefill-chunk", "{} is no multiple of 64", chunk);
  }
  const engine::DeviceName name = engine::parse_devices(options.engine.device)[0];
  if (name.kind != engine::DeviceKind::kCuda) base::bad_input("--device", "'{}' is no card", options.engine.device);
  const device::Card card = device::require_card(name.ordinal);
  const auto device = std::make_shared<device::cuda::WatchedDevice>(card);
  BenchReport report;
  report.bench = "gpu";
  report.raw["card"] = {{"name", card.name},
                        {"capability", fmt::format("{}.{}", card.capability_major, card.capability_minor)},
                        {"multiprocessors", card.multiprocessors},
                        {"driver", "CUDA " + card.driver},
                        {"memory_bytes", card.memory_bytes}};
  Measured measured{report, options, ops::cuda::measure_ceilings(*device, options.rounds)};
  report.figures["gpu.read_gb_s"] = measured.ceilings.read_bytes_s / 1e9;
  report.figures["gpu.copy_gb_s"] = measured.ceilings.copy_bytes_s / 1e9;
  report.figures["gpu.matmul_tflops"] = measured.ceilings.matmul_flops_s / 1e12;
  if (!options.no_operations) measure_operations(measured, *device);
  if (!options.start.empty()) measure_start(measured, options.start, device);
  if (options.no_models) return report.print(options.json);
  for (const std::string& form : options.models) measure_model(measured, form, device);
  report.print(options.json);
}

#endif

}  // namespace

void add_bench_gpu(CLI::App& bench) {
#ifdef TANDEM_WITH_CUDA
  const auto options = std::make_shared<GpuOptions>();
  options->engine.device = "cuda:0";
  CLI::App* command =
      bench.add_subcommand("gpu", "A card's operations and whole steps against what the card can do at best");
  add_machine_options(*command, options->engine);
  per_call(command->add_option("--models", options->models, "Forms of synthetic models (tandem synth --list)"))
      ->delimiter(',')
      ->capture_default_str();
  per_call(command->add_option("--start", options->start,
                               "Also measure how long a model takes to load from files: a folder to make"));
  per_call(command->add_option("--layers", options->layers, "Layers of the models; 0 takes the published number"));
  per_call(command->add_option("--contexts", options->contexts, "Tokens before the decoded one"))
      ->delimiter(',')
      ->capture_default_str();
  per_call(command->add_option("--widths", options->widths, "Sequences that are decoded together"))
      ->delimiter(',')
      ->capture_default_str();
  per_call(command->add_option("--prompts", options->prompts, "Tokens of prompts that are read"))
      ->delimiter(',')
      ->capture_default_str();
  per_call(command->add_option("--prefill-chunk", options->prefill_chunks,
                               "Tokens of a prompt in one step; of several the fastest counts"))
      ->delimiter(',')
      ->capture_default_str();
  per_call(command->add_flag("--no-operations", options->no_operations, "Measure whole steps alone"));
  per_call(command->add_flag("--no-models", options->no_models, "Measure no steps"));
  per_call(command->add_option("--gap-steps", options->gap_steps,
                               "Decoded tokens that the host's time between steps is measured over; 0: not at all"))
      ->capture_default_str();
  per_call(command->add_option("--steps", options->steps, "Decoded tokens"))->capture_default_str();
  per_call(command->add_option("--rounds", options->rounds, "Rounds, at least 5"))->capture_default_str();
  per_call(command->add_flag("--json", options->json, "Print JSON"));
  command->footer("Example:\n  tandem bench gpu --models flash-nvfp4 --contexts 1024,65536 --json");
  command->callback([options] { bench_gpu(*options); });
#else
  CLI::App* command = bench.add_subcommand("gpu", "Needs a build with CUDA");
  command->callback([] { (void)device::require_card(0); });
#endif
}

}  // namespace tandem::app
