// Input: the text of model.safetensors.index.json.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const tandem::checkpoint::SafetensorsIndex& index) {
  require(std::is_sorted(index.files.begin(), index.files.end()));
  require(std::adjacent_find(index.files.begin(), index.files.end()) == index.files.end());
  for (const std::string& file : index.files) {
    require(file.ends_with(".safetensors") && file.find('/') == std::string::npos &&
            file.find('\0') == std::string::npos);
  }
  std::unordered_set<std::string_view> names;
  for (const auto& entry : index.entries) {
    require(entry.file < index.files.size());
    require(!entry.tensor.empty() && names.insert(entry.tensor).second);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check(tandem::checkpoint::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "index"));
  } catch (const tandem::base::Error& error) {
    require(error.kind() == tandem::base::ErrorKind::kBadInput);
    require(error.message().find('\n') == std::string::npos);
  }
  return 0;
}
