// The bounds of the sum over a token's experts. Nothing but constants, so that vector kernels can include it.
#pragma once

namespace tandem::numeric {

// A term must be smaller than this, and a token have no more experts: then the sum's fixed point holds them in any
// order.
inline constexpr float kLargestExpertTerm = 0x1p27f;
inline constexpr int kMostExpertsPerToken = 16;

}  // namespace tandem::numeric
