// How many bytes a weight matrix's parts have.
#pragma once

#include "base/units.h"
#include "numeric/fp8_block.h"
#include "numeric/int_group.h"
#include "ops/weight.h"

namespace tandem::ops {

// Of `data`; 0 for a weight without.
inline int64_t data_bytes(const Weight& w) {
  if (w.data == nullptr) return 0;
  switch (w.format) {
    case WeightFormat::kF32:
      return w.rows * w.inputs * 4;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return w.rows * w.inputs * 2;
    case WeightFormat::kNvfp4:
      return w.rows * w.inputs / 2;
    case WeightFormat::kInt3:
      return w.rows * numeric::int_row_bytes(w.inputs, 3);
    case WeightFormat::kInt4:
      return w.rows * numeric::int_row_bytes(w.inputs, 4);
    case WeightFormat::kInt8:
      return w.rows * numeric::int_row_bytes(w.inputs, 8);
    default:
      return w.rows * w.inputs;
  }
}

// Of `scales`; 0 for a format without.
inline int64_t scale_bytes(const Weight& w) {
  const int64_t each = w.scale_type == ScaleType::kF32 ? 4 : 2;
  switch (w.format) {
    case WeightFormat::kFp8Row:
      return w.rows * each;
    case WeightFormat::kFp8Block:
      return numeric::fp8_blocks(w.rows) * numeric::fp8_blocks(w.inputs) * each;
    case WeightFormat::kNvfp4:
      return w.rows * (w.inputs / 16);
    case WeightFormat::kInt3:
    case WeightFormat::kInt4:
    case WeightFormat::kInt8:
      return w.rows * (w.inputs / w.group) * each;
    default:
      return 0;
  }
}

}  // namespace tandem::ops
