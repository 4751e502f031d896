// Token ids from a file: a JSON array of integers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace tandem::app {

// Throws base::Error{kBadInput} that names the file, the place and the value, also for an empty array.
std::vector<int32_t> read_token_ids(const std::filesystem::path& file);

}  // namespace tandem::app
