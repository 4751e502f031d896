#include "experts/ngram_table.h"

#include <vector>

#include "base/error.h"
#include "numeric/bf16.h"
#include "numeric/e4m3.h"

namespace tandem::experts {

NgramTable::NgramTable(const artifact::Artifact& artifact, const artifact::Object& object, float scale)
    : artifact_(artifact),
      object_(object),
      rows_(object.shape.at(0)),
      width_(object.shape.at(1)),
      row_bytes_(width_ * (object.encoding == artifact::Encoding::kNgramBF16 ? 2 : 1)),
      rows_per_block_(static_cast<int64_t>(artifact::kAlignment) / row_bytes_),
      scale_(scale) {}

void NgramTable::read(std::span<const int64_t> ids, float* out) const {
  std::vector<std::byte> row(static_cast<size_t>(row_bytes_));
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids[i];
    if (id < 0 || id >= rows_) base::internal_error(object_.name, "row {} of {} was asked for", id, rows_);
    const int64_t offset =
        id / rows_per_block_ * static_cast<int64_t>(artifact::kAlignment) + id % rows_per_block_ * row_bytes_;
    artifact_.read(object_, static_cast<uint64_t>(offset), row);
    float* to = out + static_cast<int64_t>(i) * width_;
    if (object_.encoding == artifact::Encoding::kNgramBF16) {
      const auto* bits = reinterpret_cast<const uint16_t*>(row.data());
      for (int64_t d = 0; d < width_; ++d) to[d] = numeric::bf16_to_float(bits[d]);
    } else {
      const auto* codes = reinterpret_cast<const uint8_t*>(row.data());
      for (int64_t d = 0; d < width_; ++d) to[d] = numeric::e4m3_to_float(codes[d]) * scale_;
    }
  }
}

}  // namespace tandem::experts
