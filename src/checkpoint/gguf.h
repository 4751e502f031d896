// A model in GGUF form: one file, or the parts NAME-00001-of-0000N.gguf of a split one. As all readers of this folder
// it trusts no number of a file (docs/checkpoints.md), reads with pread into the caller's memory, and keeps tensors in
// the types they are stored in: numeric/ggml_types.h decodes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/gguf_header.h"
#include "checkpoint/watched_file.h"

namespace tandem::checkpoint {

struct GgufPart {
  std::filesystem::path path;
  uint64_t bytes = 0;
  timespec modified{};  // when it was last written, as it was when opened
  uint32_t version = 0;
  uint64_t data_offset = 0;
  uint64_t tensors = 0;
};

// Immutable; read() may be called from several threads.
class Gguf {
 public:
  // `path` is the file, or any part of a split one: the others are looked for beside it. Throws base::Error{kBadInput}
  // that names file, key or tensor, and the figures.
  static Gguf open(const std::filesystem::path& path);

  Gguf(Gguf&&) noexcept = default;
  Gguf& operator=(Gguf&&) noexcept = default;

  const std::vector<GgufPart>& parts() const { return parts_; }        // in their order
  const GgufMetadata& metadata() const { return metadata_; }           // of the first part
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // by part, then by offset
  const GgufTensor* find(std::string_view name) const;                 // null where absent
  const GgufTensor& at(std::string_view name) const;                   // throws, naming the tensor and the file

  // Bytes [offset, offset + out.size()) of the tensor's data. Throws where that leaves the tensor, or where the file's
  // size or time of writing is no longer what it was when opened.
  void read(const GgufTensor& tensor, uint64_t offset, std::span<std::byte> out) const;
  // The whole tensor.
  std::vector<std::byte> read(const GgufTensor& tensor) const;

 private:
  Gguf() = default;
  GgufMetadata open_part(const std::filesystem::path& path);
  void open_split(const std::filesystem::path& path, uint64_t parts);
  void index_names();

  std::vector<GgufPart> parts_;
  std::vector<WatchedFile> files_;  // parallel to parts_
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, uint32_t> by_name_;  // keys point into tensors_
};

}  // namespace tandem::checkpoint
