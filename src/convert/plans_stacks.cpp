// Routed experts whose matrices are each in a format of their own: verbatim blocks of a GGUF file, or BF16.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "convert/plans.h"
#include "numeric/block_units.h"

namespace tandem::convert {

namespace {

using artifact::Encoding;
using checkpoint::Checkpoint;
using checkpoint::Dtype;
using checkpoint::Tensor;
using numeric::ExpertFormat;
using numeric::ExpertFormats;
using numeric::ExpertRecord;

using Stacks = std::array<const Tensor*, 3>;

ExpertFormats stack_formats(const Stacks& stacks) {
  ExpertFormats formats{};
  for (size_t m = 0; m < stacks.size(); ++m) {
    const Tensor& stack = *stacks[m];
    const auto kept = stack.dtype == Dtype::kBlocks ? numeric::expert_format_of(stack.blocks) : ExpertFormat::kBF16;
    if (!kept || (stack.dtype != Dtype::kBlocks && stack.dtype != Dtype::kBF16)) {
      base::bad_input(stack.name, "is {}, which experts can't keep", checkpoint::describe(stack));
    }
    formats[m] = *kept;
  }
  return formats;
}

void require_fitting(const std::string& name, const Stacks& stacks) {
  const std::vector<int64_t>& gate = stacks[0]->shape;
  if (gate.size() == 3 && stacks[1]->shape == gate &&
      stacks[2]->shape == std::vector<int64_t>{gate[0], gate[2], gate[1]}) {
    return;
  }
  base::bad_input(name, "has matrices gate {}, up {} and down {}, which do not fit together",
                  checkpoint::describe(*stacks[0]), checkpoint::describe(*stacks[1]), checkpoint::describe(*stacks[2]));
}

class StacksPlan final : public ObjectPlan {
 public:
  StacksPlan(std::string name, Encoding encoding, const Stacks& stacks, const ExpertFormats& formats)
      : ObjectPlan(std::move(name), encoding, stacks[0]->shape, formats), record_(artifact::record_of(object_)) {
    chunk_bytes_ = object_.record_bytes;
    tensors_.assign(stacks.begin(), stacks.end());
  }

  void make(const Checkpoint& checkpoint, uint64_t expert, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    std::vector<std::byte> rows;
    for (size_t m = 0; m < 3; ++m) {
      const Tensor& stack = *tensors_[m];
      const ExpertRecord::Matrix& matrix = record_.matrices[m];
      rows.resize(static_cast<size_t>(matrix.bytes));
      checkpoint.read(stack, expert * rows.size(), rows);
      const auto units = out.subspan(static_cast<size_t>(matrix.offset), rows.size());
      if (matrix.format == ExpertFormat::kBF16) {
        check_values(Check::kFiniteBF16, stack, expert * rows.size(), rows);
        std::ranges::copy(rows, units.begin());
        continue;
      }
      check_blocks(stack, expert, rows);
      numeric::pack_block_units(numeric::block_unit_of(matrix.format), rows, stack.shape[1], stack.shape[2], units);
    }
  }

  bool invert(uint64_t expert, std::span<const std::byte> bytes, const PieceSink& sink) const override {
    uint64_t end = 0;
    std::vector<std::byte> rows;
    for (size_t m = 0; m < 3; ++m) {
      const Tensor& stack = *tensors_[m];
      const ExpertRecord::Matrix& matrix = record_.matrices[m];
      const auto stored = bytes.subspan(static_cast<size_t>(matrix.offset), static_cast<size_t>(matrix.bytes));
      rows.assign(stored.begin(), stored.end());
      if (matrix.format != ExpertFormat::kBF16) {
        numeric::unpack_block_units(numeric::block_unit_of(matrix.format), stored, stack.shape[1], stack.shape[2],
                                    rows);
      }
      sink(stack, expert * rows.size(), rows);
      end = static_cast<uint64_t>(matrix.offset + matrix.bytes);
    }
    return all_zero(bytes.subspan(end));
  }

 private:
  static void check_blocks(const Tensor& stack, uint64_t expert, std::span<const std::byte> rows) {
    const int64_t block = numeric::ggml_first_invalid_block(stack.blocks, rows);
    if (block < 0) return;
    const int64_t per_row = stack.shape[2] / numeric::ggml_type(stack.blocks).block_elements;
    base::bad_input(stack.name, "expert {}, row {}, block {} of {} has a scale that is not finite", expert,
                    block / per_row, block % per_row, checkpoint::describe(stack));
  }

  ExpertRecord record_;
};

}  // namespace

std::unique_ptr<ObjectPlan> plan_experts_stacks(std::string name, const Stacks& stacks) {
  const ExpertFormats formats = stack_formats(stacks);
  require_fitting(name, stacks);
  const bool plain = std::ranges::all_of(formats, [](ExpertFormat format) { return format == ExpertFormat::kBF16; });
  return std::make_unique<StacksPlan>(std::move(name), plain ? Encoding::kExpertsBF16 : Encoding::kExpertsMixed, stacks,
                                      formats);
}

ExpertWeights stacked_expert_weights(const std::string& name, const Stacks& stacks) {
  require_fitting(name, stacks);
  ExpertWeights weights{.inner = stacks[0]->shape[1], .hidden = stacks[0]->shape[2], .matrices = {}};
  const auto experts = static_cast<uint64_t>(stacks[0]->shape[0]);
  for (uint64_t e = 0; e < experts; ++e) {
    for (const Tensor* stack : stacks) weights.matrices.push_back({stack, stack->bytes / experts * e, nullptr});
  }
  return weights;
}

}  // namespace tandem::convert
