// Files: opened, read and written by position, with every short read and every errno turned into an Error that names
// the path. Weights are read, never mapped: a mapped file that changes underneath kills the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tandem::base {

// An open file descriptor. Move-only. read_at and write_at may be called from several threads at once.
class File {
 public:
  static File open_read(const std::filesystem::path& path);
  // Opens for reading and writing; creates where absent, keeps what is there.
  static File open_write(const std::filesystem::path& path);

  // A file of this size in memory, without a name on any disk; `label` stands for its path in messages.
  static File in_memory(const std::string& label, uint64_t bytes);

  // The same file (not the one that may stand under its name by now), opened for reads past the page cache; nothing
  // where the file system refuses. Such reads need offset, length and address at multiples of the device's block,
  // for which 4096 serves.
  std::optional<File> reopen_direct() const;

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_; }
  uint64_t size() const;  // bytes, as it is now

  // Fills `out` from byte `offset`; an Error names the path, the range and the size where the file is too short.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  void write_at(uint64_t offset, std::span<const std::byte> data);
  void truncate(uint64_t bytes);
  void sync();
  // Tells the kernel that this range will not be needed again, so that a stream does not fill the page cache.
  void drop_cache(uint64_t offset, uint64_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// The whole file as text; refused where it holds more than max_bytes.
std::string read_text(const std::filesystem::path& path, uint64_t max_bytes);
// Writes beside `path` and renames, so that a reader sees the old text or the new one, never a part.
void write_text(const std::filesystem::path& path, std::string_view text);
// Bytes that an unprivileged process may still write on the file system that holds `path` (which need not exist yet).
uint64_t free_disk_bytes(const std::filesystem::path& path);

}  // namespace tandem::base
