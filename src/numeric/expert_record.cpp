#include "numeric/expert_record.h"

#include "base/units.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_units.h"
#include "numeric/nvfp4.h"

namespace tandem::numeric {

namespace {

constexpr int64_t kLargestSide = int64_t{1} << 22;  // of a matrix: no product of sides passes 2^44

struct FormatRow {
  std::string_view name;
  std::optional<GgmlType> type;
};

// In the order of the enumeration.
constexpr std::array<FormatRow, kExpertFormats> kFormats = {{
    {"bf16", {}},
    {"nvfp4", {}},
    {"fp8_block", {}},
    {"iq2_s", GgmlType::kIq2s},
    {"iq3_xxs", GgmlType::kIq3xxs},
    {"iq3_s", GgmlType::kIq3s},
    {"iq4_xs", GgmlType::kIq4xs},
    {"iq4_nl", GgmlType::kIq4nl},
    {"q2_0", GgmlType::kQ2_0},
}};

const FormatRow& row_of(ExpertFormat format) {
  return kFormats[static_cast<size_t>(format)];
}

// Nothing where the format cannot hold the shape.
std::optional<int64_t> matrix_bytes(ExpertFormat format, int64_t rows, int64_t inputs) {
  const int64_t row_multiple = is_block_format(format) ? kBlockUnitRows : expert_multiple(format);
  if (rows % row_multiple != 0 || inputs % expert_multiple(format) != 0) return std::nullopt;
  switch (format) {
    case ExpertFormat::kBF16:
      return 2 * rows * inputs;
    case ExpertFormat::kFp8Block:
      return rows * inputs;
    case ExpertFormat::kNvfp4:
      return nvfp4_record_bytes(rows, inputs);
    default:
      return block_unit_bytes(block_unit_of(format), rows, inputs);
  }
}

}  // namespace

std::string_view expert_format_name(ExpertFormat format) {
  return row_of(format).name;
}

std::optional<ExpertFormat> expert_format_from_name(std::string_view name) {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].name == name) return static_cast<ExpertFormat>(i);
  }
  return std::nullopt;
}

std::optional<ExpertRecord> expert_record(const ExpertFormats& formats, int64_t inner, int64_t hidden) {
  if (inner < 1 || hidden < 1 || inner > kLargestSide || hidden > kLargestSide) return std::nullopt;
  ExpertRecord record;
  int64_t end = 0;
  for (size_t m = 0; m < formats.size(); ++m) {
    const std::optional<int64_t> bytes = matrix_bytes(formats[m], m == 2 ? hidden : inner, m == 2 ? inner : hidden);
    if (!bytes) return std::nullopt;
    record.matrices[m] = {.format = formats[m], .offset = end, .bytes = *bytes, .scales_offset = 0};
    end += *bytes;
  }
  for (ExpertRecord::Matrix& matrix : record.matrices) {
    if (matrix.format != ExpertFormat::kFp8Block) continue;
    matrix.scales_offset = end;
    end += 2 * fp8_blocks(inner) * fp8_blocks(hidden);
  }
  record.bytes = static_cast<int64_t>(base::round_up(static_cast<uint64_t>(end), kExpertRecordAlignment));
  return record;
}

int64_t expert_multiple(ExpertFormat format) {
  switch (format) {
    case ExpertFormat::kBF16:
      return 1;
    case ExpertFormat::kFp8Block:
      return kFp8UnitInputs;
    case ExpertFormat::kNvfp4:
      return kNvfp4UnitInputs;
    default:
      return block_unit_of(format).inputs;
  }
}

GgmlType ggml_type_of(ExpertFormat format) {
  return row_of(format).type.value_or(GgmlType::kF32);
}

const BlockUnit& block_unit_of(ExpertFormat format) {
  return *find_block_unit(ggml_type_of(format));
}

std::optional<ExpertFormat> expert_format_of(GgmlType type) {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].type == type) return static_cast<ExpertFormat>(i);
  }
  return std::nullopt;
}

}  // namespace tandem::numeric
