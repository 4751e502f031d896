// A published checkpoint: a folder (or one file) of safetensors, with its config. The only code that meets untrusted
// weight files: every number in them is checked before it is used (docs/checkpoints.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "checkpoint/tensor.h"

namespace tandem::checkpoint {

struct Shard {
  std::filesystem::path path;
  uint64_t bytes = 0;        // size of the file
  uint64_t data_offset = 0;  // of the first tensor's first byte
  timespec modified{};       // when it was last written, as it was when opened
  std::string adopted_as{};  // empty for a shard of the folder itself, see Checkpoint::adopt

  // The file's name, behind "AS/" where the shard was adopted: unique in a checkpoint.
  std::string name() const;
};

// An opened checkpoint. Immutable; read() may be called from several threads.
class Checkpoint {
 public:
  // `path` is a folder with config.json and model.safetensors or model.safetensors.index.json with its shards, or one
  // .safetensors file (then there is no config). Throws base::Error{kBadInput} that names file, tensor and figures.
  static Checkpoint open(const std::filesystem::path& path);

  // Fills `out` with bytes of a tensor's data from `offset` on.
  using Read = std::function<void(const Tensor& tensor, uint64_t offset, std::span<std::byte> out)>;
  // A checkpoint without files: `tensors` (shard and offset are set here) in one shard, their bytes made by `read` when
  // they are asked for. `label` stands for the folder in messages. Throws where two tensors have one name.
  static Checkpoint generated(const std::string& label, base::Json config, std::vector<Tensor> tensors, Read read);
  // A checkpoint made of files of another kind: the tensors tell their shard, and by their offset their order in it.
  static Checkpoint view(const std::filesystem::path& folder, base::Json config, std::vector<Shard> shards,
                         std::vector<Tensor> tensors, const Read& read);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  // Removes the tensors whose names `unwanted` accepts, and the shards that hold no others.
  void remove(const std::function<bool(std::string_view name)>& unwanted);
  // Takes over the tensors of `other` whose names begin with `prefix` (all, where it is empty), and the shards that
  // hold them, as the last ones. `as` names their origin. Throws base::Error{kBadInput} where there are none, or where
  // this has such tensors already.
  void adopt(Checkpoint&& other, const std::string& prefix, const std::string& as);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<Shard>& shards() const { return shards_; }     // by file name, then adopted ones
  const std::vector<Tensor>& tensors() const { return tensors_; }  // by shard, then by offset
  const Tensor* find(std::string_view name) const;                 // null where absent
  const Tensor& at(std::string_view name) const;                   // throws, naming the tensor and the folder

  // config.json, or null for a single file.
  const base::Json& config() const { return config_; }
  // The object that tells how tensors are quantised: config.json's quantization_config, else hf_quant_config.json's
  // quantization, else null.
  const base::Json& quantization() const { return quantization_; }

  // Bytes [offset, offset + out.size()) of the tensor's data. Throws where that leaves the tensor, or where the file's
  // size or time of writing is no longer what it was when opened.
  void read(const Tensor& tensor, uint64_t offset, std::span<std::byte> out) const;
  // The whole tensor.
  std::vector<std::byte> read(const Tensor& tensor) const;

 private:
  Checkpoint() = default;
  void open_shard(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& index_path);
  void open_folder();
  void read_config();
  void index_names();

  std::filesystem::path folder_;
  std::vector<Shard> shards_;
  std::vector<Read> reads_;  // parallel to shards_: how their tensors are read
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, uint32_t> by_name_;  // keys point into tensors_
  base::Json config_;
  base::Json quantization_;
};

}  // namespace tandem::checkpoint
