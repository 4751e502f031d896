// How much longer work takes under a sanitizer; limits of time are multiplied with it.
#pragma once

#include <ctime>

namespace tandem::testing_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlack = 15;
#else
inline constexpr int kSlack = 1;
#endif

// Seconds of processor time that this program has taken: unlike the clock on the wall, the same on a busy machine.
inline double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace tandem::testing_support
