// The plans of the published formats: every code and scale is kept bit for bit.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "convert/object_plan.h"
#include "numeric/int_group.h"

namespace tandem::convert {

// A file of the checkpoint as it is.
std::unique_ptr<ObjectPlan> plan_text(std::string name, std::string content);

// A tensor as it is, under its own name. Throws for a dtype that no plain encoding holds.
std::unique_ptr<ObjectPlan> plan_tensor(const checkpoint::Tensor& tensor, Check check = Check::kNone);

// Packed integer codes of a matrix [rows, inputs], `packed` int32 [rows, words], in the stored layout under their own
// name. `shape` is the tensor of the matrix' shape, which make() compares. Throws for a number of bits that no encoding
// holds.
std::unique_ptr<ObjectPlan> plan_integers(const checkpoint::Tensor& packed, const checkpoint::Tensor& shape,
                                          int64_t rows, int64_t inputs, int bits, numeric::IntPacking packing);

// A matrix [rows, inputs] in BF16, F16 or FP32 re-encoded as FP8 with a scale a row: the codes under its own name, the
// scales [rows, 1] in FP32 under P.weight_scale. make() throws at a weight that is not finite.
std::unique_ptr<ObjectPlan> plan_fp8_row_codes(const checkpoint::Tensor& matrix);
std::unique_ptr<ObjectPlan> plan_fp8_row_scales(const checkpoint::Tensor& matrix);

// The n-gram table from its shards in numeric order, each [rows, width] of one dtype (F8_E4M3 or BF16).
std::unique_ptr<ObjectPlan> plan_ngram(std::string name, const std::vector<const checkpoint::Tensor*>& shards);

// One projection of one expert as published. What a format does not have is null.
struct Projection {
  const checkpoint::Tensor* weight = nullptr;
  const checkpoint::Tensor* weight_scale = nullptr;
  const checkpoint::Tensor* weight_scale_2 = nullptr;
  const checkpoint::Tensor* input_scale = nullptr;
  const checkpoint::Tensor* weight_scale_inv = nullptr;
};
struct Expert {
  Projection gate, up, down;
};

// The routed experts of one layer; `name` is the module's, "….mlp.experts". They throw base::Error{kBadInput} that
// names the first tensor with another shape or dtype than expert 0's say.
//   fused: gate_up [experts, 2 * inner, hidden] with gate first, down [experts, hidden, inner], BF16
std::unique_ptr<ObjectPlan> plan_experts_fused(std::string name, const checkpoint::Tensor& gate_up,
                                               const checkpoint::Tensor& down);
std::unique_ptr<ObjectPlan> plan_experts_bf16(std::string name, const std::vector<Expert>& experts);
std::unique_ptr<ObjectPlan> plan_experts_fp8_block(std::string name, const std::vector<Expert>& experts);
std::unique_ptr<ObjectPlan> plan_experts_nvfp4(std::string name, std::vector<Expert> experts);
// From stacks gate, up and down [experts, rows, inputs] (checkpoint::stacked_name), each in blocks of a GGUF type that
// experts may have, or BF16. make() throws at a scale or weight that is not finite.
std::unique_ptr<ObjectPlan> plan_experts_stacks(std::string name,
                                                const std::array<const checkpoint::Tensor*, 3>& stacks);
// Their tensor scales: F32 [experts, 6], gate, up and down weight_scale_2, then gate, up and down input_scale; or
// [experts, 3] where the checkpoint has no input scales.
std::unique_ptr<ObjectPlan> plan_expert_scalars(std::string name, const std::vector<Expert>& experts);

// The weights of a layer's routed experts wherever they stand, for re-encoding.
struct ExpertWeights {
  struct Matrix {
    const checkpoint::Tensor* weight = nullptr;
    uint64_t offset = 0;                         // of the matrix in the tensor's data
    const checkpoint::Tensor* scales = nullptr;  // FP8 in blocks; null: BF16
  };
  int64_t inner = 0, hidden = 0;
  std::vector<Matrix> matrices;  // gate, up and down of the first expert, then of the next

  int64_t experts() const { return static_cast<int64_t>(matrices.size() / 3); }
};
// Of the fused form, of stacks in BF16, and one by one in FP8 blocks or BF16. They throw as the plans of these forms.
ExpertWeights fused_expert_weights(const checkpoint::Tensor& gate_up, const checkpoint::Tensor& down);
ExpertWeights stacked_expert_weights(const std::string& name, const std::array<const checkpoint::Tensor*, 3>& stacks);
ExpertWeights expert_weights(const std::vector<Expert>& experts);

// Experts re-encoded as NVFP4 (numeric::nvfp4_encode), every matrix by itself: the records, and F32 [experts, 3] of
// gate, up and down weight_scale_2. make() throws at a weight that is not finite, and at matrices that no valid scale
// reaches.
std::unique_ptr<ObjectPlan> plan_reencoded_experts(std::string name, ExpertWeights weights);
std::unique_ptr<ObjectPlan> plan_reencoded_scalars(std::string name, ExpertWeights weights);

}  // namespace tandem::convert
