// Figures as people read them.
#pragma once

#include <charconv>
#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::base {

// "512 B", "1.5 KiB", "63.28 GiB".
inline std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.4g} {}", value, kUnits[unit]);
}

// Bytes of "4096", "500M", "500MiB", "4g" or "4GiB"; a unit is a power of 1024. Nothing for any other text.
inline std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  std::string unit(text.substr(static_cast<size_t>(end - text.data())));
  for (char& c : unit) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  static constexpr std::string_view kPrefixes = "kmgt";
  if (unit.empty() || unit == "b") return value;
  const size_t prefix = kPrefixes.find(unit.front());
  if (prefix == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "ib" && unit.substr(1) != "b")) {
    return std::nullopt;
  }
  const auto shift = 10 * (prefix + 1);
  if (value > std::numeric_limits<uint64_t>::max() >> shift) return std::nullopt;
  return value << shift;
}

inline constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rounded up; neither may be negative.
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace tandem::base
