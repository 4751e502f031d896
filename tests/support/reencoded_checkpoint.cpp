#include "tests/support/reencoded_checkpoint.h"

#include <cstring>
#include <deque>
#include <fmt/format.h>
#include <map>

#include "base/file.h"
#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "numeric/bf16.h"
#include "numeric/f16.h"
#include "numeric/fp8_block.h"
#include "numeric/fp8_row.h"
#include "numeric/int_group.h"
#include "numeric/nvfp4.h"

namespace tandem::reencode {

namespace {

namespace fs = std::filesystem;
using base::Json;
using checkpoint::Dtype;
using checkpoint::TensorData;

// The tensors of a file to be; they own their bytes.
class Tensors {
 public:
  template <typename T>
  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    const auto& kept = bytes_.emplace_back(bytes.begin(), bytes.end());
    tensors_.push_back({name, dtype, std::move(shape), kept});
  }
  void write(const fs::path& path) const { checkpoint::write_safetensors(path, tensors_); }

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<TensorData> tensors_;
};

struct Matrix {
  std::string module;
  int64_t rows = 0, inputs = 0;
  std::vector<float> weights;
};

std::vector<float> to_floats(const checkpoint::Checkpoint& source, const checkpoint::Tensor& tensor) {
  const std::vector<std::byte> bytes = source.read(tensor);
  std::vector<float> values(bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = numeric::bf16_to_float(bits);
  }
  return values;
}

std::vector<uint16_t> to_bf16(std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float& value : values) {
    bits.push_back(numeric::bf16_from_float(value));
    value = numeric::bf16_to_float(bits.back());
  }
  return bits;
}
std::vector<uint16_t> to_f16(std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float& value : values) {
    bits.push_back(numeric::f16_from_float(value));
    value = numeric::f16_to_float(bits.back());
  }
  return bits;
}

// Each puts a matrix into `out` and leaves in its weights what the format holds.
void put_nvfp4(Matrix& m, bool divisor, Tensors& out) {
  std::vector<uint8_t> codes(m.weights.size() / 2);
  std::vector<uint8_t> scales(m.weights.size() / 16);
  numeric::Nvfp4Scale scale{numeric::nvfp4_encode(m.weights, m.rows, m.inputs, codes, scales),
                            numeric::Nvfp4Scale::Direction::kMultiplier};
  if (divisor) scale = {1.0f / scale.stored, numeric::Nvfp4Scale::Direction::kDivisor};
  numeric::nvfp4_decode(codes, scales, m.rows, m.inputs, scale, m.weights);
  out.add(m.module + (divisor ? ".weight_packed" : ".weight"), Dtype::kU8, {m.rows, m.inputs / 2}, codes);
  out.add(m.module + ".weight_scale", Dtype::kF8E4M3, {m.rows, m.inputs / 16}, scales);
  const std::vector<int64_t> one = divisor ? std::vector<int64_t>{1} : std::vector<int64_t>{};
  out.add(m.module + (divisor ? ".weight_global_scale" : ".weight_scale_2"), Dtype::kF32, one,
          std::vector<float>{scale.stored});
  if (!divisor) out.add(m.module + ".input_scale", Dtype::kF32, {}, std::vector<float>{0.01f});
}

void put_fp8_row(Matrix& m, Tensors& out) {
  std::vector<uint8_t> codes(m.weights.size());
  std::vector<float> scales(static_cast<size_t>(m.rows));
  numeric::fp8_row_encode(m.weights, m.rows, m.inputs, codes, scales);
  const std::vector<uint16_t> bits = to_bf16(scales);
  out.add(m.module + ".weight", Dtype::kF8E4M3, {m.rows, m.inputs}, codes);
  out.add(m.module + ".weight_scale", Dtype::kBF16, {m.rows, 1}, bits);
  numeric::fp8_row_decode(codes, {std::as_bytes(std::span(bits)), numeric::Fp8ScaleType::kBF16}, m.rows, m.inputs,
                          m.weights);
}

void put_fp8_tensor(Matrix& m, Tensors& out) {
  std::vector<uint8_t> codes(m.weights.size());
  const float scale = numeric::fp8_tensor_encode(m.weights, codes);
  out.add(m.module + ".weight", Dtype::kF8E4M3, {m.rows, m.inputs}, codes);
  out.add(m.module + ".weight_scale", Dtype::kF32, {}, std::vector<float>{scale});
  out.add(m.module + ".input_scale", Dtype::kF32, {}, std::vector<float>{0.5f});
  numeric::fp8_tensor_decode(codes, scale, m.weights);
}

void put_fp8_block(Matrix& m, Tensors& out) {
  const numeric::Fp8BlockMatrix blocks = numeric::fp8_block_encode(m.weights, m.rows, m.inputs);
  out.add(m.module + ".weight", Dtype::kF8E4M3, {m.rows, m.inputs}, blocks.codes);
  out.add(m.module + ".weight_scale_inv", Dtype::kBF16, {numeric::fp8_blocks(m.rows), numeric::fp8_blocks(m.inputs)},
          blocks.scales);
  numeric::fp8_block_decode(blocks.codes, {std::as_bytes(std::span(blocks.scales)), numeric::Fp8ScaleType::kBF16},
                            m.rows, m.inputs, m.weights);
}

void put_integers(Matrix& m, int bits, int64_t group, numeric::IntPacking packing, Dtype scale_type, Tensors& out) {
  const auto width = static_cast<size_t>(m.inputs);
  const auto groups = static_cast<size_t>(m.inputs / group);
  const auto row_words = static_cast<size_t>(numeric::int_packed_words(m.inputs, bits, packing));
  std::vector<uint8_t> codes(m.weights.size());
  std::vector<float> scales(static_cast<size_t>(m.rows) * groups);
  std::vector<uint32_t> words(static_cast<size_t>(m.rows) * row_words);
  const auto row_of = [](auto& values, size_t row, size_t size) { return std::span(values).subspan(row * size, size); };
  for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r) {
    numeric::int_encode_row(row_of(m.weights, r, width), bits, group, row_of(codes, r, width),
                            row_of(scales, r, groups));
    numeric::int_pack_row(row_of(codes, r, width), bits, packing, row_of(words, r, row_words));
  }
  out.add(m.module + ".weight_packed", Dtype::kI32, {m.rows, static_cast<int64_t>(row_words)}, words);
  const std::vector<int64_t> grid = {m.rows, static_cast<int64_t>(groups)};
  if (scale_type == Dtype::kF32) {
    out.add(m.module + ".weight_scale", scale_type, grid, scales);
  } else {
    out.add(m.module + ".weight_scale", scale_type, grid, scale_type == Dtype::kF16 ? to_f16(scales) : to_bf16(scales));
  }
  out.add(m.module + ".weight_shape", Dtype::kI64, {2}, std::vector<int64_t>{m.rows, m.inputs});
  for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r) {
    numeric::int_decode_row(row_of(codes, r, width), bits, row_of(scales, r, groups), group,
                            row_of(m.weights, r, width));
  }
}

void put(Matrix& m, MatrixForm form, Tensors& out) {
  switch (form) {
    case MatrixForm::kNvfp4:
      return put_nvfp4(m, false, out);
    case MatrixForm::kNvfp4Divisor:
      return put_nvfp4(m, true, out);
    case MatrixForm::kFp8Row:
      return put_fp8_row(m, out);
    case MatrixForm::kFp8Tensor:
      return put_fp8_tensor(m, out);
    case MatrixForm::kFp8Block:
      return put_fp8_block(m, out);
    case MatrixForm::kInt3Words:
      return put_integers(m, 3, 128, numeric::IntPacking::kWords, Dtype::kBF16, out);
    case MatrixForm::kInt3Stream:
      return put_integers(m, 3, 128, numeric::IntPacking::kStream, Dtype::kF16, out);
    case MatrixForm::kInt8:
      return put_integers(m, 8, 128, numeric::IntPacking::kWords, Dtype::kF32, out);
    case MatrixForm::kInt4:
      return put_integers(m, 4, 32, numeric::IntPacking::kWords, Dtype::kBF16, out);
    case MatrixForm::kF16:
      out.add(m.module + ".weight", Dtype::kF16, {m.rows, m.inputs}, to_f16(m.weights));
      return;
  }
}

Json quantization(MatrixForm form) {
  const auto integers = [](int bits) {
    return Json{{"quant_method", "compressed-tensors"},
                {"format", "pack-quantized"},
                {"config_groups", {{"group_0", {{"weights", {{"type", "int"}, {"num_bits", bits}}}}}}}};
  };
  switch (form) {
    case MatrixForm::kNvfp4:
      return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
    case MatrixForm::kNvfp4Divisor:
      return {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}};
    case MatrixForm::kFp8Row:
      return {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}};
    case MatrixForm::kFp8Tensor:
      return {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
    case MatrixForm::kFp8Block:
      return {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    case MatrixForm::kInt3Words:
    case MatrixForm::kInt3Stream:
      return integers(3);
    case MatrixForm::kInt8:
      return integers(8);
    case MatrixForm::kInt4:
      return integers(4);
    case MatrixForm::kF16:
      break;
  }
  return {};
}

void copy_texts(const fs::path& from, const fs::path& to, const Json& config) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.path().extension() != ".safetensors") fs::copy(entry.path(), to / entry.path().filename());
  }
  base::write_text(to / "config.json", config.dump(1));
}

}  // namespace

std::string form_name(MatrixForm form) {
  static constexpr const char* kNames[] = {"nvfp4",      "nvfp4_divisor", "fp8_row", "fp8_tensor", "fp8_block",
                                           "int3_words", "int3_stream",   "int8",    "int4",       "f16"};
  return kNames[static_cast<size_t>(form)];
}

void write_reencoded(const fs::path& source, MatrixForm form, const fs::path& encoded, const fs::path& decoded) {
  const checkpoint::Checkpoint from = checkpoint::Checkpoint::open(source);
  std::map<std::string, std::vector<int64_t>> matrices;
  for (const auto& parameter : checkpoint::read_architecture(from.config(), "config.json").parameters) {
    if (parameter.kind == checkpoint::ParameterKind::kMatrix) matrices[parameter.name + ".weight"] = parameter.shape;
  }
  Tensors in_form;
  Tensors in_floats;
  for (const checkpoint::Tensor& tensor : from.tensors()) {
    const auto shape = matrices.find(tensor.name);
    if (shape == matrices.end()) {
      in_form.add(tensor.name, tensor.dtype, tensor.shape, from.read(tensor));
      in_floats.add(tensor.name, tensor.dtype, tensor.shape, from.read(tensor));
      continue;
    }
    Matrix matrix{tensor.name.substr(0, tensor.name.size() - 7), tensor.shape[0], tensor.shape[1],
                  to_floats(from, tensor)};
    put(matrix, form, in_form);
    in_floats.add(tensor.name, Dtype::kF32, tensor.shape, matrix.weights);
  }
  Json config = from.config();
  copy_texts(source, decoded, config);
  if (const Json method = quantization(form); !method.is_null()) config["quantization_config"] = method;
  copy_texts(source, encoded, config);
  in_form.write(encoded / "model.safetensors");
  in_floats.write(decoded / "model.safetensors");
}

}  // namespace tandem::reencode
