// Input: u64 bytes that the file has beyond the input, so that large tensors can be described; then the file from its
// beginning: header length, header, data.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace {

using tandem::checkpoint::Tensor;

void require(bool condition) {
  if (!condition) std::abort();
}

// What every caller relies on: unique names, and data that the tensors tile exactly.
void check(const std::vector<Tensor>& tensors, uint64_t data_offset, uint64_t file_bytes) {
  std::unordered_set<std::string_view> names;
  uint64_t position = data_offset;
  for (const Tensor& tensor : tensors) {
    require(!tensor.name.empty() && names.insert(tensor.name).second);
    require(tensor.offset == position);
    unsigned __int128 bits = static_cast<unsigned>(tandem::checkpoint::dtype_bits(tensor.dtype));
    for (const int64_t extent : tensor.shape) {
      require(extent >= 0);
      if (extent == 0) bits = 0;
    }
    for (const int64_t extent : tensor.shape) bits *= static_cast<uint64_t>(extent);
    require(bits == static_cast<unsigned __int128>(tensor.bytes) * 8);
    position += tensor.bytes;
  }
  require(position == file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 16) return 0;
  uint64_t beyond = 0;
  std::memcpy(&beyond, data, 8);
  data += 8;
  size -= 8;
  const uint64_t file_bytes = size + (beyond >> 1);
  try {
    const auto prefix = std::as_bytes(std::span<const uint8_t, 8>(data, 8));
    const uint64_t length = tandem::checkpoint::safetensors_header_bytes(prefix, file_bytes, "file");
    require(length <= tandem::checkpoint::kMaxHeaderBytes && 8 + length <= file_bytes);
    if (length > size - 8) return 0;  // the header itself must be here
    const std::string_view header(reinterpret_cast<const char*>(data) + 8, length);
    check(tandem::checkpoint::parse_safetensors_header(header, file_bytes, 0, "file"), 8 + length, file_bytes);
  } catch (const tandem::base::Error& error) {
    require(error.kind() == tandem::base::ErrorKind::kBadInput);
    require(error.message().find('\n') == std::string::npos);
  }
  return 0;
}
