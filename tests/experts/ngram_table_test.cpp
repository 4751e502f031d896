#include "experts/ngram_table.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <gmock/gmock.h>
#include <thread>

#include "base/error.h"
#include "tests/artifact/temp_folder.h"
#include "tests/experts/table_file.h"

namespace tandem::experts {
namespace {

using testing::TableFile;

struct Back {
  const char* name;
  NgramReader reader;
  bool direct;
};
constexpr Back kBacks[] = {{"uring_direct", NgramReader::kUring, true},
                           {"uring_buffered", NgramReader::kUring, false},
                           {"pread_direct", NgramReader::kPread, true},
                           {"pread_buffered", NgramReader::kPread, false}};

// Poisoned, so that a value that is not written shows.
std::vector<float> read(NgramTable& table, std::span<const int64_t> ids) {
  std::vector<float> out(ids.size() * static_cast<size_t>(table.width()), -7777.0F);
  table.read(ids, out.data());
  return out;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class NgramTableTest : public ::testing::TestWithParam<Back> {
 protected:
  void SetUp() override {
    try {
      options_.fetcher = {.reader = GetParam().reader, .direct = GetParam().direct, .depth = 32};
      const TableFile file(folder_ / "probe", 10, 16, false, 1);
      const NgramTable probe(file.source(), options_);
    } catch (const base::Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  testing::TempFolder folder_;
  NgramOptions options_{.cache_bytes = kLeastNgramCache, .fetcher = {}};
  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
};

INSTANTIATE_TEST_SUITE_P(Backs, NgramTableTest, ::testing::ValuesIn(kBacks),
                         [](const auto& back) { return back.param.name; });

TEST_P(NgramTableTest, GivesTheRowsOfTheFile) {
  for (const bool bf16 : {false, true}) {
    for (const int64_t width : {16, 160, 700}) {
      const TableFile file(folder_ / "table", 3001, width, bf16, random_());
      NgramTable table(file.source(), options_);
      auto ids = file.random_ids(5000, random_);
      ids.insert(ids.end(), {0, 3000, 3000, 0});
      EXPECT_TRUE(same_bits(read(table, ids), file.rows(ids))) << table.reader() << ", seed " << seed_;
      EXPECT_TRUE(same_bits(read(table, ids), file.rows(ids))) << "from the cache, seed " << seed_;
    }
  }
}

TEST_P(NgramTableTest, ReadsEveryRowOnceAndThenFindsItInMemory) {
  const TableFile file(folder_ / "table", 1000, 160, false, random_());
  NgramTable table(file.source(), options_);
  const auto ids = file.random_ids(300, random_);
  const std::vector<float> first = read(table, ids);
  const NgramCounters cold = table.counters();
  EXPECT_EQ(cold.hits + cold.late + cold.misses, 300U);
  EXPECT_EQ(cold.reads, cold.misses);
  EXPECT_TRUE(same_bits(read(table, ids), first));
  const NgramCounters warm = table.counters();
  EXPECT_EQ(warm.hits, cold.hits + 300);
  EXPECT_EQ(warm.reads, cold.reads);
  EXPECT_EQ(warm.waits, cold.waits) << "a step never waits for a row in the cache";
}

TEST_P(NgramTableTest, APrefetchedRowIsReadOnceAndNotMissed) {
  const TableFile file(folder_ / "table", 1000, 160, false, random_());
  NgramTable table(file.source(), options_);
  const std::vector<int64_t> ids = {5, 999, 12, 5, 480};
  table.prefetch(ids);
  table.prefetch(ids);
  EXPECT_TRUE(same_bits(read(table, ids), file.rows(ids)));
  const NgramCounters counters = table.counters();
  EXPECT_EQ(counters.prefetched, 4U);
  EXPECT_EQ(counters.misses, 0U);
  EXPECT_EQ(counters.reads, 4U);
}

TEST_P(NgramTableTest, StaysRightWhereTheCacheIsMuchSmallerThanTheTable) {
  const TableFile file(folder_ / "table", 20000, 160, false, random_());
  NgramTable table(file.source(), options_);
  EXPECT_LE(table.cache_bytes(), kLeastNgramCache);
  for (int round = 0; round < 3; ++round) {
    const auto ids = file.random_ids(12000, random_);
    ASSERT_TRUE(same_bits(read(table, ids), file.rows(ids))) << "seed " << seed_;
  }
  EXPECT_GT(table.counters().reads, 15000U) << "rows made room and were read again";
}

TEST_P(NgramTableTest, RowsMakeRoomWhilePrefetchesAreUnderWay) {
  const TableFile file(folder_ / "table", 20000, 160, false, random_());
  NgramTable table(file.source(), options_);
  for (int round = 0; round < 10; ++round) {
    table.prefetch(file.random_ids(3000, random_));
    const auto ids = file.random_ids(1000, random_);
    table.prefetch(ids);
    ASSERT_TRUE(same_bits(read(table, ids), file.rows(ids))) << "seed " << seed_;
  }
}

TEST_P(NgramTableTest, ServesSeveralThreadsAtOnce) {
  const TableFile file(folder_ / "table", 30000, 160, false, random_());
  NgramTable table(file.source(), options_);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, seed = seed_ + t] {
      std::mt19937_64 random(seed);
      for (int round = 0; round < 6; ++round) {
        const auto ids = file.random_ids(1500, random);
        if (round % 2 == 0) table.prefetch(ids);
        if (!same_bits(read(table, ids), file.rows(ids))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0) << "seed " << seed_;
}

TEST_P(NgramTableTest, EndsWhilePrefetchesAreUnderWay) {
  const TableFile file(folder_ / "table", 30000, 160, false, random_());
  for (int round = 0; round < 10; ++round) {
    NgramTable table(file.source(), options_);
    table.prefetch(file.random_ids(2000, random_));
  }
}

TEST_P(NgramTableTest, ARowBehindTheEndOfTheFileIsOneClearError) {
  const TableFile file(folder_ / "table", 1000, 160, false, random_());
  NgramTable table(file.source(), options_);
  std::filesystem::resize_file(folder_ / "table", 8192 + 2 * 4096 + 100);
  const std::vector<int64_t> whole = {0, 24, 49, 25};
  EXPECT_TRUE(same_bits(read(table, whole), file.rows(whole)));
  const std::vector<int64_t> cut = {3, 500};
  table.prefetch(cut);
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      read(table, cut);
      FAIL() << "a row that is not there was read";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
      EXPECT_THAT(error.what(), ::testing::MatchesRegex(".*table: ends at byte .*, but bytes 90112 to 90272 .*"));
    }
  }
  EXPECT_TRUE(same_bits(read(table, whole), file.rows(whole))) << "other rows can still be read";
}

TEST(NgramTable, RefusesRowsThatItDoesNotHaveAndCachesThatHoldNothing) {
  const testing::TempFolder folder;
  const TableFile file(folder / "table", 10, 16, false, 1);
  NgramTable table(file.source(), {});
  std::vector<float> out(16);
  for (const int64_t id : {int64_t{-1}, int64_t{10}}) {
    EXPECT_THROW(table.read({&id, 1}, out.data()), base::Error);
    EXPECT_THROW(table.prefetch({&id, 1}), base::Error);
  }
  EXPECT_THROW(NgramTable(file.source(), {.cache_bytes = 1000, .fetcher = {}}), base::Error);
}

}  // namespace
}  // namespace tandem::experts
