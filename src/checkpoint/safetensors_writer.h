// Writes one safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
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

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;

  uint64_t bytes() const;
};

// The same for tensors that are made while they are written: `fill` is called with the index of a tensor, an offset
// into its data and at most kPieceBytes to fill, in the order of the file. Writes to `path` itself: the caller sees to
// the disk's room and to what is left of the file where this throws. Returns the size of the file.
inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
using TensorFill = std::function<void(size_t tensor, uint64_t offset, std::span<std::byte> out)>;
uint64_t stream_safetensors(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                            const TensorFill& fill, const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem::checkpoint
