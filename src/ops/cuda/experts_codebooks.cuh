// The codebooks that launches carry, made from numeric's tables.
#pragma once

#include <algorithm>
#include <type_traits>

#include "numeric/iquant_codes.h"
#include "numeric/iquant_grids.h"
#include "ops/cuda/experts_formats.cuh"

namespace tandem::ops::cuda::expert {

// The codebooks by code, from the magnitudes of the entries.
template <typename Entry, size_t kDigits>
inline uint16_t digits_of(Entry entry, const uint8_t (&magnitudes)[kDigits], int bits) {
  uint32_t word = 0;
  for (size_t i = 0; i < sizeof(Entry); ++i) {
    const auto* found = std::find(magnitudes, magnitudes + kDigits, static_cast<uint8_t>(entry >> (8 * i)));
    word |= static_cast<uint32_t>(found - magnitudes) << (bits * static_cast<int>(i));
  }
  return static_cast<uint16_t>(word);
}

template <typename F>
inline typename F::Codebook make_codebook() {
  typename F::Codebook book;
  if constexpr (std::is_same_v<F, Iq2s>) {
    constexpr uint8_t kMagnitudes[] = {8, 25, 43};
    for (size_t c = 0; c < 1024; ++c) {
      book.words[c] = digits_of(numeric::iq2s_grid()[numeric::iq2s_entries()[c]], kMagnitudes, 2);
    }
  } else if constexpr (std::is_same_v<F, Iq3s>) {
    constexpr uint8_t kMagnitudes[] = {1, 3, 5, 7, 9, 11, 13, 15};
    for (size_t c = 0; c < 512; ++c) {
      book.words[c] = digits_of(numeric::iq3s_grid()[numeric::iq3s_entries()[c]], kMagnitudes, 3);
    }
  } else if constexpr (std::is_same_v<F, Iq3xxs>) {
    constexpr uint8_t kMagnitudes[] = {4, 12, 20, 28, 36, 44, 52, 62};
    for (size_t c = 0; c < 256; ++c) book.words[c] = digits_of(numeric::iq3xxs_grid()[c], kMagnitudes, 3);
  }
  return book;
}
template <typename F>
inline const typename F::Codebook& codebook() {
  static const typename F::Codebook book = make_codebook<F>();
  return book;
}

// Of a block, by all its threads; a barrier must follow.
template <typename F>
__device__ inline void make_table(const typename F::Codebook& book, typename F::Table& table) {
  if constexpr (!std::is_same_v<typename F::Codebook, NoCodebook>) {
    constexpr int kEntries = static_cast<int>(std::extent_v<typename F::Table>);
    for (int i = static_cast<int>(threadIdx.x); i < kEntries; i += static_cast<int>(blockDim.x)) {
      F::make_entry(book, i, table);
    }
  }
}

}  // namespace tandem::ops::cuda::expert
