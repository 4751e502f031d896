// Writes an artifact object by object into a folder `OUT.partial`, so that it can be interrupted at any point and
// continued, and renames it to OUT when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "artifact/journal.h"
#include "artifact/object.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace tandem::artifact {

// Not thread-safe. Every failure to write is a base::Error{kUnavailable} that names the file.
class Writer {
 public:
  // `partial` is the folder to write into, `objects` what will be written, in order and placed (place_objects), and
  // `journal` that of the folder. Objects that the journal enters and that are there are kept, so its other entries
  // must have told the caller that it is a journal of the same objects.
  Writer(std::filesystem::path partial, std::vector<Object> objects, Journal journal);

  const std::filesystem::path& partial() const { return partial_; }
  const std::vector<Object>& objects() const { return objects_; }
  // Objects [0, completed()) are in the parts and have their checksums.
  size_t completed() const { return completed_; }

  // The next object's bytes, in order; at its last byte it is complete and entered in the journal.
  void append(std::span<const std::byte> data);
  // An object without bytes is completed by this alone.
  void skip_empty();
  // Waits until the disk has every completed object.
  void sync();

  // The journal, for entries of the caller's own; their first key must not be "object" or "synced".
  Journal& journal() { return journal_; }

  // Writes the directory, waits for the disk, and renames the folder to `out`, in place of an artifact that is already
  // there. Requires completed() == objects().size().
  void finish(const std::filesystem::path& out, base::Json provenance);

 private:
  void resume();
  bool matches(const Object& object) const;
  void complete();
  base::File& part_file(uint32_t part);
  void settle_parts();
  void enter_synced();
  std::filesystem::path part_path(uint32_t part) const { return partial_ / part_name(part); }

  std::filesystem::path partial_;
  std::vector<Object> objects_;
  std::vector<uint64_t> part_bytes_;
  Journal journal_;
  size_t completed_ = 0;
  uint64_t written_ = 0;  // of the object that is being written
  uint64_t unsynced_ = 0;
  base::Xxh3 hash_;
  std::optional<uint32_t> open_part_;
  base::File part_;
};

// Removes what a conversion left beside the artifact when it ended between its last rename and its last clean-up.
void remove_leftovers(const std::filesystem::path& out);

// The folder that a conversion to `out` writes into: beside it, named `OUT.partial`.
std::filesystem::path partial_folder(const std::filesystem::path& out);

// Makes names in `folder` durable: what was created, renamed or removed there.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tandem::artifact
