// A synthetic model as the folder of a published checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "synth/model.h"

namespace tandem::synth {

struct WriteOptions {
  uint64_t shard_bytes = uint64_t{5} << 30;  // about; a tensor is never cut. At least two shards are made
  bool force = false;                        // replace a folder that is already there
  bool quiet = false;                        // show no progress
  // Asked after every piece: true ends with base::Error{kCancelled}.
  std::function<bool()> stop;
};

struct WriteResult {
  std::filesystem::path folder;
  size_t tensors = 0;
  size_t shards = 0;
  uint64_t bytes = 0;  // of all tensors
  double seconds = 0;
};

// Writes config.json, tokenizer.json, generation_config.json, the shards and their index to OUT.partial, which becomes
// `out` by a rename at the end; whatever ends it before, that folder is removed. Holds one piece of a tensor at a time
// in memory, and the list of tensors. Throws base::Error: kBadInput for an `out` that is in the way, kUnavailable, with
// the figures, where the disk lacks room for all of it, before anything is written; kCancelled.
WriteResult write_checkpoint(const Model& model, const std::filesystem::path& out, const WriteOptions& options);

}  // namespace tandem::synth
