// The formats that a matrix of a routed expert may have.
#pragma once

#include <cstdint>

namespace tandem::numeric {

enum class ExpertFormat : uint8_t { kBF16, kNvfp4, kFp8Block, kIq2s, kIq3xxs, kIq3s, kIq4xs, kIq4nl, kQ2_0 };
inline constexpr int kExpertFormats = 9;

// GGUF's block formats, in units of numeric/block_units.h.
constexpr bool is_block_format(ExpertFormat format) {
  return format >= ExpertFormat::kIq2s;
}

// Formats whose products take activations of 8 bits (numeric/int8_activation.h).
constexpr bool takes_int8_activations(ExpertFormat format) {
  return format == ExpertFormat::kFp8Block || is_block_format(format);
}

}  // namespace tandem::numeric
