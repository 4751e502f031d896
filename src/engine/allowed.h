// Which tokens one draw may give.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::engine {

// Both lists may be empty: then they forbid nothing.
struct Allowed {
  std::span<const uint64_t> mask{};   // bit i of word i / 64 allows token i; tokens beyond its end are forbidden
  std::span<const int32_t> banned{};  // forbidden in any case
};

}  // namespace tandem::engine
