// The tensor types of GGUF files, in one table: whoever asks for a type's name, block or decoder asks here. The block
// formats themselves are in the headers named after them (iq2_s.h, q4_k.h and so on).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tandem::numeric {

// The ids that files hold. Those that have no decoder here can be listed, but not converted.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kQ8K = 15,
  kIq2xxs = 16,
  kIq2xs = 17,
  kIq3xxs = 18,
  kIq1s = 19,
  kIq4nl = 20,
  kIq3s = 21,
  kIq2s = 22,
  kIq4xs = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIq1m = 29,
  kBF16 = 30,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kMxfp4 = 39,
  kNvfp4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

struct GgmlTraits {
  GgmlType type;
  std::string_view name;   // as ggml prints it, in capitals: "IQ2_S"
  int64_t block_elements;  // consecutive elements of a row that are stored together
  int64_t block_bytes;
  // One block to block_elements values; the block needs no alignment. Null where Tandem has no decoder.
  void (*decode)(const std::byte* block, float* out);
  // Whether the block's scales are finite; every other pattern of bits is a value. Null where no pattern is invalid or
  // there is no decoder.
  bool (*valid)(const std::byte* block);

  double bits_per_element() const {
    return 8.0 * static_cast<double>(block_bytes) / static_cast<double>(block_elements);
  }
};

// Every type of the enumeration, by id.
std::span<const GgmlTraits> ggml_types();
// Null where the id is not in the enumeration.
const GgmlTraits* find_ggml_type(uint32_t id);
// The traits of a member of the enumeration.
const GgmlTraits& ggml_type(GgmlType type);

// An id that was in use once, or is used by a fork: why a file with it is refused. Empty for every other id.
std::string_view refused_ggml_type(uint32_t id);

// Consecutive blocks. Throws base::Error{kInternal} where there is no decoder, `data` is not whole blocks or `out` does
// not have the elements of them all.
void ggml_decode(GgmlType type, std::span<const std::byte> data, std::span<float> out);
// The index of the first invalid block, -1 where all are valid. Throws as ggml_decode.
int64_t ggml_first_invalid_block(GgmlType type, std::span<const std::byte> data);

}  // namespace tandem::numeric
