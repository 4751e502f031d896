#include "numeric/ggml_types.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/iq2_s.h"
#include "numeric/iq2_xs.h"
#include "numeric/iq3_s.h"
#include "numeric/iq3_xxs.h"
#include "numeric/iq4_nl.h"
#include "numeric/iq4_xs.h"
#include "numeric/q2_0.h"
#include "numeric/q4_k.h"
#include "numeric/q5_k.h"
#include "numeric/q6_k.h"
#include "numeric/q8_0.h"

namespace tandem::numeric {

namespace {

template <typename Block>
Block block_from_bytes(const std::byte* bytes) {
  Block block;
  std::memcpy(&block, bytes, sizeof block);
  return block;
}

// A type whose blocks this program decodes.
template <typename Block>
constexpr GgmlTraits block_traits(GgmlType type, std::string_view name) {
  return {type,
          name,
          Block::kElements,
          sizeof(Block),
          [](const std::byte* block, float* out) { block_from_bytes<Block>(block).decode(out); },
          [](const std::byte* block) { return block_from_bytes<Block>(block).valid(); }};
}

// A type of which only the size is known.
constexpr GgmlTraits sized_traits(GgmlType type, std::string_view name, int64_t elements, int64_t bytes) {
  return {type, name, elements, bytes, nullptr, nullptr};
}

template <typename Bits, float (*kDecode)(Bits)>
constexpr GgmlTraits float_traits(GgmlType type, std::string_view name) {
  return {type,
          name,
          1,
          sizeof(Bits),
          [](const std::byte* block, float* out) { *out = kDecode(block_from_bytes<Bits>(block)); },
          nullptr};
}

constexpr float same_float(float value) {
  return value;
}

constexpr std::array kGgmlTypes = {
    float_traits<float, same_float>(GgmlType::kF32, "F32"),
    float_traits<uint16_t, f16_to_float>(GgmlType::kF16, "F16"),
    sized_traits(GgmlType::kQ4_0, "Q4_0", 32, 18),
    sized_traits(GgmlType::kQ4_1, "Q4_1", 32, 20),
    sized_traits(GgmlType::kQ5_0, "Q5_0", 32, 22),
    sized_traits(GgmlType::kQ5_1, "Q5_1", 32, 24),
    block_traits<Q8_0Block>(GgmlType::kQ8_0, "Q8_0"),
    sized_traits(GgmlType::kQ8_1, "Q8_1", 32, 36),
    sized_traits(GgmlType::kQ2K, "Q2_K", 256, 84),
    sized_traits(GgmlType::kQ3K, "Q3_K", 256, 110),
    block_traits<Q4kBlock>(GgmlType::kQ4K, "Q4_K"),
    block_traits<Q5kBlock>(GgmlType::kQ5K, "Q5_K"),
    block_traits<Q6kBlock>(GgmlType::kQ6K, "Q6_K"),
    sized_traits(GgmlType::kQ8K, "Q8_K", 256, 292),
    sized_traits(GgmlType::kIq2xxs, "IQ2_XXS", 256, 66),
    block_traits<Iq2xsBlock>(GgmlType::kIq2xs, "IQ2_XS"),
    block_traits<Iq3xxsBlock>(GgmlType::kIq3xxs, "IQ3_XXS"),
    sized_traits(GgmlType::kIq1s, "IQ1_S", 256, 50),
    block_traits<Iq4nlBlock>(GgmlType::kIq4nl, "IQ4_NL"),
    block_traits<Iq3sBlock>(GgmlType::kIq3s, "IQ3_S"),
    block_traits<Iq2sBlock>(GgmlType::kIq2s, "IQ2_S"),
    block_traits<Iq4xsBlock>(GgmlType::kIq4xs, "IQ4_XS"),
    sized_traits(GgmlType::kI8, "I8", 1, 1),
    sized_traits(GgmlType::kI16, "I16", 1, 2),
    sized_traits(GgmlType::kI32, "I32", 1, 4),
    sized_traits(GgmlType::kI64, "I64", 1, 8),
    sized_traits(GgmlType::kF64, "F64", 1, 8),
    sized_traits(GgmlType::kIq1m, "IQ1_M", 256, 56),
    float_traits<uint16_t, bf16_to_float>(GgmlType::kBF16, "BF16"),
    sized_traits(GgmlType::kTq1_0, "TQ1_0", 256, 54),
    sized_traits(GgmlType::kTq2_0, "TQ2_0", 256, 66),
    sized_traits(GgmlType::kMxfp4, "MXFP4", 32, 17),
    sized_traits(GgmlType::kNvfp4, "NVFP4", 64, 36),
    sized_traits(GgmlType::kQ1_0, "Q1_0", 128, 18),
    block_traits<Q2_0Block>(GgmlType::kQ2_0, "Q2_0"),
};

constexpr bool id_before(const GgmlTraits& traits, uint32_t id) {
  return static_cast<uint32_t>(traits.type) < id;
}

constexpr bool ids_ascend() {
  for (size_t i = 1; i < kGgmlTypes.size(); ++i) {
    if (!id_before(kGgmlTypes[i - 1], static_cast<uint32_t>(kGgmlTypes[i].type))) return false;
  }
  return true;
}
static_assert(ids_ascend());

constexpr std::string_view kRemovedQ4_2 = "was removed from the format before any file of today was written";
constexpr std::string_view kRemovedRepacked =
    "is a repacked form that was removed from the format; the file has to be made again from its source";
constexpr std::string_view kForkPq2_0 = "is PQ2_0 of a fork (Q2_0 in groups of 128), which the format does not have";
constexpr std::string_view kForkPtq1_0 =
    "is PTQ1_0 of a fork (rotated ternary weights), which the format does not have";

// The traits of a type that has a decoder, after checking that `data` is whole blocks.
const GgmlTraits& decodable_type(GgmlType type, size_t bytes) {
  const GgmlTraits& traits = ggml_type(type);
  if (traits.decode == nullptr) base::internal_error("numeric", "there is no decoder for {}", traits.name);
  if (bytes % static_cast<size_t>(traits.block_bytes) != 0) {
    base::internal_error("numeric", "{} bytes are not whole blocks of {}, {} bytes each", bytes, traits.name,
                         traits.block_bytes);
  }
  return traits;
}

}  // namespace

std::span<const GgmlTraits> ggml_types() {
  return kGgmlTypes;
}

const GgmlTraits* find_ggml_type(uint32_t id) {
  const auto* found = std::lower_bound(kGgmlTypes.begin(), kGgmlTypes.end(), id, id_before);
  return found != kGgmlTypes.end() && static_cast<uint32_t>(found->type) == id ? found : nullptr;
}

const GgmlTraits& ggml_type(GgmlType type) {
  const GgmlTraits* traits = find_ggml_type(static_cast<uint32_t>(type));
  if (traits == nullptr) base::internal_error("numeric", "{} is not a tensor type", static_cast<uint32_t>(type));
  return *traits;
}

std::string_view refused_ggml_type(uint32_t id) {
  if (id == 4 || id == 5) return kRemovedQ4_2;
  if ((id >= 31 && id <= 33) || (id >= 36 && id <= 38)) return kRemovedRepacked;
  if (id == 142) return kForkPq2_0;
  if (id == 143) return kForkPtq1_0;
  return {};
}

void ggml_decode(GgmlType type, std::span<const std::byte> data, std::span<float> out) {
  const GgmlTraits& traits = decodable_type(type, data.size());
  const size_t blocks = data.size() / static_cast<size_t>(traits.block_bytes);
  if (out.size() != blocks * static_cast<size_t>(traits.block_elements)) {
    base::internal_error("numeric", "{} blocks of {} do not have {} elements", blocks, traits.name, out.size());
  }
  for (size_t i = 0; i < blocks; ++i) {
    traits.decode(data.data() + i * static_cast<size_t>(traits.block_bytes),
                  out.data() + i * static_cast<size_t>(traits.block_elements));
  }
}

int64_t ggml_first_invalid_block(GgmlType type, std::span<const std::byte> data) {
  const GgmlTraits& traits = decodable_type(type, data.size());
  if (traits.valid == nullptr) return -1;
  const size_t blocks = data.size() / static_cast<size_t>(traits.block_bytes);
  for (size_t i = 0; i < blocks; ++i) {
    if (!traits.valid(data.data() + i * static_cast<size_t>(traits.block_bytes))) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace tandem::numeric
