// The n-gram memory's table on disk: hashed rows, read one by one, never whole.
#pragma once

#include <cstdint>
#include <span>

#include "artifact/artifact.h"

namespace tandem::experts {

class NgramTable {
 public:
  // `object` has encoding kNgramF8E4M3 or kNgramBF16; `scale` multiplies FP8 values (1 for BF16). The artifact must
  // outlive the table.
  NgramTable(const artifact::Artifact& artifact, const artifact::Object& object, float scale);

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }

  // Row ids[i] in FP32 to out + i * width. May be called from several threads.
  void read(std::span<const int64_t> ids, float* out) const;

 private:
  const artifact::Artifact& artifact_;
  const artifact::Object& object_;
  int64_t rows_;
  int64_t width_;
  int64_t row_bytes_;
  int64_t rows_per_block_;
  float scale_;
};

}  // namespace tandem::experts
