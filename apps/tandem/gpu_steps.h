// Whole steps of models of synthetic weights on a card, for `tandem bench gpu`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "bench_report.h"
#include "device/cuda/watched_device.h"
#include "engine/engine.h"
#include "ops/cuda/ceilings.h"

namespace tandem::app {

struct GpuOptions {
  engine::EngineOptions engine;
  std::vector<std::string> models = {"27b-nvfp4", "flash-nvfp4"};
  std::vector<int64_t> contexts = {1024, 65536};
  std::vector<int64_t> widths = {1, 4};
  std::vector<int64_t> prompts = {8192};
  std::vector<int64_t> prefill_chunks = {2048};
  int64_t layers = 0;
  std::string start;  // a folder for an artifact
  bool no_operations = false;
  bool no_models = false;
  int gap_steps = 100;
  int steps = 24;
  int rounds = kLeastRounds;
  bool json = false;
};

// A model of this form, made while it is read.
artifact::Artifact bench_artifact(const GpuOptions& options, const std::string& form);

struct Measured {
  BenchReport& report;
  const GpuOptions& options;
  ops::cuda::CardCeilings ceilings;
};

// Loads a model of this form, measures prompts, decode steps with what their operations take, and the host's time
// between steps.
void measure_model(Measured& measured, const std::string& form,
                   const std::shared_ptr<device::cuda::WatchedDevice>& card);

}  // namespace tandem::app
