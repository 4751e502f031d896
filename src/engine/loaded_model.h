// An artifact's model in memory, for the engine and for commands that run it directly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "artifact/artifact.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "engine/text_model.h"
#include "model/model.h"

namespace tandem::engine {

struct LoadedModel {
  std::string name;                              // the artifact's folder without ".tandem"
  std::unique_ptr<artifact::Artifact> artifact;  // at one address: the model reads n-gram rows from it
  std::unique_ptr<base::WorkerPool> pool;
  std::shared_ptr<device::Device> device;
  std::unique_ptr<model::Model> model;
};

// Reads artifact, device, ranks, threads and load of the options. Throws base::Error: for what the artifact lacks, and
// for a placement that this version cannot compute on.
LoadedModel load_model(const EngineOptions& options);

// The loaded model behind the engine's seam, with room for `tokens` in all sequences together and for `slots` of them.
std::unique_ptr<TextModel> text_model(LoadedModel loaded, int64_t tokens, int slots);

// The parts of an engine that serves this artifact.
EngineParts load_parts(const EngineOptions& options);

}  // namespace tandem::engine
