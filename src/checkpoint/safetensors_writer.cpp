#include "checkpoint/safetensors_writer.h"

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

uint64_t expected_bytes(const TensorData& tensor) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(tensor.dtype));
  for (const int64_t dimension : tensor.shape) bits *= static_cast<uint64_t>(dimension);
  return bits / 8;
}

// The length of the header in 8 bytes, and the header, padded with blanks so that the data begins at a multiple of 8.
std::string make_header(std::span<const TensorData> tensors, const std::map<std::string, std::string>& metadata) {
  base::Json header = base::Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    if (tensor.bytes.size() != expected_bytes(tensor)) {
      base::internal_error("safetensors", "'{}' has {} bytes, its shape asks for {}", tensor.name, tensor.bytes.size(),
                           expected_bytes(tensor));
    }
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize(base::round_up(text.size(), 8), ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
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
  const std::string header = make_header(tensors, metadata);
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

}  // namespace tandem::checkpoint
