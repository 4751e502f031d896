#include "experts/row_fetcher.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tandem::experts {

namespace {

class PreadFetcher final : public RowFetcher {
 public:
  PreadFetcher(RowStore& store, const RowPlace& place, const FetcherOptions& options) : store_(store), place_(place) {
    if (options.direct) direct_ = place.file->reopen_direct();
    const int threads = std::clamp(options.depth, 1, kMostThreads);
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }

  ~PreadFetcher() override {
    store_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string description() const override {
    return fmt::format("pread, {}, {} in flight", direct_ ? "direct" : "through the page cache", threads_.size());
  }

 private:
  void run() {
    std::vector<RowStore::Wanted> wanted;
    for (;;) {
      store_.take(1, true, wanted);
      if (wanted.empty()) return;
      read(wanted.front());
    }
  }

  void read(const RowStore::Wanted& wanted) {
    alignas(4096) std::byte block[4096];
    RowStore::Fetched fetched{.slot = wanted.slot, .bytes = block, .error = {}};
    const uint64_t at = place_.of(wanted.row);
    const bool whole = direct_ && ::pread(direct_->descriptor(), block, sizeof block,
                                          static_cast<off_t>(at / 4096 * 4096)) == ssize_t{sizeof block};
    if (whole) {
      fetched.bytes = block + at % 4096;
    } else {
      fetched.error = read_plainly(place_, wanted.row, std::span(block).first(static_cast<size_t>(place_.row_bytes)));
      if (!fetched.error.empty()) fetched.bytes = nullptr;
    }
    store_.finish({&fetched, 1});
  }

  RowStore& store_;
  const RowPlace place_;
  std::optional<base::File> direct_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::string read_plainly(const RowPlace& place, int64_t row, std::span<std::byte> out) {
  try {
    place.file->read_at(place.of(row), out);
    return {};
  } catch (const base::Error& error) {
    return error.what();
  }
}

std::unique_ptr<RowFetcher> start_pread(RowStore& store, const RowPlace& place, const FetcherOptions& options) {
  return std::make_unique<PreadFetcher>(store, place, options);
}

std::unique_ptr<RowFetcher> RowFetcher::start(RowStore& store, const RowPlace& place, const FetcherOptions& options) {
  if (options.reader == NgramReader::kPread) return start_pread(store, place, options);
  std::string reason;
  auto fetcher = start_uring(store, place, options, reason);
  if (fetcher) return fetcher;
  if (options.reader == NgramReader::kUring) base::unavailable("io_uring", "{}", reason);
  return start_pread(store, place, options);
}

}  // namespace tandem::experts
