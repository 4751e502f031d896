// Turns a published checkpoint into an artifact: streaming, resumable, every byte accounted for before the first is
// written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "convert/recipe.h"
#include "convert/source.h"

namespace tandem::convert {

struct Options {
  uint64_t part_bytes = uint64_t{4} << 30;  // largest size of a part that holds more than one object
  bool consume = false;                     // delete source shards as soon as nothing more is needed from them
  bool force = false;                       // replace an artifact that is already there
  bool quiet = false;                       // show no progress
  std::string source_id, source_revision;   // override what the source's folder tells
  Choices choices;                          // what is re-encoded
  std::string date;                         // of the conversion, ISO 8601; empty: now, or SOURCE_DATE_EPOCH

  // Asked after every chunk with the number of complete objects: true ends the conversion with
  // base::Error{kCancelled}; what is done is kept.
  std::function<bool(size_t objects)> stop;
  // Bytes free on the file system of a path; empty: base::free_disk_bytes.
  std::function<uint64_t(const std::filesystem::path&)> free_bytes;
};

struct Result {
  std::filesystem::path artifact;
  std::string model;  // one line: family, formats, counts
  size_t objects = 0;
  size_t parts = 0;
  uint64_t bytes = 0;          // of all parts
  size_t resumed_objects = 0;  // of these, found complete from an earlier run
  size_t consumed_shards = 0;
  double seconds = 0;
  std::vector<std::string> warnings;
};

// Converts a checkpoint to the artifact `out` (convert/recipe.h). Only shards of `source.base` are ever consumed.
//
// Works in `OUT.partial`, which becomes `out` by a rename at the very end. After an interruption (a signal, a crash, a
// full disk) that folder stays, and the same call goes on where it ended, with the same bytes as a result; after an
// error in the source it is removed, unless shards were consumed already. Throws base::Error: kBadInput for a source
// that cannot be converted or an `out` that is in the way, kUnavailable with the figures where the disk is too small
// or a write fails, kCancelled.
Result convert(const SourceFolders& source, const std::filesystem::path& out, const Options& options);

}  // namespace tandem::convert
