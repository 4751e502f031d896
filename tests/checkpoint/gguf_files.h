// Builds GGUF files for tests, byte by byte, so that every rule can be broken.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tandem::checkpoint {

// The bytes of numbers and strings, little-endian, one behind the other.
class GgufBytes {
 public:
  template <typename Number>
  GgufBytes& number(Number value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& u32(uint32_t value) { return number(value); }
  GgufBytes& u64(uint64_t value) { return number(value); }
  GgufBytes& string(const std::string& value) {
    u64(value.size());
    text += value;
    return *this;
  }

  std::string text;
};

// One file: what it says about itself can be changed apart from what it holds.
struct GgufFileBytes {
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  std::vector<std::string> pairs;
  std::vector<std::string> entries;
  std::string data;
  uint64_t alignment = 32;
  uint64_t more_pairs = 0;  // counted, but not there
  uint64_t more_tensors = 0;

  void pair(const std::string& key, uint32_t type, const std::string& value) {
    pairs.push_back(GgufBytes().string(key).u32(type).text + value);
  }
  void pair_u32(const std::string& key, uint32_t value) { pair(key, 4, GgufBytes().u32(value).text); }
  void pair_u16(const std::string& key, uint16_t value) { pair(key, 2, GgufBytes().number(value).text); }
  void pair_string(const std::string& key, const std::string& value) { pair(key, 8, GgufBytes().string(value).text); }

  // dims as in the file: the contiguous one first.
  void entry(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    GgufBytes bytes;
    bytes.string(name).u32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) bytes.u64(dim);
    entries.push_back(bytes.u32(type).u64(offset).text);
  }
  // A tensor whose data, `bytes` of `fill`, follow what is there.
  void tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t bytes, char fill) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    entry(name, dims, type, data.size());
    data.append(bytes, fill);
  }

  std::string head() const {
    GgufBytes bytes;
    bytes.u32(magic).u32(version).u64(entries.size() + more_tensors).u64(pairs.size() + more_pairs);
    for (const std::string& pair : pairs) bytes.text += pair;
    for (const std::string& entry : entries) bytes.text += entry;
    return bytes.text;
  }
  std::string file() const {
    std::string bytes = head();
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data;
  }
};

}  // namespace tandem::checkpoint
