// A weight file that stays open for as long as its checkpoint does: each read first makes sure that nobody has written
// to the file since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>

#include "base/file.h"

namespace tandem::checkpoint {

// Move-only; read_at may be called from several threads at once.
class WatchedFile {
 public:
  // Throws base::Error{kBadInput} where the file can't be opened.
  static WatchedFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t bytes() const { return bytes_; }               // when opened
  const timespec& modified() const { return modified_; }  // when it was last written, as it was when opened

  // Fills `out` from byte `offset`. Throws base::Error{kBadInput} where the file's size or time of writing is no longer
  // what it was when opened, or the range leaves the file.
  void read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  base::File file_;
  uint64_t bytes_ = 0;
  timespec modified_{};
};

}  // namespace tandem::checkpoint
