#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace tandem::base {

namespace {

constexpr size_t kLargestCall = size_t{1} << 30;  // Linux transfers at most 2 GiB - 4 KiB in one call

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  const ErrorKind kind = error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENOMEM
                             ? ErrorKind::kUnavailable
                             : ErrorKind::kBadInput;
  throw Error(kind, path.string(), fmt::format("{}: {}", what, std::strerror(error)));
}

int open_or_fail(const std::filesystem::path& path, int flags) {
  // Without O_NONBLOCK a named pipe in a folder of weights would hang the open; regular files ignore it.
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) fail(path, "cannot open");
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    bad_input(path.string(), "is not a regular file");
  }
  return fd;
}

}  // namespace

File File::open_read(const std::filesystem::path& path) {
  File file;
  file.fd_ = open_or_fail(path, O_RDONLY);
  file.path_ = path;
  return file;
}

File File::open_write(const std::filesystem::path& path) {
  File file;
  file.fd_ = open_or_fail(path, O_RDWR | O_CREAT);
  file.path_ = path;
  return file;
}

File File::in_memory(const std::string& label, uint64_t bytes) {
  File file;
  file.path_ = label;
  file.fd_ = ::memfd_create("tandem", MFD_CLOEXEC);
  if (file.fd_ < 0) fail(file.path_, "cannot make a file in memory");
  file.truncate(bytes);
  return file;
}

std::optional<File> File::reopen_direct() const {
  File file;
  file.fd_ = ::open(fmt::format("/proc/self/fd/{}", fd_).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file.fd_ < 0) return std::nullopt;
  file.path_ = path_;
  // Some file systems accept the flag and refuse the reads.
  alignas(4096) std::byte block[4096];
  if (::pread(file.fd_, block, sizeof block, 0) < 0) return std::nullopt;
  return file;
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    path_ = std::move(other.path_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

uint64_t File::size() const {
  struct stat status{};
  if (::fstat(fd_, &status) != 0) fail(path_, "cannot stat");
  return static_cast<uint64_t>(status.st_size);
}

void File::read_at(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd_, out.data() + done, std::min(out.size() - done, kLargestCall), static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      fail(path_, "cannot read");
    }
    if (got == 0) {
      bad_input(path_.string(), "ends at byte {}, but bytes {} to {} were to be read", offset + done, offset,
                offset + out.size());
    }
    done += static_cast<size_t>(got);
  }
}

void File::write_at(uint64_t offset, std::span<const std::byte> data) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t put = ::pwrite(fd_, data.data() + done, std::min(data.size() - done, kLargestCall),
                                 static_cast<off_t>(offset + done));
    if (put < 0) {
      if (errno == EINTR) continue;
      fail(path_, "cannot write");
    }
    done += static_cast<size_t>(put);
  }
}

void File::truncate(uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail(path_, "cannot set the size");
}

void File::sync() {
  if (::fsync(fd_) != 0) fail(path_, "cannot flush");
}

void File::drop_cache(uint64_t offset, uint64_t bytes) const {
  // Advice only: a file system that ignores it costs page cache, not correctness.
  (void)::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

std::string read_text(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file = File::open_read(path);
  const uint64_t bytes = file.size();
  if (bytes > max_bytes) {
    bad_input(path.string(), "holds {}, more than the {} allowed here", format_bytes(bytes), format_bytes(max_bytes));
  }
  std::string text(bytes, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path partial = path;
  partial += fmt::format(".{}.partial", ::getpid());
  try {
    File file = File::open_write(partial);
    file.truncate(0);
    file.write_at(0, std::as_bytes(std::span(text)));
    file.sync();
    std::filesystem::rename(partial, path);
  } catch (const std::filesystem::filesystem_error& error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    bad_input(path.string(), "cannot be replaced: {}", error.code().message());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

uint64_t free_disk_bytes(const std::filesystem::path& path) {
  std::filesystem::path probe = std::filesystem::absolute(path);
  while (!std::filesystem::exists(probe) && probe.has_relative_path()) probe = probe.parent_path();
  struct statvfs status{};
  if (::statvfs(probe.c_str(), &status) != 0) fail(probe, "cannot read the free space");
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace tandem::base
