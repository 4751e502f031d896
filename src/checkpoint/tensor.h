// The element types and the tensor entries of safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "numeric/ggml_types.h"

namespace tandem::checkpoint {

enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
  kC64,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kBlocks,  // of a GGUF file, Tensor::blocks tells of which type; no safetensors file has it
};

// Bits of one element; 0 for kBlocks.
int dtype_bits(Dtype dtype);
// The name that safetensors headers use, "BF16"; "BLOCKS" for kBlocks.
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

// One tensor of a checkpoint, C order, little-endian.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kBF16;
  numeric::GgmlType blocks = numeric::GgmlType::kF32;  // where dtype is kBlocks; rows are whole blocks
  std::vector<int64_t> shape;                          // rank 0 is one element; a dimension may be 0
  uint32_t shard = 0;                                  // index into Checkpoint::shards()
  uint64_t offset = 0;                                 // of the first byte, from the start of the shard file
  uint64_t bytes = 0;
};

// "[512, 1280]", "[]".
std::string describe_shape(const std::vector<int64_t>& shape);
// "BF16 [512, 1280]", for messages.
std::string describe(const Tensor& tensor);

}  // namespace tandem::checkpoint
