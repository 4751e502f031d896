// The one shape of every bench's answer (docs/bench.md).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::app {

// Figures are computed from `raw` alone, so that every one of them can be checked.
struct BenchReport {
  std::string bench;                          // its name
  int threads = 0;                            // that computed
  base::Json raw = base::Json::object();      // times, bytes and counts as measured
  base::Json figures = base::Json::object();  // name with its unit: number

  // {"bench", "date", "build", "machine", "command", "raw", "figures"}.
  base::Json to_json() const;
  // The JSON object on one line, or the figures as a table.
  void print(bool json) const;
};

// Benches report medians of at least this many rounds.
inline constexpr int kLeastRounds = 5;

double seconds_since(std::chrono::steady_clock::time_point begin);
double median(std::vector<double> values);  // REQUIRES: not empty
// The value that `part` of them, [0, 1], stay at or below. REQUIRES: not empty.
double percentile(std::vector<double> values, double part);

}  // namespace tandem::app
