// How a matrix [rows, inputs] of a published checkpoint is stored: which tensors stand beside each other under which
// suffixes (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"

namespace tandem::checkpoint {

enum class Format : uint8_t {
  kBF16,  // one tensor, as the next two
  kF16,
  kF32,
  kNvfp4Modelopt,           // weight, weight_scale, weight_scale_2: multipliers
  kNvfp4CompressedTensors,  // weight_packed, weight_scale, weight_global_scale: a divisor
  kFp8Block,                // weight, weight_scale_inv: 128 x 128 blocks
  kFp8BlockModelopt,        // weight, weight_scale: 128 x 128 blocks
  kFp8Row,                  // weight, weight_scale [rows, 1]
  kFp8Tensor,               // weight, weight_scale: one
  kPackedInt,               // weight_packed, weight_scale, weight_shape: floor(32 / bits) codes to a word
  kPackedIntDense,          // the same tensors: codes as one stream of bits
  kBlocks,                  // experts only, from a GGUF file: stacked_name
};
inline constexpr size_t kFormats = 12;

struct MatrixFormat {
  Format format = Format::kBF16;
  int bits = 0;                                        // kPackedInt and kPackedIntDense: of a code
  numeric::GgmlType blocks = numeric::GgmlType::kF32;  // kBlocks: their type
  bool operator==(const MatrixFormat&) const = default;
};

// "NVFP4", "FP8 128x128", "packed integers of 3 bits", "IQ2_S", ...
std::string describe(const MatrixFormat& format);

// The routed experts' matrices of one projection ("gate_proj", "up_proj", "down_proj") in one tensor [experts, rows,
// inputs] of blocks or BF16: a form that no published checkpoint has, only a view of a GGUF file (convert/gguf_view.h).
std::string stacked_name(std::string_view experts, std::string_view projection);

// What config.json says about quantisation, as far as tensors can't say it themselves. Throws base::Error{kBadInput}
// where the method or the algorithm is not known.
struct Quantization {
  std::string method;             // "", "modelopt", "fp8" or "compressed-tensors"
  std::string algorithm;          // modelopt: quant_algo; compressed-tensors: format
  std::vector<int> integer_bits;  // compressed-tensors: num_bits of its integer groups, each once
};
Quantization read_quantization(const base::Json& quantization, const std::string& source);

// A set of dtypes.
class DtypeSet {
 public:
  constexpr DtypeSet(std::initializer_list<Dtype> dtypes) {
    for (const Dtype dtype : dtypes) bits_ |= 1u << static_cast<unsigned>(dtype);
  }
  constexpr bool contains(Dtype dtype) const { return (bits_ >> static_cast<unsigned>(dtype) & 1u) != 0; }
  Dtype first() const;
  std::string names() const;  // "BF16 or F32"

 private:
  uint32_t bits_ = 0;
};
inline constexpr DtypeSet kFloats = {Dtype::kBF16, Dtype::kF16, Dtype::kF32};

// One tensor that a parameter must have, or may have.
struct ExpectedTensor {
  std::string name;
  DtypeSet dtypes = kFloats;
  std::vector<std::vector<int64_t>> shapes;  // the allowed ones, the usual one first
  bool optional = false;
};

// The format of matrix `module`, by the tensors that are there. Throws base::Error{kBadInput} where they fit no format.
MatrixFormat detect_format(const Checkpoint& checkpoint, const Quantization& quantization, const std::string& module,
                           int64_t rows, int64_t inputs);
// The tensors of a matrix in a format.
std::vector<ExpectedTensor> matrix_tensors(const std::string& module, int64_t rows, int64_t inputs,
                                           const MatrixFormat& format);

}  // namespace tandem::checkpoint
