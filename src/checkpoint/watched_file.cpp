#include "checkpoint/watched_file.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include "base/error.h"

namespace tandem::checkpoint {

namespace {

struct stat file_status(const base::File& file) {
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0) {
    base::bad_input(file.path().string(), "cannot be examined: {}", std::strerror(errno));
  }
  return status;
}

}  // namespace

WatchedFile WatchedFile::open(const std::filesystem::path& path) {
  WatchedFile opened;
  opened.file_ = base::File::open_read(path);
  const struct stat status = file_status(opened.file_);
  opened.bytes_ = static_cast<uint64_t>(status.st_size);
  opened.modified_ = status.st_mtim;
  return opened;
}

void WatchedFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  const struct stat now = file_status(file_);
  if (static_cast<uint64_t>(now.st_size) != bytes_) {
    base::bad_input(path().string(), "changed since it was opened: it held {} bytes and holds {} now", bytes_,
                    now.st_size);
  }
  if (now.st_mtim.tv_sec != modified_.tv_sec || now.st_mtim.tv_nsec != modified_.tv_nsec) {
    base::bad_input(path().string(), "was written to since it was opened");
  }
  file_.read_at(offset, out);
}

}  // namespace tandem::checkpoint
