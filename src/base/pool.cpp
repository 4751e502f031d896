#include "base/pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <immintrin.h>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpu.h"

namespace tandem::base {

namespace {
// About 20 microseconds of polling before a worker sleeps: the operations of one step follow each other within that.
constexpr int kSpins = 2000;
}  // namespace

struct WorkerPool::Shared {
  std::atomic<uint64_t> generation{0};  // even: idle, odd: a run is under way
  std::atomic<int64_t> next{0};
  std::atomic<int> inside{0};  // workers that may still touch the current run
  int64_t count = 0;
  int64_t piece = 1;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  std::atomic<bool> busy{false};  // a run is under way
  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  void work() {
    for (;;) {
      const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= count) return;
      try {
        (*body)(begin, std::min(count, begin + piece));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void worker() {
    uint64_t seen = 0;
    for (;;) {
      uint64_t now = generation.load(std::memory_order_acquire);
      for (int spin = 0; (now == seen || now % 2 == 0) && spin < kSpins && !stop.load(std::memory_order_relaxed);
           ++spin) {
        _mm_pause();
        now = generation.load(std::memory_order_acquire);
      }
      if (now == seen || now % 2 == 0) {
        std::unique_lock lock(sleep_mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] {
          now = generation.load();
          return stop.load() || (now != seen && now % 2 == 1);
        });
        sleepers.fetch_sub(1);
      }
      if (stop.load(std::memory_order_relaxed)) return;
      // Enter, then look again: the run may have ended meanwhile, and its body with it.
      inside.fetch_add(1, std::memory_order_seq_cst);
      if (generation.load(std::memory_order_seq_cst) == now) work();
      inside.fetch_sub(1, std::memory_order_release);
      seen = now;
    }
  }
};

WorkerPool::WorkerPool(int threads) : shared_(std::make_unique<Shared>()) {
  if (threads <= 0) threads = default_threads();
  for (int i = 1; i < threads; ++i) shared_->workers.emplace_back([shared = shared_.get()] { shared->worker(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(shared_->sleep_mutex);
    shared_->stop.store(true);
  }
  shared_->wake.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
}

int WorkerPool::threads() const {
  return static_cast<int>(shared_->workers.size()) + 1;
}

void WorkerPool::run(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  Shared& shared = *shared_;
  if (shared.workers.empty() || count <= grain || shared.busy.exchange(true, std::memory_order_acquire)) {
    body(0, count);
    return;
  }
  // Four pieces a thread even out workers that start late; fewer where the grain says so.
  const int64_t pieces = 4 * (static_cast<int64_t>(shared.workers.size()) + 1);
  shared.count = count;
  shared.piece = std::max(std::max<int64_t>(grain, 1), (count + pieces - 1) / pieces);
  shared.body = &body;
  shared.next.store(0, std::memory_order_relaxed);
  shared.generation.fetch_add(1, std::memory_order_seq_cst);
  if (shared.sleepers.load() > 0) {
    const std::lock_guard wake_lock(shared.sleep_mutex);
    shared.wake.notify_all();
  }
  shared.work();
  shared.generation.fetch_add(1, std::memory_order_seq_cst);
  while (shared.inside.load(std::memory_order_acquire) > 0) _mm_pause();
  const std::exception_ptr error = std::exchange(shared.error, nullptr);
  shared.busy.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

int WorkerPool::default_threads() {
  const int cores = usable_cores();
  return cores > 2 ? cores - 1 : cores;
}

}  // namespace tandem::base
