#include "base/pool.h"

#include <atomic>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tandem::base {
namespace {

TEST(WorkerPool, VisitsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    for (const int64_t count : {0, 1, 7, 64, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      pool.run(count, 3, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      for (const auto& visit : visits) ASSERT_EQ(visit, 1);
    }
  }
}

TEST(WorkerPool, ManyShortRunsFollowEachOther) {
  WorkerPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 5000; ++i) {
    pool.run(16, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 5000 * 16);
}

TEST(WorkerPool, NestedAndConcurrentRunsDoTheirOwnWork) {
  WorkerPool pool(3);
  std::atomic<int64_t> sum{0};
  const auto nested = [&] {
    pool.run(10, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) pool.run(10, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    });
  };
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) nested();
  });
  for (int i = 0; i < 200; ++i) nested();
  other.join();
  EXPECT_EQ(sum, 2 * 200 * 100);
}

TEST(WorkerPool, StagesVisitEveryIndexOnceAndMayWaitForEarlierOnes) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    for (int repeat = 0; repeat < 300; ++repeat) {
      std::vector<std::atomic<int>> first(40);
      std::vector<std::atomic<int>> last(100);
      std::atomic<int> left{40};
      const WorkerPool::Stage stages[] = {{40, 3,
                                           [&](int64_t begin, int64_t end) {
                                             for (int64_t i = begin; i < end; ++i) ++first[static_cast<size_t>(i)];
                                             left -= static_cast<int>(end - begin);
                                           }},
                                          {0, 1, [](int64_t, int64_t) { FAIL() << "nothing to do"; }},
                                          {100, 1, [&](int64_t begin, int64_t end) {
                                             while (left > 0) std::this_thread::yield();
                                             for (int64_t i = begin; i < end; ++i) {
                                               last[static_cast<size_t>(i)] += first[static_cast<size_t>(i % 40)];
                                             }
                                           }}};
      pool.run_stages(stages);
      for (const auto& visits : first) ASSERT_EQ(visits, 1);
      for (const auto& visits : last) ASSERT_EQ(visits, 1);
    }
  }
}

TEST(WorkerPool, PassesOnAnExceptionAndStaysUsable) {
  WorkerPool pool(3);
  EXPECT_THROW(pool.run(100, 1,
                        [](int64_t begin, int64_t) {
                          if (begin >= 50) throw std::runtime_error("boom");
                        }),
               std::runtime_error);
  const WorkerPool::Stage stages[] = {{20, 1, [](int64_t, int64_t) { throw std::runtime_error("boom"); }},
                                      {20, 1, [](int64_t, int64_t) {}}};
  EXPECT_THROW(pool.run_stages(stages), std::runtime_error);
  std::atomic<int64_t> sum{0};
  pool.run(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100);
}

}  // namespace
}  // namespace tandem::base
