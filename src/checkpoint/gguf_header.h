// The head of a GGUF file, versions 2 and 3: magic, counts, key-value pairs and tensor entries. Every rule of
// docs/checkpoints.md is enforced here, on a function that reads bytes, so that it can be tested and fuzzed without
// files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/gguf_metadata.h"
#include "numeric/ggml_types.h"

namespace tandem::checkpoint {

inline constexpr uint64_t kMaxGgufHeaderBytes =
    64ull << 20;  // all before the data; a vocabulary of 250,000 takes about 10 MB
inline constexpr uint64_t kMaxGgufKeyBytes = 1024;
inline constexpr uint64_t kMaxGgufNameBytes = 63;
inline constexpr uint32_t kMaxGgufRank = 4;
inline constexpr uint64_t kDefaultGgufAlignment = 32;

struct GgufTensor {
  std::string name;  // printable ASCII
  numeric::GgmlType type = numeric::GgmlType::kF32;
  std::vector<int64_t> shape;  // C order: the last dimension is the contiguous one, as in safetensors; 1 to 4, all >= 1
  uint32_t part = 0;           // index into Gguf::parts()
  uint64_t offset = 0;         // of the first byte, from the start of the file
  uint64_t bytes = 0;
};

// "IQ2_S [512, 640, 2560]", for messages.
std::string describe(const GgufTensor& tensor);

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = kDefaultGgufAlignment;
  uint64_t data_offset = 0;  // of the first tensor's first byte
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // in the file's order, which is that of their data
};

// Fills the span from that byte of the file.
using GgufRead = std::function<void(uint64_t offset, std::span<std::byte> out)>;

// Reads the head of a file of `file_bytes` bytes; `part` is copied into the tensors. Throws base::Error{kBadInput} with
// `source`, the key or tensor and the figures.
GgufHeader parse_gguf_header(const GgufRead& read_at, uint64_t file_bytes, uint32_t part, const std::string& source);

}  // namespace tandem::checkpoint
