#include "numeric/int_group.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace tandem::numeric {

namespace {

constexpr size_t kLanes = 16;
constexpr size_t kUnitInputs = static_cast<size_t>(kIntUnitInputs);

void require_bits(int bits) {
  if (!int_bits_known(bits)) base::internal_error("integers", "{} bits are not known", bits);
}

void require_row(size_t codes, size_t bytes, int64_t expected, std::string_view what) {
  if (bytes != static_cast<size_t>(expected)) {
    base::internal_error("integers", "a row of {} codes has {} {}, not {}", codes, expected, what, bytes);
  }
}

// Bit position of a code in a published row.
size_t packed_bit(size_t index, size_t bits, IntPacking packing) {
  if (packing == IntPacking::kStream) return index * bits;
  const size_t per_word = 32 / bits;
  return index / per_word * 32 + index % per_word * bits;
}

}  // namespace

void int_decode_row(std::span<const uint8_t> codes, int bits, std::span<const float> scales, int64_t group,
                    std::span<float> out) {
  require_bits(bits);
  const auto width = static_cast<size_t>(group);
  if (out.size() != codes.size() || scales.size() * width != codes.size()) {
    base::internal_error("integers", "a row of {} codes has {} values and {} scales of groups of {} here", codes.size(),
                         out.size(), scales.size(), group);
  }
  for (size_t i = 0; i < codes.size(); ++i) out[i] = int_to_float(codes[i], bits) * scales[i / width];
}

void int_encode_row(std::span<const float> weights, int bits, int64_t group, std::span<uint8_t> codes,
                    std::span<float> scales) {
  require_bits(bits);
  const auto width = static_cast<size_t>(group);
  if (weights.size() != codes.size() || scales.size() * width != codes.size()) {
    base::internal_error("integers", "a row of {} weights has {} codes and {} scales of groups of {} here",
                         weights.size(), codes.size(), scales.size(), group);
  }
  const float half = static_cast<float>(1 << (bits - 1));
  for (size_t g = 0; g < scales.size(); ++g) {
    float amax = 0;
    for (size_t i = g * width; i < (g + 1) * width; ++i) amax = std::max(amax, std::fabs(weights[i]));
    scales[g] = amax > 0 ? amax / half : 1.0f;
    for (size_t i = g * width; i < (g + 1) * width; ++i) {
      codes[i] = static_cast<uint8_t>(std::clamp(std::nearbyint(weights[i] / scales[g]), -half, half - 1) + half);
    }
  }
}

bool int_unpack_row(std::span<const uint32_t> words, int bits, IntPacking packing, std::span<uint8_t> codes) {
  require_bits(bits);
  require_row(codes.size(), words.size(), int_packed_words(static_cast<int64_t>(codes.size()), bits, packing), "words");
  const auto width = static_cast<size_t>(bits);
  const uint32_t mask = (1u << width) - 1;
  uint64_t set = 0;    // bits that are set in the row
  uint64_t found = 0;  // and of these, in codes
  for (const uint32_t word : words) set += static_cast<uint64_t>(__builtin_popcount(word));
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t at = packed_bit(i, width, packing);
    uint64_t pair = words[at / 32];
    if (at % 32 + width > 32) pair |= static_cast<uint64_t>(words[at / 32 + 1]) << 32;
    const uint32_t code = static_cast<uint32_t>(pair >> at % 32) & mask;
    codes[i] = static_cast<uint8_t>(code);
    found += static_cast<uint64_t>(__builtin_popcount(code));
  }
  return set == found;
}

void int_pack_row(std::span<const uint8_t> codes, int bits, IntPacking packing, std::span<uint32_t> words) {
  require_bits(bits);
  require_row(codes.size(), words.size(), int_packed_words(static_cast<int64_t>(codes.size()), bits, packing), "words");
  const auto width = static_cast<size_t>(bits);
  std::fill(words.begin(), words.end(), 0u);
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t at = packed_bit(i, width, packing);
    const uint64_t pair = static_cast<uint64_t>(codes[i]) << at % 32;
    words[at / 32] |= static_cast<uint32_t>(pair);
    if (at % 32 + width > 32) words[at / 32 + 1] |= static_cast<uint32_t>(pair >> 32);
  }
}

void int_store_row(std::span<const uint8_t> codes, int bits, std::span<std::byte> row) {
  require_bits(bits);
  require_row(codes.size(), row.size(), int_row_bytes(static_cast<int64_t>(codes.size()), bits), "bytes");
  std::byte* unit = row.data();
  for (size_t first = 0; first < codes.size(); first += kUnitInputs, unit += int_unit_bytes(bits)) {
    std::array<uint8_t, kUnitInputs> padded{};
    std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(first), std::min(kUnitInputs, codes.size() - first),
                padded.begin());
    if (bits == 8) {
      std::memcpy(unit, padded.data(), padded.size());
      continue;
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      uint32_t word = 0;
      for (size_t j = 0; j < 8; ++j) {
        word |= static_cast<uint32_t>(padded[16 * j + lane]) << (j * static_cast<size_t>(bits));
      }
      if (bits == 4) {
        std::memcpy(unit + 4 * lane, &word, 4);
      } else {
        const auto low = static_cast<uint16_t>(word);
        std::memcpy(unit + 2 * lane, &low, 2);
        unit[2 * kLanes + lane] = static_cast<std::byte>(word >> 16);
      }
    }
  }
}

bool int_load_row(std::span<const std::byte> row, int bits, std::span<uint8_t> codes) {
  require_bits(bits);
  require_row(codes.size(), row.size(), int_row_bytes(static_cast<int64_t>(codes.size()), bits), "bytes");
  const auto width = static_cast<size_t>(bits);
  const std::byte* unit = row.data();
  bool padded_with_zeros = true;
  for (size_t first = 0; first < codes.size(); first += kUnitInputs, unit += int_unit_bytes(bits)) {
    std::array<uint8_t, kUnitInputs> all{};
    if (bits == 8) {
      std::memcpy(all.data(), unit, all.size());
    } else {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        uint32_t word = 0;
        std::memcpy(&word, unit + (bits == 4 ? 4 : 2) * lane, bits == 4 ? 4 : 2);
        if (bits == 3) word |= std::to_integer<uint32_t>(unit[2 * kLanes + lane]) << 16;
        for (size_t j = 0; j < 8; ++j) {
          all[16 * j + lane] = static_cast<uint8_t>(word >> (j * width) & ((1u << width) - 1));
        }
      }
    }
    const size_t count = std::min(kUnitInputs, codes.size() - first);
    std::copy_n(all.begin(), count, codes.begin() + static_cast<std::ptrdiff_t>(first));
    padded_with_zeros = padded_with_zeros && std::all_of(all.begin() + static_cast<std::ptrdiff_t>(count), all.end(),
                                                         [](uint8_t code) { return code == 0; });
  }
  return padded_with_zeros;
}

}  // namespace tandem::numeric
