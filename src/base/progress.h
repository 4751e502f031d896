// Progress of long work on standard error: a bar with rate and time left on a terminal, a plain line every few seconds
// otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace tandem::base {

enum class ProgressUnit { kBytes, kCount };

// One piece of work of known size. add() may be called from several threads.
class Progress {
 public:
  // `quiet` shows nothing (for --json and tests).
  Progress(std::string label, uint64_t total, ProgressUnit unit, bool quiet = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(uint64_t amount);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now, bool last);
  std::string amount(double value) const;

  std::string label_;
  uint64_t total_;
  ProgressUnit unit_;
  bool quiet_;
  bool terminal_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
  bool shown_ = false;
};

}  // namespace tandem::base
