#include "engine/loaded_model.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "context/sequence.h"
#include "device/cards.h"
#include "engine/limits.h"
#include "engine/memory_plan.h"
#include "engine/placement.h"
#include "selftest/first_start.h"

namespace tandem::engine {
namespace {

class ModelSequence : public TextSequence {
 public:
  ModelSequence(context::Sequence sequence, int64_t vocab) : sequence_(std::move(sequence)), vocab_(vocab) {}

  int64_t length() const override { return sequence_.length(); }

  void forward(std::span<const int32_t> tokens, bool keeps_logits) override {
    sequence_.forward(tokens, {.logits = keeps_logits ? 1 : 0, .keep_logits = keeps_logits}, output_);
  }

  std::span<const float> logits() override { return sequence_.read_logits(); }

  std::optional<int32_t> likeliest(const Allowed& allowed, int64_t tokens) override {
    const int32_t token = sequence_.greedy(tokens, words(allowed, tokens));
    return token < 0 ? std::nullopt : std::optional(token);
  }

  std::optional<Candidates> candidates(const Allowed& allowed, int64_t tokens) override {
    const model::Model::TopLogits top = sequence_.top_logits(tokens, words(allowed, tokens));
    if (!top.finite || top.best.empty()) return std::nullopt;
    return Candidates{.best = top.best, .tokens = std::min(tokens, vocab_)};
  }

  void settle() override { sequence_.settle(); }

  void prefetch(std::span<const int32_t> tokens) override { sequence_.prefetch(tokens); }

 private:
  // What is allowed as bits of the first `tokens`, 64 in a word; none where all are.
  std::span<const uint64_t> words(const Allowed& allowed, int64_t tokens) {
    if (allowed.banned.empty()) return allowed.mask;
    mask_.assign(allowed.mask.begin(), allowed.mask.end());
    if (mask_.empty()) mask_.assign(static_cast<size_t>(base::ceil_div(tokens, 64)), ~uint64_t{0});
    for (const int32_t id : allowed.banned) {
      const size_t word = static_cast<size_t>(id) / 64;
      if (word < mask_.size()) mask_[word] &= ~(uint64_t{1} << (static_cast<size_t>(id) % 64));
    }
    return mask_;
  }

  context::Sequence sequence_;
  int64_t vocab_;
  std::vector<uint64_t> mask_;
  model::ForwardOutput output_;
};

class ModelBehindSeam : public TextModel {
 public:
  ModelBehindSeam(LoadedModel loaded, int64_t tokens, int slots)
      : loaded_(std::move(loaded)),
        sequences_(*loaded_.model, tokens, slots),
        first_free_(loaded_.device->is_host() ? 0 : loaded_.device->free_bytes()) {}

  std::unique_ptr<TextSequence> create() override {
    return std::make_unique<ModelSequence>(sequences_.create(), vocab());
  }
  int64_t capacity_tokens() const override { return sequences_.capacity_tokens(); }
  int64_t vocab() const override { return loaded_.model->config().vocab; }
  std::optional<DeviceMemory> device_memory() const override {
    if (loaded_.device->is_host()) return std::nullopt;
    loaded_.device->bind_thread();
    return DeviceMemory{loaded_.device->free_bytes(), first_free_ - recording_bytes(loaded_.model->config())};
  }

 private:
  LoadedModel loaded_;
  context::SequencePool sequences_;
  int64_t first_free_;
};

// Refuses what a card cannot hold before anything of it is loaded; what makes it fit goes to `load`.
void require_memory(const artifact::Artifact& artifact, const EngineOptions& options, const device::Device& device,
                    const device::Card& card, model::LoadOptions& load) {
  const int64_t usable = usable_memory(options, card, device.free_bytes());
  const MemoryPlan plan = fitting_plan(artifact, options, card, usable, load);
  if (!plan.fits()) base::unavailable(card.name, "{}", plan.refusal());
}

}  // namespace

LoadedModel load_model(const EngineOptions& options) {
  require_placement(options.device, options.ranks);
  if (options.threads < 0 || options.threads > 1024) {
    base::bad_input("threads", "{} is outside [0, 1024]", options.threads);
  }
  auto folder = options.artifact;
  if (folder.filename().empty()) folder = folder.parent_path();  // a trailing slash
  LoadedModel loaded;
  loaded.name = folder.stem().string();
  loaded.artifact = std::make_unique<artifact::Artifact>(artifact::Artifact::open(folder));
  const EngineOptions limits =
      resolve_limits(options, model::Config::from_json(loaded.artifact->config(), loaded.artifact->folder().string()));
  loaded.pool = std::make_unique<base::WorkerPool>(options.threads);
  loaded.device = open_device(options.device);
  model::LoadOptions load = options.load;
  load.chunk = limits.prefill_chunk;
  if (const DeviceName name = parse_devices(options.device)[0]; name.kind == DeviceKind::kCuda) {
    const device::Card card = device::require_card(name.ordinal);
    require_memory(*loaded.artifact, limits, *loaded.device, card, load);
    if (load.embedding_in_host_memory) spdlog::info("the table of embeddings stays in the host's memory");
    load.portable = selftest::portable_operations(*loaded.device, card, *loaded.pool, selftest::results_folder());
  } else if (const auto cards = device::cards(); !cards.empty()) {
    spdlog::info("computing on the processor; {} could be used: --device cuda:0", cards[0].name);
  }
  loaded.model = model::Model::load(*loaded.artifact, *loaded.device, *loaded.pool, load);
  loaded.model->reserve(limits.max_context);
  return loaded;
}

std::unique_ptr<TextModel> text_model(LoadedModel loaded, int64_t tokens, int slots) {
  return std::make_unique<ModelBehindSeam>(std::move(loaded), tokens, slots);
}

EngineParts load_parts(const EngineOptions& options) {
  LoadedModel loaded = load_model(options);
  const std::string folder = loaded.artifact->folder().string();
  if (loaded.artifact->tokenizer_json().empty()) {
    base::bad_input(folder, "has no tokenizer, it can be scored but not answer");
  }
  EngineParts parts{
      .model_name = loaded.name,
      .config = loaded.model->config(),
      .tokenizer = text::Tokenizer::from_json(loaded.artifact->tokenizer_json(), folder + ": tokenizer.json"),
      .chat_template = std::nullopt,
      .generation_config = loaded.artifact->generation_config(),
      .model = nullptr};
  if (!loaded.artifact->chat_template().empty()) {
    parts.chat_template = text::ChatTemplate::from_jinja(loaded.artifact->chat_template(), folder + ": chat template");
  }
  const EngineOptions limits = resolve_limits(options, parts.config);
  if (limits.max_context > parts.config.max_position_embeddings) {
    spdlog::warn("--max-context {} is beyond the {} positions that the model was made for", limits.max_context,
                 parts.config.max_position_embeddings);
  }
  parts.model = text_model(std::move(loaded), limits.kv_capacity, limits.max_concurrency);
  return parts;
}

Engine::Engine(const EngineOptions& options) : Engine(load_parts(options), options) {}

}  // namespace tandem::engine
