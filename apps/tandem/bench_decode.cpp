#include "bench_decode.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "artifact/artifact.h"
#include "base/error.h"
#include "base/pool.h"
#include "base/units.h"
#include "bench_report.h"
#include "ceilings.h"
#include "commands.h"
#include "context/sequence.h"
#include "engine/engine.h"
#include "engine/placement.h"
#include "model/model.h"
#include "options.h"
#include "synth/model.h"
#include "synthetic_model.h"

namespace tandem::app {
namespace {

struct DecodeOptions {
  engine::EngineOptions engine;
  synth::Settings settings;
  int64_t prompt_tokens = 64;
  int64_t answer_tokens = 32;
  int rounds = kLeastRounds;
  bool json = false;
};

void require_memory(uint64_t bytes) {
  const uint64_t available = available_memory_bytes();
  const uint64_t wanted = bytes + bytes / 16 + (uint64_t{1} << 30);
  if (wanted <= available) return;
  base::unavailable("bench decode",
                    "a model of {} needs {} of memory, {} are available: give fewer --layers or --experts",
                    base::format_bytes(bytes), base::format_bytes(wanted), base::format_bytes(available));
}

double decode_round(context::SequencePool& sequences, std::span<const int32_t> tokens, const DecodeOptions& options) {
  context::Sequence sequence = sequences.create();
  model::ForwardOutput output;
  const auto prompt = static_cast<size_t>(options.prompt_tokens);
  sequence.forward(tokens.first(prompt), {.logits = 0}, output);
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = prompt; i < tokens.size(); ++i) sequence.forward(tokens.subspan(i, 1), {.logits = 1}, output);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void check(const DecodeOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
  if (options.prompt_tokens < 1) base::bad_input("--prompt-tokens", "{} is below 1", options.prompt_tokens);
  if (options.answer_tokens < 1) base::bad_input("--answer-tokens", "{} is below 1", options.answer_tokens);
  engine::require_placement(options.engine.device, options.engine.ranks);
}

void measure(BenchReport& report, model::Model& model, base::WorkerPool& pool, const DecodeOptions& options) {
  const int64_t total = options.prompt_tokens + options.answer_tokens;
  context::SequencePool sequences(model, total, 1);
  const auto tokens = random_tokens(total, model.config().vocab);
  std::vector<double> seconds;
  std::vector<double> read_seconds;
  uint64_t read_bytes = 0;
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    const Ceiling read = measure_read(pool, 1);
    const double taken = decode_round(sequences, tokens, options);
    if (round < 0) continue;
    read_bytes = read.amount;
    read_seconds.push_back(read.seconds.front());
    seconds.push_back(taken);
  }
  const model::StateLayout& layout = model.state_layout();
  const int64_t middle = options.prompt_tokens + options.answer_tokens / 2;
  const int64_t state = layout.slot_bytes + middle * layout.page_bytes / model::kPageTokens;
  report.raw["state_bytes_per_token"] = state;
  report.raw["decode_tokens"] = options.answer_tokens;
  report.raw["decode_s"] = seconds;
  report.raw["read_bytes"] = read_bytes;
  report.raw["read_s"] = read_seconds;
  const auto counters = model.ngram_counters();
  report.raw["ngram"] = {{"hits", counters.hits},   {"late", counters.late},   {"misses", counters.misses},
                         {"reads", counters.reads}, {"waits", counters.waits}, {"wait_ns", counters.wait_ns}};
  const double token_s = median(seconds) / static_cast<double>(options.answer_tokens);
  const double ceiling = static_cast<double>(read_bytes) / median(read_seconds);
  const auto bytes = report.raw["dense_bytes_per_token"].get<double>() +
                     report.raw["expert_bytes_per_token"].get<double>() + static_cast<double>(state);
  report.figures["read_gb_s"] = ceiling / 1e9;
  report.figures["decode.synth.tokens_s"] = 1 / token_s;
  report.figures["decode.synth.gb_s"] = bytes / token_s / 1e9;
  report.figures["decode.synth.read_fraction"] = bytes / token_s / ceiling;
}

void bench_decode(const DecodeOptions& options) {
  check(options);
  const auto synthetic = std::make_shared<const synth::Model>(without_extras(options.settings));
  require_memory(synthetic->bytes());
  const artifact::Artifact artifact = synthetic_artifact(synthetic);
  base::WorkerPool pool(options.engine.threads);
  const auto device = engine::open_device(options.engine.device);
  model::LoadOptions load = options.engine.load;
  load.quiet = options.json;
  const auto begin = std::chrono::steady_clock::now();
  const auto model = model::Model::load(artifact, *device, pool, load);
  const TokenBytes token = bytes_of_token(artifact, model->config());

  BenchReport report;
  report.bench = "decode";
  report.threads = pool.threads();
  report.raw["model"] = {{"form", options.settings.form},
                         {"bytes", synthetic->bytes()},
                         {"layers", model->config().layers},
                         {"experts", model->config().experts},
                         {"top_k", model->config().top_k}};
  report.raw["load_s"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report.raw["dense_bytes_per_token"] = token.dense;
  report.raw["expert_bytes_per_token"] = token.experts;
  measure(report, *model, pool, options);
  report.print(options.json);
}

}  // namespace

void add_bench_decode(CLI::App& bench) {
  const auto options = std::make_shared<DecodeOptions>();
  synth::Settings& settings = options->settings;
  settings.sizes.layers = 12;
  settings.sizes.vocab = 65536;
  CLI::App* command = bench.add_subcommand(
      "decode", "Decode with a model of random weights in memory, no files; 7 GB unless told else");
  per_call(command->add_option("--form", settings.form, "The published form (tandem synth --list)"))
      ->capture_default_str();
  per_call(command->add_option("--layers", settings.sizes.layers, "Layers"))->default_str("12");
  per_call(
      command->add_option("--experts", settings.sizes.experts, "Experts of a layer, 128 unless the form has none"));
  per_call(command->add_option("--top-k", settings.sizes.top_k, "Experts that a token uses"));
  per_call(command->add_option("--vocab", settings.sizes.vocab, "Ids of the vocabulary"))->default_str("65536");
  per_call(command->add_option("--router-skew", settings.router_skew, "How unevenly experts are chosen, 0 to 4"))
      ->capture_default_str();
  per_call(command->add_option("--prompt-tokens", options->prompt_tokens, "Tokens read before"))->capture_default_str();
  per_call(command->add_option("--answer-tokens", options->answer_tokens, "Tokens of a round"))->capture_default_str();
  per_call(command->add_option("--rounds", options->rounds, "Rounds, at least 5"))->capture_default_str();
  per_call(command->add_flag("--json", options->json, "Print one JSON object"));
  add_machine_options(*command, options->engine);
  command->footer("Example:\n  tandem bench decode --layers 12 --experts 128 --json");
  command->callback([options] {
    synth::Sizes& sizes = options->settings.sizes;
    if (options->settings.form.starts_with("flash-")) {
      if (!sizes.experts) sizes.experts = 128;
      if (!sizes.ngram_rows) sizes.ngram_rows = 1 << 20;
    }
    bench_decode(*options);
  });
}

}  // namespace tandem::app
