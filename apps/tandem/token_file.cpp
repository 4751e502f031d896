#include "token_file.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tandem::app {

std::vector<int32_t> read_token_ids(const std::filesystem::path& file) {
  constexpr uint64_t kMostBytes = uint64_t{256} << 20;  // more ids than any context holds
  const std::string source = file.string();
  const base::Json json = base::parse_json(base::read_text(file, kMostBytes), source);
  if (!json.is_array()) base::bad_input(source, "is not a JSON array of token ids");
  if (json.empty()) base::bad_input(source, "holds no token ids");
  std::vector<int32_t> ids;
  ids.reserve(json.size());
  for (const auto& item : json) {
    if (!item.is_number_integer() || item < 0 || item > INT32_MAX) {
      base::bad_input(source, "element {} is {}, which is no token id", ids.size(), item.dump());
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace tandem::app
