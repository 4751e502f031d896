// Random numbers by position: the same key and index give the same number, whoever asks and in whatever order, so that
// any piece of a tensor can be made by itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::synth {

inline constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;

// The output function of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
constexpr uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

// Number `index` of the sequence with this key.
constexpr uint64_t random_at(uint64_t key, uint64_t index) {
  return scramble(key + (index + 1) * kGolden);
}

// In [0, 1).
constexpr double uniform_at(uint64_t key, uint64_t index) {
  return static_cast<double>(random_at(key, index) >> 11) * 0x1p-53;
}

// The key of a named thing under a seed.
constexpr uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t key = scramble(seed + kGolden);
  for (const char c : name) key = scramble((key ^ static_cast<unsigned char>(c)) + kGolden);
  return key;
}

// The value that a standard normal variable exceeds with probability 1 - p; p in (0, 1). Error below 5e-4, which no
// weight notices (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23).
double normal_quantile(double p);

}  // namespace tandem::synth
