// Fresh random operands for the operation tests, from a seed that is printed when a test fails.
#pragma once

#include <cmath>
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "numeric/bf16.h"

namespace tandem::ops {

class RandomData {
 public:
  RandomData() : seed_(std::random_device{}()), engine_(seed_), trace_(__FILE__, __LINE__, seed_) {}

  std::vector<float> normal(int64_t count, float scale = 1.0F) {
    std::normal_distribution<float> distribution(0.0F, scale);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = distribution(engine_);
    return values;
  }
  std::vector<uint16_t> normal_bf16(int64_t count, float scale = 1.0F) {
    std::vector<uint16_t> bits;
    for (const float v : normal(count, scale)) bits.push_back(numeric::bf16_from_float(v));
    return bits;
  }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  std::mt19937& engine() { return engine_; }

 private:
  unsigned seed_;
  std::mt19937 engine_;
  testing::ScopedTrace trace_;
};

// Outputs start as NaN, so that what an operation forgets to write is seen.
inline std::vector<float> poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

inline double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

}  // namespace tandem::ops
