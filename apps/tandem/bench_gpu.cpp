#include "bench_gpu.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/pool.h"
#include "base/units.h"
#include "bench_report.h"
#include "context/sequence.h"
#include "device/cards.h"
#include "engine/loaded_model.h"
#include "engine/placement.h"
#include "model/model.h"
#include "ops/ops.h"
#include "options.h"
#include "synthetic_model.h"

#ifdef TANDEM_WITH_CUDA
#include "device/cuda/watched_device.h"
#include "host_gap.h"
#include "ops/cuda/ceilings.h"
#include "ops/cuda/op_figures.h"
#endif

namespace tandem::app {
namespace {

#ifdef TANDEM_WITH_CUDA

struct GpuOptions {
  engine::EngineOptions engine;
  std::vector<std::string> models = {"27b-nvfp4", "flash-nvfp4"};
  std::vector<int64_t> contexts = {1024, 65536};
  std::vector<int64_t> widths = {1, 4};
  std::vector<int64_t> prompts = {8192};
  int64_t layers = 0;
  bool no_operations = false;
  int gap_steps = 200;
  int steps = 24;
  int rounds = kLeastRounds;
  bool json = false;
};

constexpr uint64_t kRepeatBytes = uint64_t{64} << 20;  // more than a card's cache holds
constexpr int64_t kNgramRows = 200'000;                // of the table, which lies in memory here

// The model's own operations for one token of a prompt: two for each weight that it is multiplied with. Attention over
// the context comes on top and is not counted.
double flops_per_token(const model::Config& config) {
  double weights = 0;
  for (const model::LayerType type : config.layer_types) {
    const double hidden = static_cast<double>(config.hidden);
    if (type == model::LayerType::kFull) {
      weights += hidden * static_cast<double>((3 * config.heads + 2 * config.kv_heads) * config.head_dim);
      if (config.sparse()) {
        weights += hidden * static_cast<double>((config.indexer_heads + 1) * config.indexer_head_dim);
      }
    } else {
      const int64_t keys = 2 * config.key_heads * config.key_head_dim;
      const int64_t values = config.value_heads * config.value_head_dim;
      weights += hidden * static_cast<double>(keys + 3 * values + 2 * config.value_heads);
    }
    const int64_t inner =
        config.moe() ? config.top_k * config.expert_intermediate + config.shared_intermediate : config.intermediate;
    weights += 3 * hidden * static_cast<double>(inner) + hidden * static_cast<double>(config.experts);
    if (config.streams > 1) {
      const double width = static_cast<double>(config.width());
      weights += 2 * width * static_cast<double>(2 * config.hc_lowrank + config.streams);
    }
  }
  return 2 * weights;
}

// Bytes of keys, values and index keys that one column reads at a position.
double context_bytes(const model::Config& config, const model::LoadOptions& load, int64_t position) {
  const bool int8 = load.kv_cache == model::KvCache::kInt8;
  const double row =
      int8 ? static_cast<double>(config.head_dim) * (1 + 2.0 / 64) : 2.0 * static_cast<double>(config.head_dim);
  double tokens = static_cast<double>(position);
  double index = 0;
  if (config.sparse() && position > config.indexer_budget) {
    tokens = static_cast<double>(config.indexer_budget);
    const int64_t blocks = position / config.indexer_ratio;
    index = 2 * static_cast<double>(blocks * config.indexer_head_dim);
  }
  const double layer = tokens * 2 * static_cast<double>(config.kv_heads) * row + index;
  double bytes = 0;
  for (const model::LayerType type : config.layer_types) bytes += type == model::LayerType::kFull ? layer : 0;
  return bytes;
}

// Experts that `columns` tokens choose together, where all are chosen alike.
double distinct_experts(const model::Config& config, int64_t columns) {
  const auto all = static_cast<double>(config.experts);
  return all * (1 - std::pow(1 - static_cast<double>(config.top_k) / all, static_cast<double>(columns)));
}

struct Measured {
  BenchReport& report;
  const GpuOptions& options;
  ops::cuda::CardCeilings ceilings;
};

class ModelBench {
 public:
  ModelBench(Measured& measured, const std::string& form, std::shared_ptr<device::Device> card)
      : out_(measured),
        name_(form),
        load_(measured.options.engine.load),
        card_(std::move(card)),
        pool_(std::make_unique<base::WorkerPool>(0)) {
    synth::Settings settings;
    settings.form = form;
    settings.repeat_bytes = kRepeatBytes;
    if (std::string_view(synth::form_named(form).family) == "qwen4_exp") settings.sizes.ngram_rows = kNgramRows;
    if (measured.options.layers > 0) settings.sizes.layers = measured.options.layers;
    const auto synthetic = std::make_shared<const synth::Model>(without_extras(settings));
    artifact_ = std::make_unique<artifact::Artifact>(synthetic_artifact(synthetic));
    load_.chunk = measured.options.engine.prefill_chunk;
    const auto begin = std::chrono::steady_clock::now();
    model_ = model::Model::load(*artifact_, *card_, *pool_, load_);
    base::Json& raw = out_.report.raw[name_];
    raw = {{"form", form}, {"weight_bytes", model_->weight_bytes()}, {"load_s", seconds_since(begin)}};
    token_ = bytes_of_token(*artifact_, model_->config());
    raw["dense_bytes_per_token"] = token_.dense;
    raw["expert_bytes_per_token"] = token_.experts;
  }

  void run() {
    for (const int64_t prompt : out_.options.prompts) prefill(prompt);
    for (const int64_t context : out_.options.contexts) {
      for (const int64_t width : out_.options.widths) decode(context, width);
    }
    if (out_.options.gap_steps == 0) return;
    measure_host_gap(out_.report, name_,
                     {.name = name_,
                      .artifact = std::move(artifact_),
                      .pool = std::move(pool_),
                      .device = card_,
                      .model = std::move(model_)},
                     out_.options.gap_steps);
  }

 private:
  void prefill(int64_t tokens) {
    context::SequencePool sequences(*model_, tokens, 1);
    model_->reserve(tokens);
    const auto ids = random_tokens(tokens, model_->config().vocab);
    std::vector<double> seconds;
    for (int round = -1; round < out_.options.rounds; ++round) {
      context::Sequence sequence = sequences.create();
      model::ForwardOutput output;
      const auto begin = std::chrono::steady_clock::now();
      sequence.forward(ids, {.logits = 1}, output);
      if (round >= 0) seconds.push_back(seconds_since(begin));
    }
    const std::string key = fmt::format("prefill.{}.n{}", name_, tokens);
    out_.report.raw[key] = {{"s", seconds}, {"flops", flops_per_token(model_->config()) * static_cast<double>(tokens)}};
    const double rate = static_cast<double>(tokens) / median(seconds);
    out_.report.figures[key + ".tokens_s"] = rate;
    out_.report.figures[key + ".matmul_fraction"] =
        rate * flops_per_token(model_->config()) / out_.ceilings.matmul_flops_s;
  }

  // Pages get random values, so that no context has to be read first.
  void fill(context::SequencePool& sequences, device::Device& device) {
    const auto words = random_tokens(int64_t{4} << 20, int64_t{1} << 31, 7);
    std::vector<uint32_t> pattern(words.begin(), words.end());
    for (uint32_t& word : pattern) word &= 0xbfbfbfbf;  // BF16 and FP16 numbers below 2
    const std::span<std::byte> pages = sequences.page_memory();
    const auto bytes = static_cast<int64_t>(pattern.size() * 4);
    for (int64_t at = 0; at < static_cast<int64_t>(pages.size()); at += bytes) {
      device.upload(pages.data() + at, pattern.data(), std::min(bytes, static_cast<int64_t>(pages.size()) - at));
    }
  }

  void decode(int64_t context, int64_t width) {
    const int64_t steps = out_.options.steps;
    const int64_t first = context - steps - 8;
    context::SequencePool sequences(*model_, width * (context + model::kPageTokens), static_cast<int>(width));
    model_->reserve(context);
    fill(sequences, model_->device());
    std::vector<context::Sequence> members;
    for (int64_t i = 0; i < width; ++i) {
      members.push_back(sequences.create());
      members.back().pretend(first);
    }
    std::vector<context::Sequence*> pointers;
    for (context::Sequence& member : members) pointers.push_back(&member);
    const auto ids = random_tokens(width * (steps + 8), model_->config().vocab, 3);
    std::vector<double> seconds;
    model::ForwardOutput output;
    for (int64_t step = -4; step < steps; ++step) {
      std::vector<std::span<const int32_t>> tokens;
      for (int64_t i = 0; i < width; ++i)
        tokens.push_back(std::span(ids).subspan(static_cast<size_t>((step + 4) * width + i), 1));
      const auto begin = std::chrono::steady_clock::now();
      context::Sequence::forward(pointers, tokens, {.logits = 1}, output);
      if (step >= 0) seconds.push_back(seconds_since(begin));
    }
    tell(context, width, seconds);
  }

  void tell(int64_t context, int64_t width, const std::vector<double>& seconds) {
    const model::Config& config = model_->config();
    double bytes = static_cast<double>(token_.dense);
    if (config.moe()) bytes += static_cast<double>(token_.expert) * distinct_experts(config, width);
    bytes += static_cast<double>(width) *
             (static_cast<double>(model_->state_layout().slot_bytes) + context_bytes(config, load_, context));
    const std::string base = fmt::format("decode.{}.ctx{}", name_, context);
    const std::string key = fmt::format("{}.c{}", base, width);
    const double time = median(seconds);
    out_.report.raw[key] = {{"s", seconds}, {"bytes", bytes}};
    base::Json& figures = out_.report.figures;
    figures[key + ".tokens_s"] = static_cast<double>(width) / time;
    figures[key + ".read_fraction"] = bytes / time / out_.ceilings.read_bytes_s;
    if (width == 1) {
      one_ = {time, bytes};
    } else if (width == 4 && one_.first > 0) {
      figures[base + ".c4_over_bytes"] = time / one_.first / (bytes / one_.second);
    }
  }

  Measured& out_;
  std::string name_;
  model::LoadOptions load_;
  std::shared_ptr<device::Device> card_;
  std::unique_ptr<base::WorkerPool> pool_;
  std::unique_ptr<artifact::Artifact> artifact_;
  std::unique_ptr<model::Model> model_;
  TokenBytes token_;
  std::pair<double, double> one_{0, 0};  // seconds and bytes of one column
};

void measure_operations(Measured& measured, device::Device& card) {
  auto figures = ops::cuda::measure_dense(card, measured.options.rounds);
  figures.push_back(ops::cuda::measure_attention(card, measured.options.rounds));
  for (const ops::cuda::OpFigure& figure : figures) {
    measured.report.raw[figure.name] = {{"bytes", figure.bytes}, {"s", figure.seconds}};
    measured.report.figures[figure.name + ".read_fraction"] =
        static_cast<double>(figure.bytes) / figure.seconds / measured.ceilings.read_bytes_s;
  }
  measured.report.figures["gdn.chunk_speedup"] = ops::cuda::measure_delta_speedup(card, measured.options.rounds);
}

void bench_gpu(const GpuOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
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
  for (const std::string& form : options.models) ModelBench(measured, form, device).run();
  report.print(options.json);
}

#endif

}  // namespace

void add_bench_gpu(CLI::App& bench) {
#ifdef TANDEM_WITH_CUDA
  const auto options = std::make_shared<GpuOptions>();
  options->engine.device = "cuda:0";
  options->engine.prefill_chunk = 2048;
  CLI::App* command =
      bench.add_subcommand("gpu", "A card's operations and whole steps against what the card can do at best");
  add_machine_options(*command, options->engine);
  per_call(command->add_option("--models", options->models, "Forms of synthetic models (tandem synth --help)"))
      ->delimiter(',')
      ->capture_default_str();
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
  per_call(command->add_option("--prefill-chunk", options->engine.prefill_chunk, "Tokens of a prompt in one step"))
      ->capture_default_str();
  per_call(command->add_flag("--no-operations", options->no_operations, "Measure whole steps alone"));
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
