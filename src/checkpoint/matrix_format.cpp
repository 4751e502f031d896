#include "checkpoint/matrix_format.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>

#include "base/error.h"
#include "checkpoint/json_scanner.h"
#include "numeric/fp8_block.h"
#include "numeric/nvfp4.h"

namespace tandem::checkpoint {

namespace {

using base::Json;

constexpr std::array<std::string_view, kFormats> kFormatNames = {
    "BF16",        "F16",     "F32",        "NVFP4",           "NVFP4 (divisors)",        "FP8 128x128",
    "FP8 128x128", "FP8 row", "FP8 tensor", "packed integers", "packed integers (dense)", "blocks"};

constexpr std::array<std::string_view, 3> kMethods = {"modelopt", "fp8", "compressed-tensors"};
constexpr std::array<std::string_view, 6> kModeloptAlgorithms = {"NVFP4",     "W4A16_NVFP4",      "FP8",
                                                                 "FP8_PB_WO", "FP8_BLOCK_SCALES", "MIXED_PRECISION"};
constexpr std::array<std::string_view, 4> kCompressedFormats = {"nvfp4-pack-quantized", "pack-quantized",
                                                                "float-quantized", "mixed-precision"};

template <size_t N>
void require_known(const std::array<std::string_view, N>& known, const std::string& value, std::string_view what,
                   const std::string& source) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  base::bad_input(source, "the {} \"{}\" is not known; known are {}", what, printable(value), fmt::join(known, ", "));
}

// The number of bits of every integer group of a compressed-tensors config.
std::vector<int> read_integer_bits(const Json& quantization, const std::string& source) {
  std::vector<int> bits;
  const Json& groups = base::json_member(quantization, "config_groups");
  if (!groups.is_object()) return bits;
  for (const auto& group : groups) {
    const Json& weights = base::json_member(group, "weights");
    if (!weights.is_object() || base::json_string(weights, "type", "", source) != "int") continue;
    const int64_t count = base::json_int(weights, "num_bits", source);
    if (count < 2 || count > 8) base::bad_input(source, "\"num_bits\" is {}; packed integers have 2 to 8", count);
    if (std::find(bits.begin(), bits.end(), count) == bits.end()) bits.push_back(static_cast<int>(count));
  }
  return bits;
}

int64_t packed_columns(int64_t inputs, const MatrixFormat& format) {
  const int64_t bits = format.bits;
  if (format.format == Format::kPackedIntDense) return (inputs * bits + 31) / 32;
  const int64_t per_word = 32 / bits;
  return (inputs + per_word - 1) / per_word;
}

// Both packings bear one name; the number of columns tells which it is. Where they agree (bits divide 32) so do the
// bytes, and the first is meant.
MatrixFormat detect_packing(const Checkpoint& checkpoint, const Tensor& packed, const std::vector<int>& integer_bits,
                            int64_t inputs) {
  const std::string source = checkpoint.shards()[packed.shard].path.string();
  if (integer_bits.empty()) {
    base::bad_input(source, "tensor {} is {}, but config.json names no \"num_bits\" of packed integers", packed.name,
                    describe(packed));
  }
  std::vector<MatrixFormat> fitting;
  for (const int bits : integer_bits) {
    for (const Format packing : {Format::kPackedInt, Format::kPackedIntDense}) {
      const MatrixFormat format{packing, bits};
      if (packed.shape.size() != 2 || packed.shape[1] != packed_columns(inputs, format)) continue;
      if (packing == Format::kPackedIntDense && 32 % bits == 0) continue;
      fitting.push_back(format);
    }
  }
  if (fitting.size() == 1) return fitting.front();
  base::bad_input(source, "tensor {} is {}: {} packing of {} inputs in {} bits has so many columns", packed.name,
                  describe(packed), fitting.empty() ? "no known" : "more than one", inputs,
                  fmt::join(integer_bits, "/"));
}

// E4M3 codes with a weight_scale: its shape tells what it belongs to.
Format detect_fp8_scale(const Checkpoint& checkpoint, const Tensor& scale, int64_t rows, int64_t inputs) {
  const std::vector<int64_t>& shape = scale.shape;
  if (shape.empty() || shape == std::vector<int64_t>{1}) return Format::kFp8Tensor;
  // A row scale comes first: [1, 1] of a matrix of one row is both.
  if (shape == std::vector<int64_t>{rows, 1} && inputs > 1) return Format::kFp8Row;
  const int64_t down = numeric::fp8_blocks(rows);
  const int64_t across = numeric::fp8_blocks(inputs);
  if (shape == std::vector<int64_t>{down, across} || shape == std::vector<int64_t>{down, 1, across, 1}) {
    return Format::kFp8BlockModelopt;
  }
  base::bad_input(checkpoint.shards()[scale.shard].path.string(),
                  "tensor {} is {}: a matrix [{}, {}] has one scale, one a row or [{}, {}] of 128 x 128", scale.name,
                  describe(scale), rows, inputs, down, across);
}

}  // namespace

std::string describe(const MatrixFormat& format) {
  if (format.format == Format::kBlocks) return std::string(numeric::ggml_type(format.blocks).name);
  const std::string_view name = kFormatNames[static_cast<size_t>(format.format)];
  return format.bits > 0 ? fmt::format("{} of {} bits", name, format.bits) : std::string(name);
}

std::string stacked_name(std::string_view experts, std::string_view projection) {
  return fmt::format("{}.{}.stack", experts, projection);
}

Dtype DtypeSet::first() const {
  unsigned dtype = 0;
  while ((bits_ >> dtype & 1u) == 0) ++dtype;
  return static_cast<Dtype>(dtype);
}

std::string DtypeSet::names() const {
  std::string names;
  for (unsigned dtype = 0; dtype < 32; ++dtype) {
    if ((bits_ >> dtype & 1u) == 0) continue;
    names += names.empty() ? "" : " or ";
    names += dtype_name(static_cast<Dtype>(dtype));
  }
  return names;
}

Quantization read_quantization(const Json& quantization, const std::string& source) {
  Quantization out;
  if (quantization.is_null()) return out;
  if (!quantization.is_object()) base::bad_input(source, "\"quantization_config\" is not an object");
  // hf_quant_config.json is ModelOpt's own and names no method.
  out.method = base::json_string(quantization, "quant_method", "modelopt", source);
  require_known(kMethods, out.method, "quantisation method", source);
  if (out.method == "modelopt") {
    out.algorithm = base::json_string(quantization, "quant_algo", source);
    require_known(kModeloptAlgorithms, out.algorithm, "quantisation algorithm", source);
  } else if (out.method == "compressed-tensors") {
    out.algorithm = base::json_string(quantization, "format", source);
    require_known(kCompressedFormats, out.algorithm, "compressed-tensors format", source);
    out.integer_bits = read_integer_bits(quantization, source);
  } else {
    const Json& block = base::json_member(quantization, "weight_block_size");
    if (!block.is_null() && block != Json::array({128, 128})) {
      base::bad_input(source, "\"weight_block_size\" is not [128, 128], the only one known");
    }
  }
  return out;
}

MatrixFormat detect_format(const Checkpoint& checkpoint, const Quantization& quantization, const std::string& module,
                           int64_t rows, int64_t inputs) {
  if (const Tensor* packed = checkpoint.find(module + ".weight_packed")) {
    if (checkpoint.find(module + ".weight_global_scale") != nullptr) {
      // The name alone does not tell that the scale divides.
      if (quantization.method == "compressed-tensors") return {Format::kNvfp4CompressedTensors};
      base::bad_input(checkpoint.folder().string(),
                      "tensor {}.weight_global_scale is a divisor in compressed-tensors only, but the quantisation "
                      "method is \"{}\"",
                      module, quantization.method);
    }
    return detect_packing(checkpoint, *packed, quantization.integer_bits, inputs);
  }
  const Tensor* weight = checkpoint.find(module + ".weight");
  if (weight == nullptr) base::bad_input(checkpoint.folder().string(), "lacks the tensor {}.weight", module);
  if (weight->dtype == Dtype::kBF16) return {Format::kBF16};
  if (weight->dtype == Dtype::kF16) return {Format::kF16};
  if (weight->dtype == Dtype::kF32) return {Format::kF32};
  if (weight->dtype == Dtype::kU8) return {Format::kNvfp4Modelopt};
  if (weight->dtype == Dtype::kF8E4M3) {
    const Tensor* scale = checkpoint.find(module + ".weight_scale");
    return {scale == nullptr ? Format::kFp8Block : detect_fp8_scale(checkpoint, *scale, rows, inputs)};
  }
  base::bad_input(checkpoint.shards()[weight->shard].path.string(),
                  "tensor {} is {}: no known number format of a matrix has this dtype", weight->name,
                  describe(*weight));
}

std::vector<ExpectedTensor> matrix_tensors(const std::string& module, int64_t rows, int64_t inputs,
                                           const MatrixFormat& format) {
  using Shape = std::vector<int64_t>;
  const DtypeSet scales = {Dtype::kBF16, Dtype::kF32};
  const Shape grid = {numeric::fp8_blocks(rows), numeric::fp8_blocks(inputs)};
  const std::vector<Shape> one = {{}, {1}};
  const ExpectedTensor fp8_codes{module + ".weight", {Dtype::kF8E4M3}, {{rows, inputs}}};
  const ExpectedTensor input_scale{module + ".input_scale", {Dtype::kF32}, one, true};
  const ExpectedTensor block_scales{
      module + ".weight_scale", {Dtype::kF8E4M3}, {{rows, inputs / numeric::kNvfp4Block}}};
  switch (format.format) {
    case Format::kBF16:
      return {{module + ".weight", {Dtype::kBF16}, {{rows, inputs}}}};
    case Format::kF16:
      return {{module + ".weight", {Dtype::kF16}, {{rows, inputs}}}};
    case Format::kF32:
      return {{module + ".weight", {Dtype::kF32}, {{rows, inputs}}}};
    case Format::kNvfp4Modelopt:
      return {{module + ".weight", {Dtype::kU8}, {{rows, inputs / 2}}},
              block_scales,
              {module + ".weight_scale_2", {Dtype::kF32}, one},
              input_scale};
    case Format::kNvfp4CompressedTensors:
      return {{module + ".weight_packed", {Dtype::kU8}, {{rows, inputs / 2}}},
              block_scales,
              {module + ".weight_global_scale", {Dtype::kF32}, {{1}, {}}},
              {module + ".input_global_scale", {Dtype::kF32}, {{1}, {}}, true}};
    case Format::kFp8Block:
      return {fp8_codes, {module + ".weight_scale_inv", scales, {grid}}};
    case Format::kFp8BlockModelopt:
      return {fp8_codes, {module + ".weight_scale", scales, {grid, {grid[0], 1, grid[1], 1}}}, input_scale};
    case Format::kFp8Row:
      return {fp8_codes, {module + ".weight_scale", scales, {{rows, 1}}}, input_scale};
    case Format::kFp8Tensor:
      return {fp8_codes, {module + ".weight_scale", scales, one}, input_scale};
    case Format::kPackedInt:
    case Format::kPackedIntDense:
      break;
    case Format::kBlocks:
      base::internal_error("checkpoint", "{} can't have blocks of its own", module);
  }
  // Any group of inputs that divides the row may share a scale.
  ExpectedTensor group_scales{module + ".weight_scale", kFloats, {}};
  for (const int64_t group : {128, 64, 32, 256, 16}) {
    if (inputs % group == 0) group_scales.shapes.push_back({rows, inputs / group});
  }
  group_scales.shapes.push_back({rows, 1});
  return {{module + ".weight_packed", {Dtype::kI32}, {{rows, packed_columns(inputs, format)}}},
          group_scales,
          {module + ".weight_shape", {Dtype::kI64}, {{2}}}};
}

}  // namespace tandem::checkpoint
