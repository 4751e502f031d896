// Counters and histograms of the answers, in Prometheus' text format (version 0.0.4), under vLLM's names where it has
// the same figure.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tandem::serve {

// Cumulative buckets as Prometheus counts them. Not thread-safe.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value);
  void print(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  std::span<const double> bounds_;  // ascending; a last bucket has no bound
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// Thread-safe.
class Metrics {
 public:
  Metrics();

  void answered(const engine::Outcome& outcome);
  void omitted_media(int64_t pictures);

  // The state of the engine is absent while the model is loading.
  std::string prometheus(const std::string& model, const engine::EngineStatus* engine) const;

 private:
  mutable std::mutex mutex_;
  std::array<int64_t, 6> by_reason_{};  // by engine::FinishReason
  engine::GuardCounts guards_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
  int64_t omitted_media_ = 0;
  Histogram queue_, prefill_, decode_, first_token_, between_tokens_, whole_, prompt_sizes_, answer_sizes_;
};

}  // namespace tandem::serve
