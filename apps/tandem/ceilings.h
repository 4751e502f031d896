// What the machine can do at best, measured the plain way, to hold other figures against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/pool.h"

namespace tandem::app {

// One ceiling: in every round `amount` bytes or operations took seconds[round].
struct Ceiling {
  uint64_t amount = 0;
  std::vector<double> seconds;
};

// What the kernel says can be had without swapping.
uint64_t available_memory_bytes();

// Memory is measured over this many bytes: more than any cache holds, at most a quarter of what is available.
uint64_t ceiling_buffer_bytes();

// Reads a buffer once, in all threads; or memory that is there already, from a multiple of 64 bytes on.
Ceiling measure_read(base::WorkerPool& pool, int rounds);
Ceiling measure_read(base::WorkerPool& pool, std::span<const std::byte> memory, int rounds);
// Copies one half of the buffer to the other; `amount` counts bytes read and bytes written.
Ceiling measure_copy(base::WorkerPool& pool, int rounds);
// FP32 multiply-adds of a matrix product whose operands stay in the first cache; `amount` counts two operations each.
Ceiling measure_matmul(base::WorkerPool& pool, int rounds);
// Reads a file's beginning, at most 256 MiB, after asking the kernel to drop it from the page cache.
Ceiling measure_disk(const std::filesystem::path& file, int rounds);

}  // namespace tandem::app
