// Checkpoint folders for tests: copies of the small checkpoints of the tree, and made-up ones.
#pragma once

#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "../artifact/small_artifact.h"
#include "../artifact/temp_folder.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "convert/convert.h"

namespace tandem::testing {

inline std::filesystem::path demo_flash() {
  return std::filesystem::path(TANDEM_SOURCE_DIR) / "models/demo-flash";
}
inline std::filesystem::path demo_dense() {
  return std::filesystem::path(TANDEM_SOURCE_DIR) / "models/demo-dense";
}
inline std::filesystem::path qsa_random() {
  return std::filesystem::path(TANDEM_GOLDEN_DIR) / "qsa-random";
}

inline void copy_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

// A date for all conversions of a test, so that they are equal byte for byte.
inline convert::Options quiet_options() {
  convert::Options options;
  options.quiet = true;
  options.date = "2026-11-29T00:00:00Z";
  return options;
}

// The files of a folder by name; none where it does not exist.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().filename().string()] = base::read_text(entry.path(), 1 << 28);
  }
  return files;
}

// A safetensors file with tensors of our choice. Their bytes count up from a number that depends on the name.
class SafetensorsFile {
 public:
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape, std::string data) {
    header_ +=
        fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header_.empty() ? "" : ",",
                    name, dtype, fmt::join(shape, ","), data_.size(), data_.size() + data.size());
    data_ += data;
  }
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    int64_t bytes = dtype == "F32" ? 4 : dtype == "BF16" ? 2 : 1;
    for (const int64_t dimension : shape) bytes *= dimension;
    std::string data(static_cast<size_t>(bytes), '\0');
    // Below 0x7f, so that they are valid codes and block scales too. The highest byte of a float makes it a multiplier.
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<char>(dtype == "F32" && i % 4 == 3 ? 0x38 : (i * 31 + name.size() * 7 + i / 97) % 100 + 1);
    }
    add(name, dtype, shape, std::move(data));
  }
  void write(const std::filesystem::path& path) const {
    const std::string header = "{" + header_ + "}";
    const uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    base::write_text(path, bytes + header + data_);
  }

 private:
  std::string header_, data_;
};

// A folder with config.json and model.safetensors.
inline void write_checkpoint(const std::filesystem::path& folder, const SafetensorsFile& file) {
  std::filesystem::create_directories(folder);
  base::write_text(folder / "config.json", kConfig);
  file.write(folder / "model.safetensors");
}

// Writes `data` over a tensor's bytes from `offset` on.
inline void overwrite_tensor(const std::filesystem::path& folder, const std::string& name, uint64_t offset,
                             std::string_view data) {
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(folder);
  const checkpoint::Tensor& tensor = checkpoint.at(name);
  base::File::open_write(checkpoint.shards()[tensor.shard].path)
      .write_at(tensor.offset + offset, std::as_bytes(std::span(data)));
}

}  // namespace tandem::testing
