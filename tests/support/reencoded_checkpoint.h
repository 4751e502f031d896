// Checkpoint folders whose matrices were put into another published format, and their twins with the same weights
// decoded to FP32.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors_writer.h"

namespace tandem::reencode {

enum class MatrixForm {
  kNvfp4,         // ModelOpt: multipliers
  kNvfp4Divisor,  // compressed-tensors: divisors
  kFp8Row,        // BF16 scales
  kFp8Tensor,     // FP32 scale and input scale
  kFp8Block,      // BF16 weight_scale_inv
  kInt3Words,     // 10 codes to a word, groups of 128, BF16 scales
  kInt3Stream,    // a stream of bits, groups of 128, F16 scales
  kInt8,          // groups of 128, FP32 scales
  kInt4,          // groups of 32, BF16 scales
  kF16,
};
inline constexpr MatrixForm kMatrixForms[] = {
    MatrixForm::kNvfp4,    MatrixForm::kNvfp4Divisor, MatrixForm::kFp8Row,     MatrixForm::kFp8Tensor,
    MatrixForm::kFp8Block, MatrixForm::kInt3Words,    MatrixForm::kInt3Stream, MatrixForm::kInt8,
    MatrixForm::kInt4,     MatrixForm::kF16};
std::string form_name(MatrixForm form);

// Copies the checkpoint folder `source` with every matrix of its architecture in `form` to `encoded`, and with what
// these matrices then hold in FP32 to `decoded`. Other tensors and files are copied.
void write_reencoded(const std::filesystem::path& source, MatrixForm form, const std::filesystem::path& encoded,
                     const std::filesystem::path& decoded);

}  // namespace tandem::reencode
