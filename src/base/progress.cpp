#include "base/progress.h"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <unistd.h>

#include "base/units.h"

namespace tandem::base {

namespace {

constexpr int kBarWidth = 24;
constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::milliseconds kPlainInterval{5000};

std::string time_left(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string label, uint64_t total, ProgressUnit unit, bool quiet)
    : label_(std::move(label)), total_(total), unit_(unit), quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  const std::lock_guard lock(mutex_);
  if (!quiet_ && (shown_ || !terminal_)) draw(Clock::now(), true);
}

void Progress::add(uint64_t amount) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
  const auto now = Clock::now();
  if (quiet_ || now - drawn_ < (terminal_ ? kTerminalInterval : kPlainInterval)) return;
  draw(now, false);
}

std::string Progress::amount(double value) const {
  return unit_ == ProgressUnit::kBytes ? format_bytes(static_cast<uint64_t>(value)) : fmt::format("{:.0f}", value);
}

void Progress::draw(Clock::time_point now, bool last) {
  drawn_ = now;
  shown_ = true;
  const double seconds = std::max(std::chrono::duration<double>(now - start_).count(), 1e-3);
  const double rate = static_cast<double>(done_) / seconds;
  const double fraction = total_ == 0 ? 1.0 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  std::string line = fmt::format("{} {:3.0f} % {} of {}, {}/s", label_, 100 * fraction,
                                 amount(static_cast<double>(done_)), amount(static_cast<double>(total_)), amount(rate));
  if (!last && rate > 0 && done_ <= total_) {
    line += fmt::format(", {} left", time_left(static_cast<double>(total_ - done_) / rate));
  }
  if (terminal_) {
    const int filled = static_cast<int>(fraction * kBarWidth);
    const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
    fmt::print(stderr, "\r\x1b[K[{}] {}{}", bar, line, last ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace tandem::base
