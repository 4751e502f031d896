#include "artifact/writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "artifact/directory.h"
#include "base/error.h"
#include "base/units.h"

namespace tandem::artifact {

namespace {

namespace fs = std::filesystem;

// After so many bytes the parts are flushed and leave the page cache, so that an interruption costs little and the
// stream does not push everything else out of memory.
constexpr uint64_t kSyncInterval = uint64_t{256} << 20;
constexpr size_t kReadBlock = size_t{8} << 20;

// A failure to write is the machine's (disk full, quota, I/O error), whatever errno says.
template <typename Action>
void writing(Action action) {
  try {
    action();
  } catch (const base::Error& error) {
    throw base::Error(base::ErrorKind::kUnavailable, error.source(), error.message());
  } catch (const fs::filesystem_error& error) {
    base::unavailable(error.path1().string(), "{}", error.code().message());
  }
}

// Renames `partial` to `out`; an artifact that stands there goes only once the new one is in its place.
void move_into_place(const fs::path& partial, const fs::path& out) {
  fs::path old = partial;
  old += ".replaced";
  const bool replace = fs::exists(out);
  if (replace) {
    fs::remove_all(old);
    fs::rename(out, old);
  }
  std::error_code error;
  fs::rename(partial, out, error);
  if (error) {
    if (replace) fs::rename(old, out);
    throw fs::filesystem_error("rename", out, error);
  }
  sync_folder(fs::absolute(out).parent_path());
  fs::remove_all(old);
}

}  // namespace

fs::path partial_folder(const fs::path& out) {
  fs::path folder = out.has_filename() ? out : out.parent_path();
  folder += ".partial";
  return folder;
}

void sync_folder(const fs::path& folder) {
  const fs::path name = folder.empty() ? fs::path(".") : folder;
  const int fd = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some file systems cannot flush a folder (EINVAL): then its names are as durable as they can be made.
  const bool failed = fd < 0 || (::fsync(fd) != 0 && errno != EINVAL);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (failed) base::unavailable(name.string(), "cannot flush the folder: {}", std::strerror(error));
}

Writer::Writer(fs::path partial, std::vector<Object> objects, Journal journal)
    : partial_(std::move(partial)),
      objects_(std::move(objects)),
      part_bytes_(part_sizes(objects_)),
      journal_(std::move(journal)) {
  resume();
  settle_parts();
}

// Entries are in the order of the objects. The last "synced" tells how many of them are on disk for certain; what comes
// after these may not have reached the disk before the machine went down, so it is read back.
void Writer::resume() {
  const std::string source = partial_.string();
  size_t on_disk = 0;
  for (const base::Json& entry : journal_.entries()) {
    if (entry.contains("synced")) on_disk = static_cast<size_t>(base::json_int(entry, "synced", source));
  }
  for (const base::Json& entry : journal_.entries()) {
    if (!entry.contains("object")) continue;
    const auto index = static_cast<size_t>(base::json_int(entry, "object", source));
    if (index < completed_) continue;  // entered again after a failed read-back
    if (index != completed_ || index >= objects_.size()) break;
    objects_[index].xxh3_128 = base::json_string(entry, "xxh3_128", source);
    if (index >= on_disk && !matches(objects_[index])) {
      objects_[index].xxh3_128.clear();
      break;
    }
    ++completed_;
  }
}

bool Writer::matches(const Object& object) const {
  try {
    if (object.bytes == 0) return true;
    const base::File file = base::File::open_read(part_path(object.part));
    base::Xxh3 hash;
    std::vector<std::byte> buffer(std::min<uint64_t>(kReadBlock, object.bytes));
    for (uint64_t at = 0; at < object.bytes; at += buffer.size()) {
      buffer.resize(std::min<uint64_t>(buffer.size(), object.bytes - at));
      file.read_at(object.offset + at, buffer);
      hash.update(buffer);
    }
    return hash.hex() == object.xxh3_128;
  } catch (const base::Error&) {
    return false;
  }
}

// Cuts what an interrupted write left beyond the last complete object, and has the disk keep what was read back.
void Writer::settle_parts() {
  if (journal_.entries().empty() || !fs::exists(part_path(0))) return;
  writing([&] {
    std::vector<uint64_t> ends(part_bytes_.size());
    for (size_t i = 0; i < completed_; ++i) {
      uint64_t& end = ends[objects_[i].part];
      end = std::max(end, objects_[i].offset + objects_[i].bytes);
    }
    for (uint32_t part = 0; part < ends.size(); ++part) {
      if (!fs::exists(part_path(part))) continue;
      base::File file = base::File::open_write(part_path(part));
      file.truncate(ends[part]);
      file.sync();
    }
    enter_synced();
  });
}

base::File& Writer::part_file(uint32_t part) {
  if (open_part_ != part) {
    sync();
    part_ = base::File::open_write(part_path(part));
    open_part_ = part;
    sync_folder(partial_);
  }
  return part_;
}

void Writer::append(std::span<const std::byte> data) {
  if (completed_ >= objects_.size() || data.size() > objects_[completed_].bytes - written_) {
    base::internal_error(partial_.string(), "more bytes were written than the objects have");
  }
  const Object& object = objects_[completed_];
  writing([&] { part_file(object.part).write_at(object.offset + written_, data); });
  hash_.update(data);
  written_ += data.size();
  unsynced_ += data.size();
  if (written_ == object.bytes) complete();
}

void Writer::skip_empty() {
  if (completed_ >= objects_.size() || objects_[completed_].bytes != 0) {
    base::internal_error(partial_.string(), "the next object is not empty");
  }
  writing([&] { part_file(objects_[completed_].part); });
  complete();
}

void Writer::complete() {
  Object& object = objects_[completed_];
  object.xxh3_128 = hash_.hex();
  hash_ = base::Xxh3();
  written_ = 0;
  base::Json entry;
  entry["object"] = completed_;
  entry["xxh3_128"] = object.xxh3_128;
  writing([&] { journal_.append(std::move(entry), false); });
  ++completed_;
  if (unsynced_ >= kSyncInterval) sync();
}

void Writer::sync() {
  if (!open_part_) return;
  writing([&] {
    part_.sync();
    part_.drop_cache(0, part_.size());
    enter_synced();
  });
  unsynced_ = 0;
}

void Writer::enter_synced() {
  base::Json entry;
  entry["synced"] = completed_;
  journal_.append(std::move(entry), true);
}

void Writer::finish(const fs::path& out, base::Json provenance) {
  if (completed_ != objects_.size()) {
    base::internal_error(partial_.string(), "{} of {} objects are written", completed_, objects_.size());
  }
  sync();
  Directory directory{.objects = objects_, .part_bytes = part_bytes_, .provenance = std::move(provenance)};
  writing([&] {
    for (uint32_t part = 0; part < part_bytes_.size(); ++part) {
      base::File file = base::File::open_write(part_path(part));
      if (file.size() == part_bytes_[part]) continue;
      file.truncate(part_bytes_[part]);
      file.sync();
    }
    base::write_text(partial_ / kDirectoryFile, write_directory(directory));
    sync_folder(partial_);
    move_into_place(partial_, out);
    remove_leftovers(out);
  });
}

void remove_leftovers(const fs::path& out) {
  // The journal goes last: as long as it is there, the clean-up is known to be unfinished.
  fs::remove_all(out / "source");
  fs::remove_all(out / "consumed");
  fs::remove(out / kJournalFile);
}

}  // namespace tandem::artifact
