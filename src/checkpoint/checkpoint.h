// A published checkpoint: a folder (or one file) of safetensors, with its config. The only code that meets untrusted
// weight files: every number in them is checked before it is used (docs/formats of safetensors: docs/checkpoints.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/json.h"

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
};

// Bits of one element.
int dtype_bits(Dtype dtype);
// The name that safetensors headers use, "BF16".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

// One tensor of a checkpoint, C order, little-endian.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kBF16;
  std::vector<int64_t> shape;  // rank 0 is one element; a dimension may be 0
  uint32_t shard = 0;          // index into Checkpoint::shards()
  uint64_t offset = 0;         // of the first byte, from the start of the shard file
  uint64_t bytes = 0;
};

// "BF16 [512, 1280]", for messages.
std::string describe(const Tensor& tensor);

struct Shard {
  std::filesystem::path path;
  uint64_t bytes = 0;        // size of the file
  uint64_t data_offset = 0;  // of the first tensor's first byte
};

// An opened checkpoint. Immutable; read() may be called from several threads.
class Checkpoint {
 public:
  // `path` is a folder with config.json and model.safetensors or model.safetensors.index.json with its shards, or one
  // .safetensors file (then there is no config). Throws base::Error{kBadInput} that names file, tensor and figures.
  static Checkpoint open(const std::filesystem::path& path);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // by shard, then by offset
  const Tensor* find(std::string_view name) const;                 // null where absent
  const Tensor& at(std::string_view name) const;                   // throws, naming the tensor and the folder

  // config.json, or null for a single file.
  const base::Json& config() const { return config_; }

  // Bytes [offset, offset + out.size()) of the tensor's data. Throws where that leaves the tensor, or where the file
  // is no longer as long as it was when opened.
  void read(const Tensor& tensor, uint64_t offset, std::span<std::byte> out) const;
  // The whole tensor.
  std::vector<std::byte> read(const Tensor& tensor) const;

 private:
  std::filesystem::path folder_;
  std::vector<Shard> shards_;
  std::vector<base::File> files_;  // parallel to shards_
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, uint32_t> by_name_;  // keys point into tensors_
  base::Json config_;
};

}  // namespace tandem::checkpoint
