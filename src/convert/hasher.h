// SHA-256 of files, one after the other in a thread of its own: reading tensors in the order of the artifact and
// hashing files from front to back are two streams over the same data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace tandem::convert {

class FileHasher {
 public:
  // Starts with the first path; one that stands twice is read once. `progress` is called from the thread with every
  // number of bytes read.
  FileHasher(const std::vector<std::filesystem::path>& paths, const std::function<void(uint64_t bytes)>& progress);
  // Gives up what is not hashed yet.
  ~FileHasher() = default;

  // Whether get() would return at once.
  bool ready(const std::filesystem::path& path) const;
  // Waits for the file's checksum, 64 hexadecimal digits; throws what reading it threw.
  std::string get(const std::filesystem::path& path);

 private:
  std::map<std::filesystem::path, std::shared_future<std::string>> results_;
  std::jthread thread_;  // last: it ends before the rest goes
};

// Of one small file or text at once.
std::string sha256_of(const std::string& text);
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace tandem::convert
