// Writes one safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tandem::checkpoint {

struct TensorData {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // C order, little-endian
};

// The tensors lie one after the other in the order given: wide types first keeps them aligned. The file is written
// beside `path` and renamed, so that nothing of it is left where writing fails. Throws base::Error that names the path;
// kUnavailable, with the figures, where the disk lacks room. REQUIRES: names differ.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem::checkpoint
