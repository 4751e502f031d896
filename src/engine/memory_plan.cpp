#include "engine/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/units.h"
#include "context/sequence.h"
#include "device/planning_device.h"

namespace tandem::engine {

namespace {

// Of one recorded step: a guess on the safe side. On an H200 with CUDA 13.0 the memory in use did not grow at all with
// a recording (`tandem bench gpu`, raw.*.recording_bytes): the driver has them in memory that it holds already.
constexpr int64_t kRecordingBytes = int64_t{1} << 20;
constexpr int64_t kRecordingLayerBytes = int64_t{96} << 10;

}  // namespace

int64_t MemoryPlan::total() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const Row& row) { return sum + row.bytes; });
}

std::string MemoryPlan::refusal() const {
  std::string parts;
  for (const Row& row : rows) {
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", row.name,
                         base::format_bytes(static_cast<uint64_t>(row.bytes)));
  }
  return fmt::format(
      "{} are needed ({}), {} can be used: lower --max-context, --kv-capacity or --max-concurrency, or "
      "take --kv-cache int8",
      base::format_bytes(static_cast<uint64_t>(total())), parts,
      base::format_bytes(static_cast<uint64_t>(std::max<int64_t>(limit, 0))));
}

MemoryPlan plan_memory(const artifact::Artifact& artifact, const EngineOptions& options, const device::Card& card,
                       int64_t limit) {
  device::PlanningDevice device(card);
  base::WorkerPool pool(1);
  model::LoadOptions load = options.load;
  load.quiet = true;
  load.chunk = options.prefill_chunk;
  MemoryPlan plan{.rows = {}, .limit = limit};
  int64_t before = 0;
  const auto add = [&](const char* name, const std::string& note) {
    plan.rows.push_back({name, device.bytes() - before, note});
    before = device.bytes();
  };
  const auto model = model::Model::load(artifact, device, pool, load);
  const bool embedding_elsewhere = load.embedding_in_host_memory && !model->config().tie_word_embeddings;
  add("weights",
      fmt::format("{} layers{}{}", model->config().layers, model->has_draft_head() ? " and the draft head" : "",
                  embedding_elsewhere ? "; the table of embeddings stays in the host's memory" : ""));
  const context::SequencePool sequences(*model, options.kv_capacity, options.max_concurrency);
  const model::StateLayout& layout = model->state_layout();
  add("contexts",
      fmt::format("{} tokens of {} bytes, {} states of {}", options.kv_capacity, layout.page_bytes / model::kPageTokens,
                  options.max_concurrency, base::format_bytes(static_cast<uint64_t>(layout.slot_bytes))));
  model->reserve(options.max_context);
  add("steps", fmt::format("{} columns at once, contexts of {}", load.chunk, options.max_context));
  plan.rows.push_back(
      {"recordings", recording_bytes(model->config()), fmt::format("{} steps", model::kMostRecordings)});
  return plan;
}

MemoryPlan fitting_plan(const artifact::Artifact& artifact, const EngineOptions& options, const device::Card& card,
                        int64_t limit, model::LoadOptions& load) {
  MemoryPlan plan = plan_memory(artifact, options, card, limit);
  if (plan.total() <= limit / 10 * 9 || options.load.embedding_in_host_memory) return plan;
  EngineOptions other = options;
  other.load.embedding_in_host_memory = true;
  MemoryPlan smaller = plan_memory(artifact, other, card, limit);
  if (smaller.total() == plan.total()) return plan;  // the table is the output matrix too
  load.embedding_in_host_memory = smaller.fits();
  return smaller;
}

int64_t recording_bytes(const model::Config& config) {
  return model::kMostRecordings * (kRecordingBytes + config.layers * kRecordingLayerBytes);
}

int64_t usable_memory(const EngineOptions& options, const device::Card& card, int64_t free_bytes) {
  if (options.vram_limit == 0) return free_bytes;
  const int64_t taken = card.memory_bytes - free_bytes;  // by the driver, by this process' kernels, by others
  return std::min<int64_t>(free_bytes, static_cast<int64_t>(options.vram_limit) - taken);
}

}  // namespace tandem::engine
