// Input: u64 bytes that the file has beyond the input, so that large tensors can be described; then the file from its
// beginning.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/gguf_header.h"

namespace {

using tandem::checkpoint::GgufHeader;
using tandem::checkpoint::GgufMetadata;
using tandem::checkpoint::GgufTensor;
using tandem::checkpoint::GgufValue;

void require(bool condition) {
  if (!condition) std::abort();
}

// What every caller relies on: unique names, whole blocks, and data in order inside the file.
void check_tensors(const GgufHeader& header, uint64_t file_bytes) {
  std::unordered_set<std::string_view> names;
  uint64_t position = header.data_offset;
  for (const GgufTensor& tensor : header.tensors) {
    require(!tensor.name.empty() && names.insert(tensor.name).second);
    require(tensor.offset >= position && (tensor.offset - header.data_offset) % header.alignment == 0);
    const auto& traits = tandem::numeric::ggml_type(tensor.type);
    require(!tensor.shape.empty() && tensor.shape.size() <= 4 && tensor.shape.back() % traits.block_elements == 0);
    auto bytes = static_cast<unsigned __int128>(traits.block_bytes);
    bool first = true;
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent, first = false) {
      require(*extent >= 1);
      bytes *= static_cast<uint64_t>(first ? *extent / traits.block_elements : *extent);
    }
    require(bytes == tensor.bytes);
    position = tensor.offset + tensor.bytes;
    require(position <= file_bytes);
    require(describe(tensor).find('\n') == std::string::npos);
  }
}

void check_metadata(const GgufMetadata& metadata) {
  for (const auto& [key, value] : metadata.pairs()) {
    require(metadata.find(key) == &value);
    require(describe(value).size() < 200 && describe(value).find('\n') == std::string::npos);
    const bool texts = value.type == tandem::checkpoint::GgufType::kString;
    require(value.strings.size() == (texts ? value.count : 0));
    require(value.numbers.size() == value.count * tandem::checkpoint::gguf_type_bytes(value.type));
  }
}

// Every accessor gives a value or says in one line why not.
void read_all(const GgufMetadata& metadata) {
  for (const auto& pair : metadata.pairs()) {
    const auto attempt = [&](auto read) {
      try {
        read();
      } catch (const tandem::base::Error& error) {
        require(error.kind() == tandem::base::ErrorKind::kBadInput);
        require(error.message().find('\n') == std::string::npos);
      }
    };
    attempt([&] { (void)metadata.unsigned_integer(pair.first); });
    attempt([&] { (void)metadata.integer(pair.first); });
    attempt([&] { (void)metadata.number(pair.first); });
    attempt([&] { (void)metadata.boolean(pair.first); });
    attempt([&] { (void)metadata.string(pair.first); });
    attempt([&] { (void)metadata.integers(pair.first); });
    attempt([&] { (void)metadata.numbers(pair.first); });
    attempt([&] { (void)metadata.strings(pair.first); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t beyond = 0;
  std::memcpy(&beyond, data, 8);
  data += 8;
  size -= 8;
  const uint64_t file_bytes = size + (beyond >> 1);
  const auto read_at = [&](uint64_t offset, std::span<std::byte> out) {
    require(out.size() <= file_bytes && offset <= file_bytes - out.size());
    // The head itself must be in the input.
    if (offset >= size) tandem::base::bad_input("file", "ends");
    const size_t known = std::min<uint64_t>(out.size(), size - offset);
    std::memcpy(out.data(), data + offset, known);
    std::fill(out.begin() + static_cast<ptrdiff_t>(known), out.end(), std::byte{0});
  };
  try {
    const GgufHeader header = tandem::checkpoint::parse_gguf_header(read_at, file_bytes, 0, "file");
    check_tensors(header, file_bytes);
    check_metadata(header.metadata);
    read_all(header.metadata);
  } catch (const tandem::base::Error& error) {
    require(error.kind() == tandem::base::ErrorKind::kBadInput);
    require(error.message().find('\n') == std::string::npos);
  }
  return 0;
}
