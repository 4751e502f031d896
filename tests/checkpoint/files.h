// Builds safetensors files and folders for tests, byte by byte, so that every rule can be broken.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace tandem::checkpoint {

// A folder of its own below the temporary folder, removed at the end.
class TemporaryFolder : public testing::Test {
 protected:
  TemporaryFolder() { std::filesystem::create_directories(folder_); }
  ~TemporaryFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() /
      fmt::format("tandem_checkpoint_{}_{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
};

// The bytes of a file: header length, header, data.
inline std::string file_bytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

inline std::string entry(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                         uint64_t begin, uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype, fmt::join(shape, ","),
                     begin, end);
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  base::File file = base::File::open_write(path);
  file.truncate(0);
  file.write_at(0, std::as_bytes(std::span(bytes)));
}

// What the error says, or "" where there is none. It must be bad input in one line.
template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace tandem::checkpoint
