// Proves what an artifact holds: its checksums, and against the checkpoint that it was made from, every tensor bit for
// bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "artifact/artifact.h"
#include "convert/source.h"

namespace tandem::convert {

// The first byte of a tensor or text that differs.
struct Difference {
  std::string name;
  uint64_t byte = 0;  // from the start of the tensor's data
  uint8_t expected = 0, found = 0;
};

struct Verification {
  size_t objects = 0;  // read in full
  uint64_t bytes = 0;
  std::vector<std::string> faults;  // one line each; empty where everything holds
  // against a checkpoint
  size_t tensors = 0;  // compared in full
  uint64_t tensor_bytes = 0;
  size_t reencoded = 0;  // further tensors, whose re-encoding was made again and compared
  size_t texts = 0;
  size_t differing = 0;  // tensors and texts
  std::optional<Difference> first_difference;

  bool holds() const { return faults.empty(); }
};

// Reads every object, compares its checksum, and checks that the padding behind it is zero. With `source` also inverts
// the layout and compares the recovered tensors with the checkpoint's bytes: each object's encoding and shape, every
// byte of every tensor, every text, and that there is nothing on either side that the other lacks. What the artifact's
// provenance says was re-encoded is made again from the source and compared. Throws base::Error where either cannot be
// read.
Verification verify(const artifact::Artifact& artifact, const std::optional<SourceFolders>& source, bool quiet);

}  // namespace tandem::convert
