// What a model takes of a card's memory, computed before anything is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "device/cards.h"
#include "engine/engine.h"

namespace tandem::engine {

struct MemoryPlan {
  struct Row {
    std::string name;  // "weights", "keys and values", …
    int64_t bytes = 0;
    std::string note;  // what the bytes come from
  };
  std::vector<Row> rows;
  int64_t limit = 0;  // bytes that may be taken
  int64_t total() const;
  bool fits() const { return total() <= limit; }
  // One line with the figures, of a plan that does not fit.
  std::string refusal() const;
};

// Runs the model's own code on a device that counts. `options` are resolved limits with an artifact's config; `limit`
// is what may be taken of the card. Throws base::Error for an artifact that could not be loaded.
MemoryPlan plan_memory(const artifact::Artifact& artifact, const EngineOptions& options, const device::Card& card,
                       int64_t limit);

// The same; with the table of embeddings in the host's memory, which `load` then asks for, where the model would take
// more than nine tenths of what may be used: a step reads one row a token of a table of gigabytes.
MemoryPlan fitting_plan(const artifact::Artifact& artifact, const EngineOptions& options, const device::Card& card,
                        int64_t limit, model::LoadOptions& load);

// What recorded steps take of a card at most.
int64_t recording_bytes(const model::Config& config);

// The memory of the card that may be used: what is free, bounded by --vram-limit less what is taken already.
int64_t usable_memory(const EngineOptions& options, const device::Card& card, int64_t free_bytes);

}  // namespace tandem::engine
