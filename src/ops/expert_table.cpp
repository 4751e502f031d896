#include "numeric/nvfp4.h"
#include "ops/expert_types.h"
#include "ops/ops.h"

namespace tandem::ops {

namespace {

constexpr int64_t kRecordAlignment = 4096;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t matrix_bytes(ExpertFormat format, int64_t rows, int64_t inputs) {
  switch (format) {
    case ExpertFormat::kBF16:
      return 2 * rows * inputs;
    case ExpertFormat::kFp8Block:
      return rows * inputs;
    case ExpertFormat::kNvfp4:
      return numeric::nvfp4_record_bytes(rows, inputs);
    default:
      return numeric::block_unit_bytes(block_unit_of(format), rows, inputs);
  }
}

}  // namespace

void ExpertTable::place(ExpertFormat gate, ExpertFormat up, ExpertFormat down) {
  const ExpertFormat formats[3] = {gate, up, down};
  int64_t end = 0;
  for (int m = 0; m < 3; ++m) {
    matrices[m] = {formats[m], end, 0};
    end += matrix_bytes(formats[m], m == 2 ? hidden : inner, m == 2 ? inner : hidden);
  }
  for (Matrix& matrix : matrices) {
    if (matrix.format != ExpertFormat::kFp8Block) continue;
    matrix.scales_offset = end;
    end += 2 * ceil_div(inner, 128) * ceil_div(hidden, 128);
  }
  record_bytes = ceil_div(end, kRecordAlignment) * kRecordAlignment;
}

}  // namespace tandem::ops
