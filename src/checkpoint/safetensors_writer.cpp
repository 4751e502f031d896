#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <system_error>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"

namespace tandem::checkpoint {
namespace {

// The length of the header in 8 bytes, and the header, padded with blanks so that the data begins at a multiple of 8.
std::string make_header(std::span<const TensorSpec> tensors, const std::map<std::string, std::string>& metadata) {
  // Joined by hand: an ordered object looks through all its keys for every new one, and there are tens of thousands.
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + base::Json(metadata).dump() + ",";
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const uint64_t end = offset + tensor.bytes();
    const base::Json entry = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    text += base::Json(tensor.name).dump() + ":" + entry.dump() + ",";
    offset = end;
  }
  if (text.back() == ',') text.pop_back();
  text += "}";
  text.resize(base::round_up(text.size(), 8), ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

std::vector<TensorSpec> specs_of(std::span<const TensorData> tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorData& tensor : tensors) {
    const TensorSpec& spec = specs.emplace_back(TensorSpec{tensor.name, tensor.dtype, tensor.shape});
    if (tensor.bytes.size() != spec.bytes()) {
      base::internal_error("safetensors", "'{}' has {} bytes, its shape asks for {}", tensor.name, tensor.bytes.size(),
                           spec.bytes());
    }
  }
  return specs;
}

void write_all(const std::filesystem::path& path, const std::string& header, std::span<const TensorData> tensors) {
  base::File file = base::File::open_write(path);
  file.truncate(0);
  file.write_at(0, std::as_bytes(std::span(header)));
  uint64_t offset = header.size();
  for (const auto& tensor : tensors) {
    file.write_at(offset, tensor.bytes);
    offset += tensor.bytes.size();
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = make_header(specs_of(tensors), metadata);
  uint64_t bytes = header.size();
  for (const auto& tensor : tensors) bytes += tensor.bytes.size();
  const uint64_t room = base::free_disk_bytes(path);
  if (bytes > room) {
    base::unavailable(path.string(), "needs {}, the disk has {} left", base::format_bytes(bytes),
                      base::format_bytes(room));
  }
  std::filesystem::path partial = path;
  partial += fmt::format(".{}.partial", getpid());
  std::error_code ignored;
  try {
    write_all(partial, header, tensors);
    std::filesystem::rename(partial, path);
  } catch (const std::filesystem::filesystem_error& error) {
    std::filesystem::remove(partial, ignored);
    base::bad_input(path.string(), "{}", error.code().message());
  } catch (...) {
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

uint64_t TensorSpec::bytes() const {
  auto bits = static_cast<uint64_t>(dtype_bits(dtype));
  for (const int64_t dimension : shape) bits *= static_cast<uint64_t>(dimension);
  return bits / 8;
}

uint64_t stream_safetensors(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                            const TensorFill& fill, const std::map<std::string, std::string>& metadata) {
  base::File file = base::File::open_write(path);
  file.truncate(0);
  const std::string header = make_header(tensors, metadata);
  file.write_at(0, std::as_bytes(std::span(header)));
  uint64_t at = header.size();
  std::vector<std::byte> piece;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].bytes();
    for (uint64_t offset = 0; offset < bytes; offset += piece.size()) {
      piece.resize(std::min(bytes - offset, kPieceBytes));
      fill(i, offset, piece);
      file.write_at(at + offset, piece);
    }
    at += bytes;
  }
  file.sync();
  return at;
}

}  // namespace tandem::checkpoint
