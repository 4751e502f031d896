// The directory of an artifact as text: tandem.json, one header line and then the directory (docs/artifact.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "artifact/object.h"
#include "base/json.h"

namespace tandem::artifact {

inline constexpr const char* kDirectoryFile = "tandem.json";
inline constexpr int kFormatVersion = 1;
// A directory of the largest published checkpoint is under 1 MiB.
inline constexpr uint64_t kLargestDirectory = uint64_t{256} << 20;

struct Directory {
  int format_version = kFormatVersion;
  std::vector<Object> objects;
  std::vector<uint64_t> part_bytes;
  base::Json provenance;
};

// An object as the directory lists it.
base::Json object_json(const Object& object);

// The whole of tandem.json.
std::string write_directory(const Directory& directory);

// Reads and checks tandem.json: header, length, checksum, and of every object its name (unique), encoding, bytes (what
// the shape asks for), alignment, place inside its part, and that no two overlap. Throws base::Error{kBadInput} whose
// source is `source`.
Directory parse_directory(std::string_view text, const std::string& source);

}  // namespace tandem::artifact
