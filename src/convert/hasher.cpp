#include "convert/hasher.h"

#include <optional>
#include <span>
#include <stop_token>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace tandem::convert {

namespace {

constexpr size_t kBlock = size_t{4} << 20;

std::string hash_file(const std::filesystem::path& path, const std::stop_token& stop,
                      const std::function<void(uint64_t)>& progress) {
  const base::File file = base::File::open_read(path);
  const uint64_t bytes = file.size();
  base::Sha256 hash;
  std::vector<std::byte> buffer(std::min<uint64_t>(kBlock, bytes));
  for (uint64_t at = 0; at < bytes; at += buffer.size()) {
    if (stop.stop_requested()) throw base::Error(base::ErrorKind::kCancelled, path.string(), "hashing was given up");
    buffer.resize(std::min<uint64_t>(buffer.size(), bytes - at));
    file.read_at(at, buffer);
    hash.update(buffer);
    if (progress) progress(buffer.size());
  }
  return hash.hex();
}

}  // namespace

FileHasher::FileHasher(const std::vector<std::filesystem::path>& paths, const std::function<void(uint64_t)>& progress) {
  std::vector<std::packaged_task<std::string(const std::stop_token&)>> tasks;
  for (const std::filesystem::path& path : paths) {
    if (results_.contains(path)) continue;
    tasks.emplace_back([path, progress](const std::stop_token& stop) { return hash_file(path, stop, progress); });
    results_.emplace(path, tasks.back().get_future().share());
  }
  thread_ = std::jthread([tasks = std::move(tasks)](const std::stop_token& stop) mutable {
    for (auto& task : tasks) task(stop);
  });
}

bool FileHasher::ready(const std::filesystem::path& path) const {
  const auto found = results_.find(path);
  return found != results_.end() && found->second.valid() &&
         found->second.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::string FileHasher::get(const std::filesystem::path& path) {
  return results_.at(path).get();
}

std::string sha256_of(const std::string& text) {
  base::Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  return hash_file(path, {}, nullptr);
}

}  // namespace tandem::convert
