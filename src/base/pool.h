// The one worker pool of the process: host operations, tokenisation and loading share it, so that the machine is never
// asked to run more threads than it has cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace tandem::base {

class WorkerPool {
 public:
  // `threads` counts the caller of run(), which works too: a pool of 1 starts no thread. 0 takes default_threads().
  // Where there are cores for all of them and one more, worker i is bound to the core with that place in
  // cores_by_speed(): the fastest compute, and the last core is left to the server's threads.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const;

  // Cuts [0, count) into contiguous ranges of at least `grain` (but for rounding) and calls body(begin, end) for each,
  // once; returns when all have ended. Which thread takes which range is not fixed, so a body must not let results
  // depend on it. An exception of a body is thrown here after the others have ended. One run at a time: a run started
  // while another is under way (from a body, or from a second thread) does all its work in its own thread.
  void run(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

  // One part of a run of several: [0, count), cut into ranges of `grain` (but for rounding). Of n ranges thread t first
  // takes those from t * n / threads() on, so that neighbours stay in one thread.
  struct Stage {
    int64_t count = 0;
    int64_t grain = 1;
    std::function<void(int64_t begin, int64_t end)> body;
  };
  static constexpr size_t kMostStages = 4;
  // Like run() for each stage, but with no barrier between them: a thread goes on to the next stage once all ranges of
  // a stage are taken, while others still work on theirs. A body may therefore wait for ranges of earlier stages, which
  // are all being worked on, and for nothing else; and it must be told that they are done also where they throw.
  void run_stages(std::span<const Stage> stages);

  // Physical cores that the affinity mask and the control group's quota allow, less one for the server's threads where
  // there are more than two.
  static int default_threads();

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace tandem::base
