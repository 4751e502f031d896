// What a disk can do at best with random reads of one block, measured the plain way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"

namespace tandem::app {

// Reads blocks of 4096 bytes at random places of a file, past the page cache where the file system can, always `depth`
// of them in flight: one ring of io_uring, or where the kernel refuses it `depth` threads, at most 64.
class RandomReads {
 public:
  // `file` outlives the object and holds at least one block.
  explicit RandomReads(const base::File& file);

  // Seconds that `count` reads take.
  double run(uint64_t count, int depth);
  std::string description() const;  // "io_uring, direct"

 private:
  uint64_t next_offset();
  double run_ring(uint64_t count, int depth);
  double run_threads(uint64_t count, int depth);

  const base::File& plain_;
  std::optional<base::File> direct_;
  bool ring_ = true;
  uint64_t blocks_;
  uint64_t state_ = 1;
};

}  // namespace tandem::app
