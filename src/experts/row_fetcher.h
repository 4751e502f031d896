// Reads the rows that a RowStore wants from one file, with many requests in flight, in threads of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"
#include "experts/row_store.h"

namespace tandem::experts {

// Where the rows of a table stand: as many whole rows as fit to each block of 4096 bytes.
struct RowPlace {
  const base::File* file = nullptr;  // outlives the fetcher
  uint64_t offset = 0;               // of row 0, a multiple of 4096
  int64_t row_bytes = 0;             // at most 4096

  uint64_t of(int64_t row) const {
    const auto per_block = 4096 / static_cast<uint64_t>(row_bytes);
    const auto index = static_cast<uint64_t>(row);
    return offset + index / per_block * 4096 + index % per_block * static_cast<uint64_t>(row_bytes);
  }
};

enum class NgramReader : uint8_t {
  kAuto,   // io_uring where the kernel lets the process have it, else threads
  kUring,  // io_uring or an error
  kPread,  // threads that read one row each
};

struct FetcherOptions {
  NgramReader reader = NgramReader::kAuto;
  bool direct = true;  // past the page cache, where the file system can
  int depth = 128;     // requests in flight; of threads at most kMostThreads
};

class RowFetcher {
 public:
  static constexpr int kMostThreads = 16;

  // Starts to read. The store must outlive the fetcher. Throws base::Error{kUnavailable} where io_uring is asked for
  // and cannot be had.
  static std::unique_ptr<RowFetcher> start(RowStore& store, const RowPlace& place, const FetcherOptions& options);
  // Stops the store, ends what is in flight and joins the threads.
  virtual ~RowFetcher() = default;

  virtual std::string description() const = 0;  // "io_uring, direct, 128 in flight"
};

// Fills `out` (one row) through the page cache; the message of the error where that fails, else "".
std::string read_plainly(const RowPlace& place, int64_t row, std::span<std::byte> out);

// nullptr where the kernel refuses io_uring (containers often do); `reason` then says why.
std::unique_ptr<RowFetcher> start_uring(RowStore& store, const RowPlace& place, const FetcherOptions& options,
                                        std::string& reason);
std::unique_ptr<RowFetcher> start_pread(RowStore& store, const RowPlace& place, const FetcherOptions& options);

}  // namespace tandem::experts
