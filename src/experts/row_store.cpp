#include "experts/row_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <immintrin.h>
#include <utility>

#include "base/error.h"

namespace tandem::experts {

namespace {

constexpr size_t kUseAtOnce =
    256;  // rows handed to the caller in one call: a few of them are decoded while others come
// Rows of one token are read in about this time; a thread that sleeps takes half of it to wake up.
constexpr std::chrono::microseconds kPollTime{100};

}  // namespace

// The rows of one read() that are pinned: a stretch of its ids, moved on from the front.
class RowStore::Window {
 public:
  Window(RowStore& store, std::span<const int64_t> ids)
      : store_(store), ids_(ids), most_(std::max<size_t>(store.cache_.capacity() / 2, 1)) {}
  // REQUIRES: the lock is not held, or the window is empty.
  ~Window() {
    if (pinned_.empty()) return;
    const std::lock_guard lock(store_.mutex_);
    give_back(pinned_.size());
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  bool done() const { return used_ == ids_.size(); }
  bool empty() const { return pinned_.empty(); }
  size_t used() const { return used_; }

  // Pins as many rows as may be; true where one of them has to be read.
  bool extend() {
    bool asked = false;
    RowCache& cache = store_.cache_;
    while (next_ < ids_.size() && pinned_.size() < most_) {
      const int64_t row = ids_[next_];
      uint32_t slot = cache.find(row);
      if (slot == RowCache::kNone) {
        slot = cache.claim(row);
        if (slot == RowCache::kNone) break;
        store_.pending_.push_back({slot, row});
        ++store_.counters_.misses;
        asked = true;
      } else if (cache.state(slot) == RowCache::State::kReading) {
        ++store_.counters_.late;
      } else {
        ++store_.counters_.hits;
      }
      cache.pin(slot);
      pinned_.push_back(slot);
      ++next_;
    }
    return asked;
  }

  // Sleeps until the first rows are there, at most kUseAtOnce of them. REQUIRES: extend() was called under this lock.
  void wait(std::unique_lock<std::mutex>& lock) {
    RowCache& cache = store_.cache_;
    if (pinned_.empty()) {
      // Others hold every slot. This reader holds none while it waits, so they come to an end.
      ++store_.blocked_;
      store_.row_done_.wait(lock);
      --store_.blocked_;
      return;
    }
    // The last of them first: rows come about in the order they were asked for, so that it is often the only wait.
    for (size_t i = std::min(pinned_.size(), kUseAtOnce); i-- > 0;) {
      const uint32_t slot = pinned_[i];
      if (cache.state(slot) != RowCache::State::kReading) continue;
      cache.wanted(slot) = true;
      store_.row_done_.wait(lock, [&] { return cache.state(slot) != RowCache::State::kReading; });
    }
  }

  bool must_wait() const {
    const auto end = pinned_.begin() + static_cast<ptrdiff_t>(std::min(pinned_.size(), kUseAtOnce));
    return pinned_.empty() || std::any_of(pinned_.begin(), end, [&](uint32_t slot) {
             return store_.cache_.state(slot) == RowCache::State::kReading;
           });
  }

  // The first rows' bytes; false where one of them could not be read.
  bool collect(std::vector<const std::byte*>& rows) const {
    rows.clear();
    for (size_t i = 0; i < std::min(pinned_.size(), kUseAtOnce); ++i) {
      if (store_.cache_.state(pinned_[i]) != RowCache::State::kReady) return false;
      rows.push_back(store_.cache_.data(pinned_[i]));
    }
    return true;
  }

  void move_on(size_t count) {
    give_back(count);
    used_ += count;
  }

 private:
  void give_back(size_t count) {
    for (size_t i = 0; i < count; ++i) store_.cache_.unpin(pinned_[i]);
    pinned_.erase(pinned_.begin(), pinned_.begin() + static_cast<ptrdiff_t>(count));
    if (store_.blocked_ > 0) store_.row_done_.notify_all();
  }

  RowStore& store_;
  std::span<const int64_t> ids_;
  size_t most_;
  size_t used_ = 0;  // ids handed to the caller
  size_t next_ = 0;  // ids pinned so far
  std::deque<uint32_t> pinned_;
};

NgramCounters& NgramCounters::operator+=(const NgramCounters& other) {
  hits += other.hits;
  late += other.late;
  misses += other.misses;
  prefetched += other.prefetched;
  reads += other.reads;
  waits += other.waits;
  wait_ns += other.wait_ns;
  return *this;
}

RowStore::RowStore(int64_t rows, int64_t row_bytes, uint64_t cache_bytes)
    : row_bytes_(row_bytes), cache_(rows, row_bytes, cache_bytes) {}

void RowStore::prefetch(std::span<const int64_t> ids) {
  size_t asked = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const int64_t row : ids) {
      if (cache_.find(row) != RowCache::kNone) continue;
      if (asked >= cache_.capacity() / 2) break;
      const uint32_t slot = cache_.claim(row);
      if (slot == RowCache::kNone) break;
      pending_.push_back({slot, row});
      ++asked;
    }
    counters_.prefetched += asked;
  }
  if (asked == 0) return;
  work_.notify_all();
  if (wake_) wake_();
}

bool RowStore::poll(std::unique_lock<std::mutex>& lock, const Window& window) {
  const auto end = std::chrono::steady_clock::now() + kPollTime;
  for (uint64_t seen = finishes_; window.must_wait(); seen = finishes_) {
    lock.unlock();
    bool late = false;
    while (finishes_ == seen && !late) {
      _mm_pause();
      late = std::chrono::steady_clock::now() > end;
    }
    lock.lock();
    if (late) return !window.must_wait();
  }
  return true;
}

void RowStore::read(std::span<const int64_t> ids, const Use& use) {
  using Clock = std::chrono::steady_clock;
  Window window(*this, ids);
  std::vector<const std::byte*> rows;
  std::unique_lock lock(mutex_);
  while (!window.done()) {
    if (window.extend()) {
      lock.unlock();
      work_.notify_all();
      if (wake_) wake_();
      lock.lock();
    }
    if (window.must_wait()) {
      const auto begin = Clock::now();
      // A window without rows must not miss that others gave one back.
      if (window.empty() || !poll(lock, window)) window.wait(lock);
      ++counters_.waits;
      counters_.wait_ns += static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
      continue;  // more rows may find a slot by now
    }
    if (!window.collect(rows)) {
      const std::string error = last_error_;
      lock.unlock();
      throw base::Error(base::ErrorKind::kBadInput, "", error);
    }
    lock.unlock();
    use(window.used(), rows);
    lock.lock();
    window.move_on(rows.size());
  }
}

NgramCounters RowStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void RowStore::take(size_t most, bool wait, std::vector<Wanted>& out) {
  out.clear();
  std::unique_lock lock(mutex_);
  if (wait) work_.wait(lock, [&] { return stopped_ || !pending_.empty(); });
  if (stopped_) return;
  const size_t count = std::min(most, pending_.size());
  out.insert(out.end(), pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(count));
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(count));
}

void RowStore::finish(std::span<const Fetched> fetched) {
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    for (const Fetched& one : fetched) {
      tell = tell || cache_.wanted(one.slot) || blocked_ > 0;
      ++counters_.reads;
      if (one.bytes != nullptr) {
        std::memcpy(cache_.data(one.slot), one.bytes, static_cast<size_t>(row_bytes_));
        cache_.ready(one.slot);
      } else {
        last_error_ = one.error;
        cache_.failed(one.slot);
      }
    }
    ++finishes_;
  }
  if (tell) row_done_.notify_all();
}

void RowStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
  if (wake_) wake_();
}

bool RowStore::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

}  // namespace tandem::experts
