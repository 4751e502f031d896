#include "checkpoint/tensor.h"

#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tandem::checkpoint {

namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  int bits;
};

// In the order of the enumeration.
constexpr std::array<DtypeRow, 21> kDtypes = {{
    {Dtype::kBool, "BOOL", 8},      {Dtype::kU8, "U8", 8},          {Dtype::kI8, "I8", 8},
    {Dtype::kF8E5M2, "F8_E5M2", 8}, {Dtype::kF8E4M3, "F8_E4M3", 8}, {Dtype::kF8E8M0, "F8_E8M0", 8},
    {Dtype::kI16, "I16", 16},       {Dtype::kU16, "U16", 16},       {Dtype::kF16, "F16", 16},
    {Dtype::kBF16, "BF16", 16},     {Dtype::kI32, "I32", 32},       {Dtype::kU32, "U32", 32},
    {Dtype::kF32, "F32", 32},       {Dtype::kF64, "F64", 64},       {Dtype::kI64, "I64", 64},
    {Dtype::kU64, "U64", 64},       {Dtype::kC64, "C64", 64},       {Dtype::kF4, "F4", 4},
    {Dtype::kF6E2M3, "F6_E2M3", 6}, {Dtype::kF6E3M2, "F6_E3M2", 6}, {Dtype::kBlocks, "BLOCKS", 0},
}};

constexpr bool rows_match_the_enumeration() {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (static_cast<size_t>(kDtypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_match_the_enumeration());

}  // namespace

int dtype_bits(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bits;
}

std::string_view dtype_name(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name && row.bits > 0) return row.dtype;
  }
  return std::nullopt;
}

std::string describe_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string describe(const Tensor& tensor) {
  const std::string_view dtype =
      tensor.dtype == Dtype::kBlocks ? numeric::ggml_type(tensor.blocks).name : dtype_name(tensor.dtype);
  return fmt::format("{} {}", dtype, describe_shape(tensor.shape));
}

}  // namespace tandem::checkpoint
