// A slow rounding to the nearest member of a finite set, in double, for checking the encoders.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace tandem::numeric {

// The code in [0, codes) whose value is nearest to `magnitude`; among equally near ones the even code. Codes ascend by
// value.
template <typename Value>
uint32_t nearest_code(double magnitude, uint32_t codes, Value value) {
  // Far beyond the largest value every distance would round to the same double.
  magnitude = std::fmin(magnitude, 2.0 * static_cast<double>(value(codes - 1)));
  uint32_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t code = 0; code < codes; ++code) {
    const double distance = std::fabs(magnitude - static_cast<double>(value(code)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tandem::numeric
