// The rows of a table between those who need them and those who read them from disk: the cache, the list of rows to
// be read, and who waits for what. All functions may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "experts/row_cache.h"

namespace tandem::experts {

struct NgramCounters {
  uint64_t hits = 0;        // rows that were in memory when a step asked for them
  uint64_t late = 0;        // rows that were on their way
  uint64_t misses = 0;      // rows that nobody had asked for before
  uint64_t prefetched = 0;  // rows whose reading a prefetch started
  uint64_t reads = 0;       // rows read from disk
  uint64_t waits = 0;       // times that a step waited until rows were there
  uint64_t wait_ns = 0;     // for so long altogether

  NgramCounters& operator+=(const NgramCounters& other);
};

class RowStore {
 public:
  RowStore(int64_t rows, int64_t row_bytes, uint64_t cache_bytes);

  // Asks for rows that will be needed soon; never waits for the disk. What is more than half of the cache holds is left
  // out, and so is what finds every slot taken by rows in use or on their way.
  void prefetch(std::span<const int64_t> ids);

  // Calls `use(first, rows)` for successive runs of ids, rows[i] the bytes of ids[first + i], in the caller's thread.
  // Throws base::Error{kBadInput} with the fetcher's message for a row that could not be read. REQUIRES: ids in range.
  using Use = std::function<void(size_t first, std::span<const std::byte* const> rows)>;
  void read(std::span<const int64_t> ids, const Use& use);

  NgramCounters counters() const;
  uint64_t cache_bytes() const { return cache_.bytes(); }

  // For fetchers: rows to be read, and what became of them.
  struct Wanted {
    uint32_t slot = 0;
    int64_t row = 0;
  };
  struct Fetched {
    uint32_t slot = 0;
    const std::byte* bytes = nullptr;  // null: it could not be read
    std::string error;
  };
  // At most `most` wanted rows, the oldest first. With `wait` sleeps until there is one or stop() was called.
  void take(size_t most, bool wait, std::vector<Wanted>& out);
  void finish(std::span<const Fetched> fetched);
  // No rows are handed to fetchers from here on.
  void stop();
  bool stopped() const;
  // Called without a lock whenever take() has something new; set before the first use.
  void on_wanted(std::function<void()> wake) { wake_ = std::move(wake); }

 private:
  class Window;
  // Gives up the lock for a short while, unless the window's first rows are there before; true where they are.
  bool poll(std::unique_lock<std::mutex>& lock, const Window& window);

  const int64_t row_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable row_done_;  // a slot that was `wanted` is no longer being read, or one was unpinned
  std::condition_variable work_;      // for fetchers
  RowCache cache_;
  std::deque<Wanted> pending_;
  std::atomic<uint64_t> finishes_ = 0;  // calls of finish() so far
  NgramCounters counters_;
  int blocked_ = 0;  // readers that found no slot at all
  bool stopped_ = false;
  std::string last_error_;
  std::function<void()> wake_;
};

}  // namespace tandem::experts
