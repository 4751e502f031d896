// The n-gram memory's table on disk: hashed rows, read one by one as they are needed, never whole.
//
// Rows are asked for as soon as it is known that they will be needed (prefetch); threads of the table's own read them,
// many at a time, into a cache of rows. A step then finds them there: for a row in the cache it takes one lock and
// decodes, it neither makes a system call nor touches a page of a file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "artifact/artifact.h"
#include "experts/row_fetcher.h"
#include "experts/row_store.h"

namespace tandem::experts {

struct NgramOptions {
  uint64_t cache_bytes = uint64_t{256} << 20;  // of rows and what is kept about them
  FetcherOptions fetcher;
};
// Less than this holds no prompt chunk's rows.
inline constexpr uint64_t kLeastNgramCache = uint64_t{1} << 20;

// A table in a file.
struct NgramSource {
  const base::File* file = nullptr;  // outlives the table
  uint64_t offset = 0;               // of row 0, a multiple of 4096
  int64_t rows = 0;
  int64_t width = 0;   // values of a row
  bool bf16 = false;   // else E4M3
  float scale = 1;     // multiplies E4M3 values
  std::string name{};  // for messages

  // `object` has encoding kNgramF8E4M3 or kNgramBF16.
  static NgramSource of(const artifact::Artifact& artifact, const artifact::Object& object, float scale);
};

// All functions may be called from several threads.
class NgramTable {
 public:
  NgramTable(NgramSource source, const NgramOptions& options);

  int64_t rows() const { return source_.rows; }
  int64_t width() const { return source_.width; }

  // Starts to read the rows that are not in memory yet, and returns. What goes wrong is told by the read that needs
  // the row.
  void prefetch(std::span<const int64_t> ids);
  // Row ids[i] in FP32 to out + i * width. Waits for rows that are not in memory. Throws base::Error{kBadInput} that
  // names the file and the bytes where one cannot be read.
  void read(std::span<const int64_t> ids, float* out);

  NgramCounters counters() const { return store_.counters(); }
  uint64_t cache_bytes() const { return store_.cache_bytes(); }  // at most, when full
  std::string reader() const { return fetcher_->description(); }

 private:
  void check(std::span<const int64_t> ids) const;

  const NgramSource source_;
  std::array<float, 256> values_{};  // of an E4M3 code, scaled
  RowStore store_;
  std::unique_ptr<RowFetcher> fetcher_;  // ends before the store
};

}  // namespace tandem::experts
