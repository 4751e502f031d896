// How much longer work takes under a sanitizer; limits of time are multiplied with it.
#pragma once

namespace tandem::testing_support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlack = 15;
#else
inline constexpr int kSlack = 1;
#endif

}  // namespace tandem::testing_support
