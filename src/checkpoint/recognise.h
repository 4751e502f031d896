// Which published model a checkpoint is, and how its parts are stored; and that every tensor is there, in the shape
// that config.json promises, with none left over. Nothing of the data is read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/matrix_format.h"

namespace tandem::checkpoint {

// The matrices of one group that share a number format. Experts count one matrix a projection, the table one a part.
struct GroupFormat {
  Group group = Group::kEmbedding;
  MatrixFormat format;
  bool fused = false;  // experts in one tensor a layer
  uint64_t matrices = 0;
  uint64_t bytes = 0;  // of their tensors, scales included
};

struct Recognised {
  std::string family;               // qwen3_5, qwen3_5_moe or qwen4_exp
  std::string form;                 // what the config calls it: "modelopt MIXED_PRECISION", "fp8", "not quantised", ...
  std::vector<GroupFormat> groups;  // by group, then by format
  bool has_draft_head = false;
  bool has_vision = false;
  bool has_input_scales = false;  // every NVFP4 expert has the scale that 4-bit activations need
  uint64_t tensors = 0;
  uint64_t bytes = 0;       // of all tensors
  uint64_t parameters = 0;  // elements of the model, however stored

  // One line: family, form, formats by group, counts.
  std::string text() const;
};

// Throws base::Error{kBadInput}, one line with the file, the tensor and the figures, for an unknown architecture or
// quantisation and for missing, wrongly shaped or unexpected tensors. A draft head or a vision tower that is wholly
// absent is not an error.
Recognised recognise(const Checkpoint& checkpoint);

// How the parts of a published form are stored, for listing its tensors without a checkpoint.
struct Form {
  MatrixFormat experts;
  bool fused = false;  // experts in two tensors a layer, in the format of `experts`
  MatrixFormat draft_experts;
  bool draft_fused = false;
  bool table_fp8 = false;
  // How a matrix that is no expert's is stored; null: all in BF16.
  MatrixFormat (*matrix)(const Parameter& matrix) = nullptr;
};
inline constexpr Form kFormBf16 = {
    .experts = {}, .fused = true, .draft_experts = {}, .draft_fused = true, .table_fp8 = false};
inline constexpr Form kFormQwenFp8 = {.experts = {Format::kFp8Block},
                                      .fused = false,
                                      .draft_experts = {Format::kFp8Block},
                                      .draft_fused = false,
                                      .table_fp8 = true};
inline constexpr Form kFormNvfp4 = {.experts = {Format::kNvfp4Modelopt},
                                    .fused = false,
                                    .draft_experts = {Format::kFp8Block},
                                    .draft_fused = false,
                                    .table_fp8 = true};

// One tensor of a form, with the parameter that it is a part of and the format that it is stored in (BF16 for those of
// no matrix). Of an expert's matrix [rows, inputs] are its own.
struct FormTensor {
  const Parameter& parameter;
  MatrixFormat format;
  int64_t rows = 0;  // of the matrix, 0 where the tensor belongs to none
  int64_t inputs = 0;
  ExpectedTensor tensor;
};
// Calls `visit` for every tensor that a model has in a form, parameter by parameter. Optional tensors are among them.
void for_each_tensor(const Architecture& architecture, const Form& form,
                     const std::function<void(FormTensor&& tensor)>& visit);

// Every tensor that a checkpoint with this config has in this form.
std::vector<ExpectedTensor> expected_tensors(const base::Json& config, const Form& form, const std::string& source);

}  // namespace tandem::checkpoint
