#include "bench_ngram.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "bench_report.h"
#include "commands.h"
#include "experts/ngram_table.h"
#include "options.h"
#include "random_reads.h"

namespace tandem::app {
namespace {

// The published table's rows: 160 values of one byte, 16 rows a token.
constexpr int64_t kRowWidth = 160;
constexpr size_t kRowsOfToken = 16;
constexpr int64_t kRowsOfBlock = 4096 / kRowWidth;
constexpr size_t kChunkRows = 512 * kRowsOfToken;  // of a prompt chunk

struct NgramBenchOptions {
  std::string directory = ".";
  uint64_t file_bytes = uint64_t{1} << 30;
  uint64_t cache_bytes = uint64_t{64} << 20;
  int64_t reads = 65536;
  int rounds = kLeastRounds;
  bool json = false;
};

// A table of random bytes. It loses its name as soon as it is open: however the process ends, nothing is left behind.
class TemporaryTable {
 public:
  TemporaryTable(const std::filesystem::path& directory, uint64_t bytes) {
    if (!std::filesystem::is_directory(directory)) base::bad_input(directory.string(), "is not a folder");
    const uint64_t room = base::free_disk_bytes(directory);
    if (bytes > room) {
      base::unavailable(directory.string(), "needs {} for the table, the disk has {} left", base::format_bytes(bytes),
                        base::format_bytes(room));
    }
    const auto path = directory / fmt::format("tandem-bench-ngram-{}.tmp", ::getpid());
    file_ = base::File::open_write(path);
    std::filesystem::remove(path);
    write(bytes);
  }

  const base::File& file() const { return file_; }
  experts::NgramSource source() const {
    const auto blocks = static_cast<int64_t>(file_.size() / 4096);
    return {.file = &file_,
            .offset = 0,
            .rows = blocks * kRowsOfBlock,
            .width = kRowWidth,
            .scale = 1.0F / 64,
            .name = "the bench's table"};
  }

 private:
  void write(uint64_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is then an error of the write
    std::vector<uint64_t> piece((uint64_t{4} << 20) / sizeof(uint64_t));
    std::mt19937_64 random(1);
    const auto data = std::as_writable_bytes(std::span(piece));
    for (uint64_t at = 0; at < bytes; at += data.size()) {
      for (uint64_t& word : piece) word = random();
      file_.write_at(at, data.first(std::min<uint64_t>(data.size(), bytes - at)));
    }
    file_.sync();
    file_.drop_cache(0, bytes);
  }

  base::File file_;
};

using BenchClock = std::chrono::steady_clock;

double since(BenchClock::time_point begin) {
  return std::chrono::duration<double>(BenchClock::now() - begin).count();
}

std::vector<int64_t> random_rows(size_t count, int64_t rows, std::mt19937_64& random) {
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
  return ids;
}

// The rows of one prompt chunk after the other, each asked for while the one before it is read, as the engine does.
struct ReadRound {
  double seconds = 0;
  uint64_t reads = 0;  // rows that came from the disk
};
ReadRound read_chunks(experts::NgramTable& table, int64_t reads, std::mt19937_64& random) {
  std::vector<float> values(kChunkRows * static_cast<size_t>(kRowWidth));
  const uint64_t before = table.counters().reads;
  auto chunk = random_rows(kChunkRows, table.rows(), random);
  const auto begin = BenchClock::now();
  for (int64_t done = 0; done < reads; done += static_cast<int64_t>(kChunkRows)) {
    auto next = random_rows(kChunkRows, table.rows(), random);
    table.prefetch(chunk);
    table.prefetch(next);
    table.read(chunk, values.data());
    chunk = std::move(next);
  }
  const ReadRound round{since(begin), table.counters().reads - before};
  table.read(chunk, values.data());  // so that the next round begins with nothing on its way
  return round;
}

// Tokens whose rows are all in memory: the first calls bring them there.
void add_cached(BenchReport& report, const experts::NgramSource& source, const NgramBenchOptions& options) {
  constexpr size_t kTokens = 2048;
  experts::NgramTable table(source, {.cache_bytes = options.cache_bytes, .fetcher = {}});
  std::mt19937_64 random(3);
  const auto ids = random_rows(kTokens * kRowsOfToken, table.rows(), random);
  std::vector<float> values(kRowsOfToken * static_cast<size_t>(kRowWidth));
  const auto token = [&](size_t t) {
    const auto rows = std::span(ids).subspan(t * kRowsOfToken, kRowsOfToken);
    table.prefetch(rows);
    table.read(rows, values.data());
  };
  std::vector<double> cold;
  for (size_t t = 0; t < kTokens; ++t) {
    const auto begin = BenchClock::now();
    token(t);
    cold.push_back(since(begin));
  }
  const uint64_t waits = table.counters().waits;
  std::vector<double> seconds;
  for (int round = -1; round < options.rounds; ++round) {
    const auto begin = BenchClock::now();
    for (size_t t = 0; t < kTokens; ++t) token(t);
    if (round >= 0) seconds.push_back(since(begin));
  }
  report.raw["cached_tokens"] = kTokens;
  report.raw["cached_s"] = seconds;
  report.raw["cached_waits"] = table.counters().waits - waits;
  report.raw["cold_token_s"] = median(cold);
  report.figures["ngram.cached_us"] = median(seconds) / static_cast<double>(kTokens) * 1e6;
  report.figures["ngram.cold_us"] = median(cold) * 1e6;
}

void add_reads(BenchReport& report, const TemporaryTable& file, const NgramBenchOptions& options) {
  RandomReads disk(file.file());
  experts::NgramTable table(file.source(), {.cache_bytes = options.cache_bytes, .fetcher = {}});
  const std::vector<int> depths = {16, 64, 128, 256};
  std::vector<std::vector<double>> disk_seconds(depths.size());
  std::vector<double> rates;
  base::Json seconds = base::Json::array();
  base::Json reads = base::Json::array();
  std::mt19937_64 random(2);
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < depths.size(); ++i) {
      const double taken = disk.run(static_cast<uint64_t>(options.reads), depths[i]);
      if (round >= 0) disk_seconds[i].push_back(taken);
    }
    const ReadRound own = read_chunks(table, options.reads, random);
    if (round < 0) continue;
    seconds.push_back(own.seconds);
    reads.push_back(own.reads);
    rates.push_back(static_cast<double>(own.reads) / own.seconds);
  }
  double best = 0;
  base::Json by_depth = base::Json::object();
  for (size_t i = 0; i < depths.size(); ++i) {
    by_depth[std::to_string(depths[i])] = disk_seconds[i];
    best = std::max(best, static_cast<double>(options.reads) / median(disk_seconds[i]));
  }
  report.raw["table_bytes"] = file.file().size();
  report.raw["cache_bytes"] = table.cache_bytes();
  report.raw["disk"] = {{"how", disk.description()}, {"reads", options.reads}, {"seconds_by_depth", by_depth}};
  report.raw["rows"] = {{"how", table.reader()}, {"reads", reads}, {"seconds", seconds}};
  report.figures["ngram.disk_reads_s"] = best;
  report.figures["ngram.rows_s"] = median(rates);
  report.figures["ngram.random_read_fraction"] = median(rates) / best;
}

void bench_ngram(const NgramBenchOptions& options) {
  if (options.rounds < kLeastRounds) base::bad_input("--rounds", "{} is below {}", options.rounds, kLeastRounds);
  if (options.reads < 1) base::bad_input("--reads", "{} is below 1", options.reads);
  if (options.file_bytes < uint64_t{1} << 20) {
    base::bad_input("--size", "{} bytes are below the 1 MiB that it takes", options.file_bytes);
  }
  const TemporaryTable table(options.directory, options.file_bytes / 4096 * 4096);
  BenchReport report;
  report.bench = "ngram";
  report.threads = 1;
  add_reads(report, table, options);
  add_cached(report, table.source(), options);
  report.print(options.json);
}

}  // namespace

void add_bench_ngram(CLI::App& bench) {
  const auto options = std::make_shared<NgramBenchOptions>();
  CLI::App* command = bench.add_subcommand("ngram", "Random rows of an n-gram table from disk, and from the cache");
  per_call(command->add_option("--dir", options->directory, "The folder whose disk is measured; a temporary file"))
      ->type_name("DIR")
      ->capture_default_str();
  per_call(add_size(*command, "--size", options->file_bytes, "Size of the table that is made, as 4GiB"));
  per_call(add_size(*command, "--cache", options->cache_bytes, "Memory for rows, as 64MiB"));
  per_call(command->add_option("--reads", options->reads, "Reads of one round"))->capture_default_str();
  per_call(command->add_option("--rounds", options->rounds, "Rounds of each measurement, at least 5"))
      ->capture_default_str();
  per_call(command->add_flag("--json", options->json, "Print one JSON object"));
  command->footer("Example:\n  tandem bench ngram --dir /data --size 8GiB --json");
  command->callback([options] { bench_ngram(*options); });
}

}  // namespace tandem::app
