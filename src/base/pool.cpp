#include "base/pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <immintrin.h>
#include <mutex>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"

namespace tandem::base {

namespace {

// Some tens of microseconds of polling before a worker sleeps: the operations of one step follow each other within
// that.
constexpr int kSpins = 2000;
constexpr int64_t kChunksPerThread = 4;  // evens out threads that start late or run slowly
constexpr int64_t kMostChunksOfLane = UINT16_MAX;
constexpr size_t kCacheLine = 64;
constexpr size_t kMostCpus = 8192;

// One core is left for the server's threads where there are more than two.
int threads_for(int cores) {
  return cores > 2 ? cores - 1 : cores;
}

int64_t ranges_of(int64_t count, int64_t grain) {
  grain = std::max<int64_t>(grain, 1);
  return (count + grain - 1) / grain;
}

// A refusal changes nothing but the speed.
void bind_thread(std::thread& thread, const std::vector<int>& cpus) {
  cpu_set_t* const set = CPU_ALLOC(kMostCpus);
  if (set == nullptr) return;
  const size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  (void)pthread_setaffinity_np(thread.native_handle(), bytes, set);
  CPU_FREE(set);
}

}  // namespace

// The padding keeps what is written in a run off the cache lines that every thread reads.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct WorkerPool::Shared {
  // What is left of a lane's chunks: the run's number, one past the lane's last chunk, the next one to take. A thread
  // takes a chunk by advancing the ticket, so a thread that comes late for a run cannot take a chunk of the run after
  // it.
  struct Ticket {
    uint32_t run;
    uint16_t end;
    uint16_t next;
  };
  static uint64_t pack(Ticket t) {
    return static_cast<uint64_t>(t.run) << 32 | static_cast<uint64_t>(t.end) << 16 | t.next;
  }
  static Ticket unpack(uint64_t bits) {
    return {static_cast<uint32_t>(bits >> 32), static_cast<uint16_t>(bits >> 16), static_cast<uint16_t>(bits)};
  }

  // Each thread has a lane of chunks of each stage that it alone takes from until they run out, and others then help
  // with: threads meet on a cache line only where one helps another.
  struct Lane {
    alignas(kCacheLine) std::atomic<uint64_t> tickets[kMostStages]{};
    alignas(kCacheLine) std::atomic<uint64_t> finished{0};  // the run's number, and the chunks that its thread has done
  };

  struct Work {
    int64_t count = 0;
    int64_t chunks = 0;
    const std::function<void(int64_t, int64_t)>* body = nullptr;
  };

  alignas(kCacheLine) std::atomic<uint32_t> run{0};  // number of the latest run
  // Of the latest run; read by whoever has taken one of its chunks.
  alignas(kCacheLine) Work stages[kMostStages];
  std::vector<Lane> lanes;

  std::mutex error_mutex;
  std::exception_ptr error;
  std::atomic<bool> busy{false};  // a run is under way
  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  int64_t lane_begin(const Work& work, size_t lane) const {
    return static_cast<int64_t>(lane) * work.chunks / static_cast<int64_t>(lanes.size());
  }

  // The next chunk of a lane in this run, as its place in the lane; -1 where there is none.
  int64_t take(size_t stage, size_t lane, uint32_t number) {
    std::atomic<uint64_t>& from = lanes[lane].tickets[stage];
    uint64_t bits = from.load(std::memory_order_acquire);
    for (;;) {
      const Ticket ticket = unpack(bits);
      if (ticket.run != number || ticket.next == ticket.end) return -1;
      if (from.compare_exchange_weak(bits, bits + 1, std::memory_order_acq_rel)) return ticket.next;
    }
  }

  void work(size_t thread, uint32_t number) {
    uint32_t done = 0;
    const auto publish = [&] {
      lanes[thread].finished.store(static_cast<uint64_t>(number) << 32 | done, std::memory_order_release);
    };
    for (size_t stage = 0; stage < kMostStages; ++stage) {
      // Every lane has a ticket of every stage of a run.
      if (unpack(lanes[thread].tickets[stage].load(std::memory_order_acquire)).run != number) return;
      for (size_t i = 0; i < lanes.size(); ++i) {
        const size_t lane = (thread + i) % lanes.size();
        for (int64_t place = take(stage, lane, number); place >= 0; place = take(stage, lane, number)) {
          const Work& from = stages[stage];
          const int64_t chunk = lane_begin(from, lane) + place;
          try {
            (*from.body)(chunk* from.count / from.chunks, (chunk + 1) * from.count / from.chunks);
          } catch (...) {
            const std::lock_guard lock(error_mutex);
            if (!error) error = std::current_exception();
          }
          ++done;
          if (i > 0) publish();
        }
        if (i == 0 && done > 0) publish();
      }
    }
  }

  // Carries out the first `used` stages in all threads.
  void run_all(size_t used) {
    const uint32_t number = run.load(std::memory_order_relaxed) + 1;
    int64_t chunks = 0;
    for (size_t stage = 0; stage < used; ++stage) {
      chunks += stages[stage].chunks;
      for (size_t lane = 0; lane < lanes.size(); ++lane) {
        const int64_t end = lane_begin(stages[stage], lane + 1) - lane_begin(stages[stage], lane);
        lanes[lane].tickets[stage].store(pack({number, static_cast<uint16_t>(end), 0}), std::memory_order_release);
      }
    }
    run.store(number, std::memory_order_seq_cst);
    if (sleepers.load() > 0) {
      const std::lock_guard wake_lock(sleep_mutex);
      wake.notify_all();
    }
    work(0, number);
    while (!all_finished(number, chunks)) _mm_pause();
    const std::exception_ptr thrown = std::exchange(error, nullptr);
    busy.store(false, std::memory_order_release);
    if (thrown) std::rethrow_exception(thrown);
  }

  bool all_finished(uint32_t number, int64_t chunks) const {
    int64_t done = 0;
    for (const Lane& lane : lanes) {
      const uint64_t finished = lane.finished.load(std::memory_order_acquire);
      if (finished >> 32 == number) done += static_cast<int64_t>(finished & 0xFFFFFFFFU);
    }
    return done == chunks;
  }

  void worker(size_t thread) {
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = run.load(std::memory_order_acquire);
      for (int spin = 0; now == seen && spin < kSpins && !stop.load(std::memory_order_relaxed); ++spin) {
        _mm_pause();
        now = run.load(std::memory_order_acquire);
      }
      if (now == seen) {
        std::unique_lock lock(sleep_mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] {
          now = run.load();
          return stop.load() || now != seen;
        });
        sleepers.fetch_sub(1);
      }
      if (stop.load(std::memory_order_relaxed)) return;
      seen = now;
      work(thread, now);
    }
  }
};

WorkerPool::WorkerPool(int threads) : shared_(std::make_unique<Shared>()) {
  const std::vector<std::vector<int>> cores = cores_by_speed();
  const int usable = usable_cores(cores);
  if (threads <= 0) threads = threads_for(usable);
  shared_->lanes = std::vector<Shared::Lane>(static_cast<size_t>(threads));
  const bool bind = threads < static_cast<int>(cores.size()) && usable == static_cast<int>(cores.size());
  for (int i = 1; i < threads; ++i) {
    shared_->workers.emplace_back([shared = shared_.get(), i] { shared->worker(static_cast<size_t>(i)); });
    if (bind) bind_thread(shared_->workers.back(), cores[static_cast<size_t>(i)]);
  }
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
  const auto threads = static_cast<int64_t>(shared.lanes.size());
  const int64_t chunks = std::min(ranges_of(count, grain), kChunksPerThread * threads);
  shared.stages[0] = {.count = count, .chunks = chunks, .body = &body};
  shared.run_all(1);
}

void WorkerPool::run_stages(std::span<const Stage> stages) {
  Shared& shared = *shared_;
  if (stages.size() > kMostStages) internal_error("pool", "{} stages; a run has {}", stages.size(), kMostStages);
  if (shared.workers.empty() || shared.busy.exchange(true, std::memory_order_acquire)) {
    for (const Stage& stage : stages) {
      if (stage.count > 0) stage.body(0, stage.count);
    }
    return;
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const int64_t most = kMostChunksOfLane * static_cast<int64_t>(shared.lanes.size());
    shared.stages[i] = {.count = stage.count,
                        .chunks = stage.count > 0 ? std::min(ranges_of(stage.count, stage.grain), most) : 0,
                        .body = &stage.body};
  }
  shared.run_all(stages.size());
}

int WorkerPool::default_threads() {
  return threads_for(usable_cores());
}

}  // namespace tandem::base
