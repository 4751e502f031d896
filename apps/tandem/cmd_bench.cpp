#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "artifact/artifact.h"
#include "base/error.h"
#include "bench_api.h"
#include "bench_decode.h"
#include "bench_dense.h"
#include "bench_experts.h"
#include "bench_gpu.h"
#include "bench_ngram.h"
#include "bench_report.h"
#include "ceilings.h"
#include "commands.h"
#include "engine/placement.h"
#include "generate.h"
#include "options.h"

namespace tandem::app {
namespace {

struct HostOptions {
  engine::EngineOptions engine;
  std::vector<std::string> models;
  int rounds = kLeastRounds;
  int64_t prompt_tokens = 512;
  int64_t answer_tokens = 64;
  bool json = false;
};

void add_ceiling(BenchReport& report, const std::string& name, const std::string& what, const std::string& figure,
                 const Ceiling& ceiling) {
  report.raw[name + "_" + what] = ceiling.amount;
  report.raw[name + "_s"] = ceiling.seconds;
  report.figures[figure] = static_cast<double>(ceiling.amount) / median(ceiling.seconds) / 1e9;
}

void add_ceilings(BenchReport& report, const HostOptions& options) {
  base::WorkerPool pool(options.engine.threads);
  report.threads = pool.threads();
  add_ceiling(report, "read", "bytes", "read_gb_s", measure_read(pool, options.rounds));
  add_ceiling(report, "copy", "bytes", "copy_gb_s", measure_copy(pool, options.rounds));
  add_ceiling(report, "matmul", "operations", "matmul_gflop_s", measure_matmul(pool, options.rounds));
}

// Where the artifact's largest object lies: the disk is measured there.
std::filesystem::path largest_part(const std::filesystem::path& folder) {
  const auto artifact = artifact::Artifact::open(folder);
  const artifact::Object* largest = nullptr;
  for (const auto& object : artifact.objects()) {
    if (largest == nullptr || object.bytes > largest->bytes) largest = &object;
  }
  if (largest == nullptr) base::bad_input(folder.string(), "holds no objects");
  return artifact.part(largest->part).path();
}

// Ordinary tokens drawn with a fixed seed: the same prompt in every round and run.
std::vector<int32_t> bench_prompt(const text::Tokenizer& tokenizer, int64_t tokens) {
  std::mt19937 random(1);
  std::vector<int32_t> prompt;
  while (static_cast<int64_t>(prompt.size()) < tokens) {
    const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.size()));
    if (!tokenizer.is_added(id)) prompt.push_back(id);
  }
  return prompt;
}

void add_model(BenchReport& report, const HostOptions& options, const std::string& folder) {
  engine::EngineOptions engine_options = options.engine;
  engine_options.artifact = folder;
  engine_options.max_concurrency = 1;
  if (engine_options.max_context == 0) engine_options.max_context = options.prompt_tokens + options.answer_tokens;
  engine::Engine engine(engine_options);
  const std::string& name = engine.model_name();
  engine::Request request;
  request.prompt_ids = bench_prompt(engine.tokenizer(), options.prompt_tokens);
  request.max_tokens = options.answer_tokens;
  request.sampling.temperature = 0;
  request.raw = true;
  request.ignore_end_tokens = true;

  std::vector<double> prefill;
  std::vector<double> decode;
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    const auto answer = generate(engine, request, [](const text::OutputEvent&) {});
    if (round < 0) continue;
    prefill.push_back(answer.outcome.timings.prefill_seconds);
    decode.push_back(answer.outcome.timings.decode_seconds);
  }
  const int64_t steps = options.answer_tokens - 1;  // the prefill's last step gives the first token
  report.raw[name] = {{"prefill_tokens", options.prompt_tokens},
                      {"prefill_s", prefill},
                      {"decode_tokens", steps},
                      {"decode_s", decode}};
  report.figures[name + "_prefill_tokens_s"] = static_cast<double>(options.prompt_tokens) / median(prefill);
  report.figures[name + "_decode_tokens_s"] = static_cast<double>(steps) / median(decode);
}

void bench_host(const HostOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
  if (options.prompt_tokens < 1) base::bad_input("--prompt-tokens", "{} is below 1", options.prompt_tokens);
  if (options.answer_tokens < 2) base::bad_input("--answer-tokens", "{} is below 2", options.answer_tokens);
  // What is wrong with the call is told before the minutes of measuring.
  engine::require_placement(options.engine.device, options.engine.ranks);
  std::vector<std::filesystem::path> parts;
  for (const auto& model : options.models) parts.push_back(largest_part(model));

  BenchReport report;
  report.bench = "host";
  add_ceilings(report, options);
  add_ceiling(report, "disk", "bytes", "disk_gb_s", measure_disk(parts.front(), options.rounds));
  for (const auto& model : options.models) add_model(report, options, model);
  report.print(options.json);
}

void add_host(CLI::App& bench) {
  const auto options = std::make_shared<HostOptions>();
  CLI::App* command = bench.add_subcommand("host", "Prefill and decode on the processor, with the machine's ceilings");
  per_call(command->add_option("models", options->models, "The models: folders NAME.tandem"))
      ->required()
      ->type_name("MODEL");
  per_call(command->add_flag("--json", options->json, "Print one JSON object"));
  per_call(command->add_option("--rounds", options->rounds, "Rounds of each measurement, at least 5"))
      ->capture_default_str();
  per_call(command->add_option("--prompt-tokens", options->prompt_tokens, "Tokens that are read"))
      ->capture_default_str();
  per_call(command->add_option("--answer-tokens", options->answer_tokens, "Tokens that are drawn"))
      ->capture_default_str();
  add_machine_options(*command, options->engine);
  add_context_options(*command, options->engine);
  command->footer("Example:\n  tandem bench host demo-flash.tandem demo-dense.tandem --json");
  command->callback([options] { bench_host(*options); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measure; docs/bench.md explains every figure");
  command->require_subcommand(1);
  add_host(*command);
  add_bench_api(*command);
  add_bench_dense(*command);
  add_bench_experts(*command);
  add_bench_ngram(*command);
  add_bench_gpu(*command);
  add_bench_decode(*command);
}

}  // namespace tandem::app
