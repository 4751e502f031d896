// Formats of experts and the tensor types of GGUF files.
#pragma once

#include "numeric/block_units.h"
#include "numeric/ggml_types.h"
#include "ops/expert_format.h"

namespace tandem::ops {

// REQUIRES: is_block_format(format).
constexpr numeric::GgmlType ggml_type_of(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::kIq2s:
      return numeric::GgmlType::kIq2s;
    case ExpertFormat::kIq3xxs:
      return numeric::GgmlType::kIq3xxs;
    case ExpertFormat::kIq3s:
      return numeric::GgmlType::kIq3s;
    case ExpertFormat::kIq4xs:
      return numeric::GgmlType::kIq4xs;
    case ExpertFormat::kIq4nl:
      return numeric::GgmlType::kIq4nl;
    default:
      return numeric::GgmlType::kQ2_0;
  }
}

// How matrices of the format lie in records. REQUIRES: is_block_format(format).
inline const numeric::BlockUnit& block_unit_of(ExpertFormat format) {
  return *numeric::find_block_unit(ggml_type_of(format));
}

}  // namespace tandem::ops
