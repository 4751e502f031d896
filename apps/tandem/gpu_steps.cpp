#include "gpu_steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>

#include "base/pool.h"
#include "base/units.h"
#include "context/sequence.h"
#include "engine/loaded_model.h"
#include "host_gap.h"
#include "model/model.h"
#include "ops/cuda/timed_ops.h"
#include "synthetic_model.h"

namespace tandem::app {
namespace {

constexpr uint64_t kRepeatBytes = uint64_t{64} << 20;  // more than a card's cache holds
constexpr int64_t kMoreSteps = 24;                     // beside the timed ones
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

class ModelBench {
 public:
  ModelBench(Measured& measured, const std::string& form, std::shared_ptr<device::cuda::WatchedDevice> card)
      : out_(measured),
        name_(form),
        load_(measured.options.engine.load),
        card_(std::move(card)),
        pool_(std::make_unique<base::WorkerPool>(0)) {
    artifact_ = std::make_unique<artifact::Artifact>(bench_artifact(measured.options, form));
    const auto& chunks = measured.options.prefill_chunks;
    load_.chunk = *std::max_element(chunks.begin(), chunks.end());
    const auto begin = std::chrono::steady_clock::now();
    auto operations =
        std::make_unique<ops::cuda::TimedOps>(ops::make_ops(*card_, *pool_, model::ops_options(load_)), *card_);
    timed_ = operations.get();
    model_ = model::Model::load(*artifact_, *card_, std::move(operations), *pool_, load_);
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
    const std::string key = fmt::format("prefill.{}.n{}", name_, tokens);
    base::Json& raw = out_.report.raw[key];
    raw["flops"] = flops_per_token(model_->config()) * static_cast<double>(tokens);
    std::vector<double> best;
    for (const int64_t chunk : out_.options.prefill_chunks) {
      std::vector<double> seconds;
      for (int round = -1; round < out_.options.rounds; ++round) {
        const double time = read_prompt(sequences, ids, chunk);
        if (round >= 0) seconds.push_back(time);
      }
      const double rate = static_cast<double>(tokens) / median(seconds);
      if (out_.options.prefill_chunks.size() > 1) {
        out_.report.figures[fmt::format("{}.k{}.tokens_s", key, chunk)] = rate;
      }
      if (!best.empty() && median(best) <= median(seconds)) continue;
      best = seconds;
      raw["s"] = seconds;
      raw["chunk"] = chunk;
      out_.report.figures[key + ".tokens_s"] = rate;
      out_.report.figures[key + ".matmul_fraction"] =
          rate * flops_per_token(model_->config()) / out_.ceilings.matmul_flops_s;
    }
    timed_->watch(ops::cuda::TimedOps::Watch::kCalls);
    read_prompt(sequences, ids, raw["chunk"]);
    tell_operations(key, {timed_->shares()});
    timed_->watch(ops::cuda::TimedOps::Watch::kNothing);
  }

  // The seconds that a prompt takes in steps of `chunk` tokens.
  double read_prompt(context::SequencePool& sequences, const std::vector<int32_t>& ids, int64_t chunk) {
    context::Sequence sequence = sequences.create();
    const auto begin = std::chrono::steady_clock::now();
    std::span<const int32_t> left(ids);
    while (!left.empty()) {
      const auto piece = left.first(std::min(left.size(), static_cast<size_t>(chunk)));
      left = left.subspan(piece.size());
      sequence.forward(piece, {.logits = left.empty() ? 1 : 0}, output_);
    }
    return seconds_since(begin);
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

  // Decoded sequences of one context, with pages of their own.
  struct Decoding {
    std::unique_ptr<context::SequencePool> sequences;
    std::vector<context::Sequence> members;
  };

  Decoding begin(int64_t context, int64_t width) {
    Decoding out;
    out.sequences = std::make_unique<context::SequencePool>(*model_, width * (context + model::kPageTokens),
                                                            static_cast<int>(width));
    model_->reserve(context);
    fill(*out.sequences, model_->device());
    for (int64_t i = 0; i < width; ++i) {
      out.members.push_back(out.sequences->create());
      out.members.back().pretend(context - out_.options.steps - kMoreSteps);
    }
    return out;
  }

  // A step of all sequences with tokens of their own, up to the likeliest tokens behind these.
  void step(Decoding& decoding) {
    const auto ids = random_tokens(static_cast<int64_t>(decoding.members.size()), model_->config().vocab, seed_++);
    std::vector<context::Sequence*> pointers;
    std::vector<std::span<const int32_t>> tokens;
    for (context::Sequence& member : decoding.members) {
      tokens.push_back(std::span(ids).subspan(pointers.size(), 1));
      pointers.push_back(&member);
    }
    context::Sequence::forward(pointers, tokens, {.logits = 1, .keep_logits = true}, output_);
    model_->greedy(model_->config().vocab, {});
  }

  void decode(int64_t context, int64_t width) {
    const std::string key = fmt::format("decode.{}.ctx{}.c{}", name_, context, width);
    Decoding decoding = begin(context, width);
    std::vector<double> seconds;
    model_->forget_recordings();
    step(decoding);
    const int64_t free_before = card_->free_bytes();
    step(decoding);
    out_.report.raw[key]["recording_bytes"] = free_before - card_->free_bytes();
    for (int64_t i = -2; i < out_.options.steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      step(decoding);
      if (i >= 0) seconds.push_back(seconds_since(start));
    }
    card_->watch(device::cuda::WatchedDevice::Watch::kDurations);
    for (int i = 0; i < 6; ++i) step(decoding);
    const double recording = median(card_->noted_us(model_->recordings_of_step()));
    card_->watch(device::cuda::WatchedDevice::Watch::kNothing);
    tell(context, width, seconds);
    tell_operations(key, decoding, recording);
  }

  // What each operation of a step takes.
  void tell_operations(const std::string& key, Decoding& decoding, double recording_us) {
    model_->forget_recordings();
    timed_->watch(ops::cuda::TimedOps::Watch::kRecordings);
    constexpr int kSteps = 5;  // the first is not recorded
    std::vector<std::vector<ops::cuda::OpShare>> steps;
    for (int i = 0; i < kSteps; ++i) {
      step(decoding);
      if (i > 1) steps.push_back(timed_->shares());
    }
    timed_->watch(ops::cuda::TimedOps::Watch::kNothing);
    model_->forget_recordings();
    tell_operations(key, steps);
    base::Json& raw = out_.report.raw[key];
    raw["recording_us"] = recording_us;
    base::Json& figures = out_.report.figures;
    figures[key + ".recording_us"] = recording_us;
    figures[key + ".operations_over_recording"] = static_cast<double>(raw["operations_us"]) / recording_us;
    figures[key + ".matmul_fraction"] =
        1e6 * static_cast<double>(raw["operations"]) / recording_us / out_.ceilings.matmul_flops_s;
  }

  // The medians of several runs.
  void tell_operations(const std::string& key, const std::vector<std::vector<ops::cuda::OpShare>>& runs) {
    double sum_us = 0;
    double operations = 0;
    base::Json rows = base::Json::array();
    for (size_t i = 0; i < runs[0].size(); ++i) {
      const ops::cuda::OpShare& share = runs[0][i];
      std::vector<double> seconds;
      for (const auto& shares : runs) seconds.push_back(shares[i].seconds);
      const double time = median(seconds);
      sum_us += 1e6 * time;
      operations += share.cost.operations;
      rows.push_back({{"operation", share.name},
                      {"calls", share.calls},
                      {"us", 1e6 * time},
                      {"bytes", share.cost.bytes},
                      {"operations", share.cost.operations},
                      {"read_fraction", share.cost.bytes / time / out_.ceilings.read_bytes_s},
                      {"matmul_fraction", share.cost.operations / time / out_.ceilings.matmul_flops_s}});
    }
    base::Json& raw = out_.report.raw[key];
    raw["operations_us"] = sum_us;
    raw["operations"] = operations;
    raw["by_operation"] = std::move(rows);
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
    out_.report.raw[key]["s"] = seconds;
    out_.report.raw[key]["bytes"] = bytes;
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
  std::shared_ptr<device::cuda::WatchedDevice> card_;
  std::unique_ptr<base::WorkerPool> pool_;
  std::unique_ptr<artifact::Artifact> artifact_;
  std::unique_ptr<model::Model> model_;
  ops::cuda::TimedOps* timed_ = nullptr;  // the model's
  model::ForwardOutput output_;
  unsigned seed_ = 3;
  TokenBytes token_;
  std::pair<double, double> one_{0, 0};  // seconds and bytes of one column
};

}  // namespace

artifact::Artifact bench_artifact(const GpuOptions& options, const std::string& form) {
  synth::Settings settings;
  settings.form = form;
  settings.repeat_bytes = kRepeatBytes;
  if (std::string_view(synth::form_named(form).family) == "qwen4_exp") settings.sizes.ngram_rows = kNgramRows;
  if (options.layers > 0) settings.sizes.layers = options.layers;
  return synthetic_artifact(std::make_shared<const synth::Model>(without_extras(settings)));
}

void measure_model(Measured& measured, const std::string& form,
                   const std::shared_ptr<device::cuda::WatchedDevice>& card) {
  ModelBench(measured, form, card).run();
}

}  // namespace tandem::app
