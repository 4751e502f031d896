#include "experts/row_cache.h"

#include <gtest/gtest.h>
#include <random>
#include <set>

namespace tandem::experts {
namespace {

using State = RowCache::State;

uint32_t put(RowCache& cache, int64_t row) {
  const uint32_t slot = cache.claim(row);
  if (slot != RowCache::kNone) cache.ready(slot);
  return slot;
}

TEST(RowCache, KeepsToItsBudget) {
  for (const uint64_t budget : {uint64_t{1} << 16, uint64_t{1000000}, uint64_t{5} << 20}) {
    const RowCache cache(int64_t{1} << 40, 160, budget);
    EXPECT_LE(cache.bytes(), budget);
    EXPECT_GT(cache.bytes(), budget * 8 / 10);
  }
  EXPECT_EQ(RowCache(1000, 160, uint64_t{1} << 30).capacity(), 1000U) << "no more slots than rows";
}

TEST(RowCache, FindsWhatWasPutIntoItUntilItMakesRoom) {
  RowCache cache(1 << 20, 16, 0);
  ASSERT_EQ(cache.capacity(), 64U);
  for (int64_t row = 0; row < 64; ++row) put(cache, row * 1000);
  for (int64_t row = 0; row < 64; ++row) {
    const uint32_t slot = cache.find(row * 1000);
    ASSERT_NE(slot, RowCache::kNone);
    EXPECT_EQ(cache.row(slot), row * 1000);
  }
  put(cache, 7);
  EXPECT_NE(cache.find(7), RowCache::kNone);
  int left = 0;
  for (int64_t row = 0; row < 64; ++row) left += cache.find(row * 1000) != RowCache::kNone ? 1 : 0;
  EXPECT_EQ(left, 63);
}

TEST(RowCache, KeepsTheRowsThatAreUsed) {
  RowCache cache(1 << 20, 16, 0);
  for (int64_t row = 0; row < 64; ++row) put(cache, row);
  for (int64_t other = 1000; other < 5000; ++other) {
    ASSERT_NE(cache.find(5), RowCache::kNone) << "used before every claim";
    put(cache, other);
  }
}

TEST(RowCache, NeitherPinnedRowsNorRowsOnTheirWayMakeRoom) {
  RowCache cache(1 << 20, 16, 0);
  const uint32_t pinned = put(cache, 1);
  cache.pin(pinned);
  const uint32_t reading = cache.claim(2);
  for (int64_t row = 10; row < 1000; ++row) put(cache, row);
  EXPECT_EQ(cache.find(1), pinned);
  EXPECT_EQ(cache.find(2), reading);
  EXPECT_EQ(cache.state(reading), State::kReading);

  RowCache full(1 << 20, 16, 0);
  for (int64_t row = 0; row < 64; ++row) full.pin(put(full, row));
  EXPECT_EQ(full.claim(100), RowCache::kNone);
  full.unpin(full.find(9));
  EXPECT_NE(full.claim(100), RowCache::kNone);
  EXPECT_EQ(full.find(9), RowCache::kNone);
}

TEST(RowCache, AFailedRowIsForgottenOnceNobodyLooksAtIt) {
  RowCache cache(1 << 20, 16, 0);
  const uint32_t slot = cache.claim(3);
  cache.pin(slot);
  cache.failed(slot);
  EXPECT_EQ(cache.find(3), slot);
  cache.unpin(slot);
  EXPECT_EQ(cache.find(3), RowCache::kNone);
  cache.failed(cache.claim(4));
  EXPECT_EQ(cache.find(4), RowCache::kNone);
}

TEST(RowCache, AgreesWithAPlainSetUnderRandomUse) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  RowCache cache(1 << 20, 8, 40 * 200);
  std::set<int64_t> held;
  for (int step = 0; step < 20000; ++step) {
    const auto row = static_cast<int64_t>(random() % 600);
    const uint32_t found = cache.find(row);
    ASSERT_EQ(found != RowCache::kNone, held.contains(row)) << "seed " << seed;
    if (found != RowCache::kNone) continue;
    std::set<int64_t> before;
    const uint32_t slot = cache.claim(row);
    ASSERT_NE(slot, RowCache::kNone);
    if (random() % 8 == 0) {
      cache.failed(slot);
    } else {
      cache.ready(slot);
    }
    held.clear();
    for (uint32_t s = 0; s < cache.capacity(); ++s) {
      if (cache.state(s) == State::kReady) held.insert(cache.row(s));
    }
  }
}

}  // namespace
}  // namespace tandem::experts
