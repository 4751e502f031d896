// The safetensors container: u64 header length H, H bytes of JSON, then the data. Every rule of docs/checkpoints.md is
// enforced here, on text alone, so that it can be tested and fuzzed without files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor.h"

namespace tandem::checkpoint {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr size_t kMaxRank = 16;

// The header's length from the file's first eight bytes. Throws base::Error{kBadInput} where it is beyond
// kMaxHeaderBytes or the file.
uint64_t safetensors_header_bytes(std::span<const std::byte, 8> prefix, uint64_t file_bytes, const std::string& source);

// The tensors of a header, by offset, with offsets from the start of the file and `shard` as given. The file is
// `file_bytes` long. Throws base::Error{kBadInput} with `source`, the tensor and the figures.
std::vector<Tensor> parse_safetensors_header(std::string_view header, uint64_t file_bytes, uint32_t shard,
                                             const std::string& source);

// model.safetensors.index.json: which file of the folder holds each tensor.
struct SafetensorsIndex {
  struct Entry {
    std::string tensor;
    uint32_t file = 0;  // index into files
  };
  std::vector<std::string> files;  // plain names, ascending
  std::vector<Entry> entries;      // as in the text; no tensor twice
};

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& source);

}  // namespace tandem::checkpoint
