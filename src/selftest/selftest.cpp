#include "selftest/selftest.h"

#include <algorithm>
#include <memory>
#include <random>

#include "context/sequence.h"
#include "convert/generated.h"
#include "model/model.h"
#include "ops/host/host_ops.h"
#include "synth/model.h"

namespace tandem::selftest {

namespace {

using model::Activations;
using model::ExpertArithmetic;
using model::ExpertMode;
using model::KvCache;

struct Kind {
  const char* form;
  const char* name;
  Activations activations;
  ExpertMode expert_mode;
  KvCache kv_cache;
  ExpertArithmetic expert_arithmetic = ExpertArithmetic::kCanonical;
};
constexpr Kind kKinds[] = {
    {"flash-nvfp4", "flash-nvfp4 bf16", Activations::kBF16, ExpertMode::kW4A4, KvCache::kActivations},
    {"flash-nvfp4", "flash-nvfp4 bf16, int8 cache", Activations::kBF16, ExpertMode::kW4A4, KvCache::kInt8},
    {"flash-nvfp4", "flash-nvfp4 bf16, bf16 experts", Activations::kBF16, ExpertMode::kW4A4, KvCache::kActivations,
     ExpertArithmetic::kBF16},
    {"flash-nvfp4", "flash-nvfp4 f32", Activations::kF32, ExpertMode::kW4A16, KvCache::kActivations},
    {"flash-fp8", "flash-fp8 bf16", Activations::kBF16, ExpertMode::kW4A4, KvCache::kActivations},
    {"27b-nvfp4", "27b-nvfp4 bf16", Activations::kBF16, ExpertMode::kW4A4, KvCache::kActivations},
    {"27b-nvfp4-ct", "27b-nvfp4-ct bf16, int8 cache", Activations::kBF16, ExpertMode::kW4A4, KvCache::kInt8},
    {"27b-gsq3", "27b-gsq3 bf16", Activations::kBF16, ExpertMode::kW4A4, KvCache::kActivations},
    {"27b-bf16", "27b-bf16 f32", Activations::kF32, ExpertMode::kW4A16, KvCache::kActivations},
};

// A step through prompts, single tokens, windows and batches of the sequences.
void exercise(model::Model& model, bool quick) {
  const int64_t prompt = quick ? 150 : 700;  // beyond whole chunks of 64, and beyond the budget of sparse selection
  context::SequencePool pool(model, 3 * (prompt + 128), 3);
  std::mt19937 random(7);
  const auto tokens = [&](int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config().vocab));
    return ids;
  };
  model::ForwardOutput output;
  std::vector<context::Sequence> sequences;
  for (const int64_t length : {prompt, int64_t{37}, int64_t{5}}) {
    sequences.push_back(pool.create());
    sequences.back().forward(tokens(length), {.logits = 2}, output);
  }
  for (const int64_t width : {1, 3, 8}) sequences[0].forward(tokens(width), {.logits = width}, output);
  sequences[0].forward(tokens(5), {.logits = 5, .advance = false}, output);
  sequences[0].forward(tokens(100), {.logits = 1, .draft_hidden = model.has_draft_head()}, output);
  if (model.has_draft_head()) {
    model::Model::DraftOutput draft;
    const auto next = tokens(100);
    sequences[0].draft({.first = 0, .next_tokens = next, .hidden = output.draft_hidden, .logits = 1}, draft);
  }
  const std::vector<context::Sequence*> all = {&sequences[0], &sequences[1], &sequences[2]};
  const auto ids = tokens(6);
  const std::vector<std::span<const int32_t>> parts = {std::span(ids).subspan(0, 2), std::span(ids).subspan(2, 2),
                                                       std::span(ids).subspan(4, 2)};
  context::Sequence::forward(all, parts, {.logits = 1}, output);
  context::Sequence::forward(all, parts, {.logits = 1, .keep_logits = true}, output);
  const std::vector<uint64_t> some(static_cast<size_t>(model.config().vocab) / 64, 0x5a5a5a5a'a5a5a5a5);
  const std::vector<std::span<const uint64_t>> allowed = {some, {}, some};
  (void)model.greedy(model.config().vocab - 3, {});
  (void)model.greedy(model.config().vocab - 3, allowed);
  (void)model.top_logits(model.config().vocab - 3, {});
  (void)model.top_logits(model.config().vocab - 3, allowed);
}

}  // namespace

bool Trial::passed() const {
  return std::all_of(reports.begin(), reports.end(), [](const auto& entry) { return entry.second.passed(); });
}

std::vector<Trial> run(device::Device& device, base::WorkerPool& pool, const Settings& settings,
                       const std::function<void(const Trial&)>& told) {
  std::vector<Trial> trials;
  for (const Kind& kind : kKinds) {
    synth::Settings small;
    small.form = kind.form;
    const auto synthetic = std::make_shared<const synth::Model>(small);
    const artifact::Artifact artifact =
        convert::generated_artifact(synth::checkpoint_of(synthetic), {{"config.json", synthetic->config().dump()}});
    model::LoadOptions load;
    load.activations = kind.activations;
    load.expert_mode = kind.expert_mode;
    load.kv_cache = kind.kv_cache;
    load.expert_arithmetic = kind.expert_arithmetic;
    load.indexer_budget = 64;
    load.draft_head = true;
    load.portable = settings.portable;
    const ops::OpsOptions options = model::ops_options(load);
    const auto card = ops::make_ops(device, pool, options);
    ops::host::HostOps host(pool, options.round_inputs);
    auto parity = std::make_unique<ParityOps>(*card, device, host, options);
    const ParityOps& seen = *parity;
    const auto model = model::Model::load(artifact, device, std::move(parity), pool, load);
    exercise(*model, settings.quick);
    trials.push_back({kind.name, seen.reports()});
    told(trials.back());
  }
  return trials;
}

}  // namespace tandem::selftest
