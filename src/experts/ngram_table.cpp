#include "experts/ngram_table.h"

#include <utility>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"

namespace tandem::experts {

namespace {

int64_t bytes_of_row(const NgramSource& source) {
  return source.width * (source.bf16 ? 2 : 1);
}

// The sums of a step call this, so that it is one load a value.
std::array<float, 256> scaled_codes(float scale) {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = numeric::e4m3_to_float(static_cast<uint8_t>(code)) * scale;
  }
  return values;
}

}  // namespace

NgramSource NgramSource::of(const artifact::Artifact& artifact, const artifact::Object& object, float scale) {
  return {.file = &artifact.part(object.part),
          .offset = object.offset,
          .rows = object.shape.at(0),
          .width = object.shape.at(1),
          .bf16 = object.encoding == artifact::Encoding::kNgramBF16,
          .scale = scale,
          .name = object.name};
}

NgramTable::NgramTable(NgramSource source, const NgramOptions& options)
    : source_(std::move(source)),
      values_(scaled_codes(source_.scale)),
      store_(source_.rows, bytes_of_row(source_), options.cache_bytes) {
  if (options.cache_bytes < kLeastNgramCache) {
    base::bad_input("--ngram-cache", "{} bytes are below the {} that it takes", options.cache_bytes, kLeastNgramCache);
  }
  const RowPlace place{.file = source_.file, .offset = source_.offset, .row_bytes = bytes_of_row(source_)};
  fetcher_ = RowFetcher::start(store_, place, options.fetcher);
}

void NgramTable::check(std::span<const int64_t> ids) const {
  for (const int64_t id : ids) {
    if (id < 0 || id >= source_.rows) {
      base::internal_error(source_.name, "row {} of {} was asked for", id, source_.rows);
    }
  }
}

void NgramTable::prefetch(std::span<const int64_t> ids) {
  check(ids);
  store_.prefetch(ids);
}

void NgramTable::read(std::span<const int64_t> ids, float* out) {
  check(ids);
  store_.read(ids, [&](size_t first, std::span<const std::byte* const> rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      float* to = out + static_cast<int64_t>(first + i) * source_.width;
      if (source_.bf16) {
        const auto* bits = reinterpret_cast<const uint16_t*>(rows[i]);
        for (int64_t d = 0; d < source_.width; ++d) to[d] = numeric::bf16_to_float(bits[d]);
      } else {
        const auto* codes = reinterpret_cast<const uint8_t*>(rows[i]);
        for (int64_t d = 0; d < source_.width; ++d) to[d] = values_[codes[d]];
      }
    }
  });
}

}  // namespace tandem::experts
